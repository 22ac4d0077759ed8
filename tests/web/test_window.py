"""A conversation of 20,000 events: bounded elements, the place of the reader kept, jumps to any event."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from bough.events.model import ModelResponded, UserMessage
from bough.server.services import Services

from .site import Site

pytestmark = pytest.mark.needs("chromium")
EVENTS = 20_000
BATCH = 5000


def make_event(seq: int) -> Any:
    text = f"event {seq}\n" * (1 + seq % 7)
    if seq % 10 == 1:
        return UserMessage.text(text)
    part = {"part_kind": "text", "content": text}
    return ModelResponded(response={"kind": "response", "parts": [part]}, model="offline", seen=seq)


@pytest.fixture(scope="module")
def long_id(site: Site) -> str:
    id = site.start()
    cid = UUID(id)

    async def fill(services: Services) -> None:
        head = (await services.store.get(cid)).head
        for start in range(head, EVENTS, BATCH):
            await services.store.append(cid, [make_event(seq) for seq in range(start, min(start + BATCH, EVENTS))])

    site.call(fill)
    return id


def count_elements(page: Page) -> float:
    """Return the number of elements in the log for each height of the screen that they fill."""
    return page.evaluate(
        """() => {
        const chunks = [...document.querySelectorAll('.chunk')];
        const height = chunks.reduce((sum, chunk) => sum + chunk.getBoundingClientRect().height, 0);
        return document.querySelectorAll('#log *').length / (height / innerHeight);
    }"""
    )


def test_a_long_log_is_bounded_and_keeps_its_place(page: Page, site: Site, long_id: str) -> None:
    page.goto(f"{site.url}/c/{long_id}")
    expect(page.locator(f"#e{EVENTS - 1}")).to_be_visible()
    for seq in (0, 10_000, 9_999, 19_950, 2_345):
        page.get_by_label("Find in this conversation").fill(f"#{seq}")
        page.keyboard.press("Enter")
        expect(page.locator(f"#e{seq}")).to_be_focused()
        expect(page.locator("#log")).not_to_have_attribute("aria-busy", "true")
        assert count_elements(page) <= 400
        assert page.locator(".chunk").count() <= 12
    for _ in range(8):
        moved = page.evaluate(
            """async () => {
            const rows = () => [...document.querySelectorAll("article.row")];
            const row = () => rows().find((r) => r.getBoundingClientRect().bottom > 100);
            scrollBy(0, -300);
            const first = row(), before = first.getBoundingClientRect().top;
            const frame = () => new Promise(requestAnimationFrame);
            for (let i = 0; i < 10; i++) await frame();
            while (document.querySelector('#log[aria-busy]')) await frame();
            for (let i = 0; i < 4; i++) await frame();
            return first.isConnected ? Math.abs(first.getBoundingClientRect().top - before) : 0;
        }"""
        )
        assert moved <= 1


def test_new_events_move_nothing_for_a_reader_elsewhere(page: Page, site: Site, long_id: str) -> None:
    page.goto(f"{site.url}/c/{long_id}?at=200")
    expect(page.locator("#e200")).to_be_focused()
    before = page.locator("#e200").bounding_box()
    site.call(lambda services: services.store.append(UUID(long_id), [UserMessage.text("a late zebra")]))
    expect(page.locator("#news")).to_contain_text("1 new event")
    assert page.locator("#e200").bounding_box() == before
    page.locator("#news").click()
    expect(page.locator("article.you").last).to_contain_text("a late zebra")
