"""The live stream behind a proxy that cuts, doubles and reorders its events: each row once and in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from .proxy import Proxy, open_proxy
from .site import Site

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture
def proxy(site: Site) -> Iterator[str]:
    with open_proxy(site.running.port) as url:
        yield url


def test_each_event_is_shown_once_and_in_order(page: Page, site: Site, proxy: str) -> None:
    id = site.start("hello")
    page.goto(f"{proxy}/c/{id}")
    for number in range(12):
        site.say(id, f"write file{number}.txt")
    Proxy.is_honest = True  # otherwise nothing would come after the last frame, and its loss would not be noticed
    site.say(id, "the end")
    head = site.client.get(f"/api/conversations/{id}").json()["head"]
    expect(page.locator(".log [id^=e]")).to_have_count(head, timeout=30_000)
    expect(page.locator("article.you")).to_have_count(14)
    seqs = page.locator(".log article[id^=e]").evaluate_all("rows => rows.map((row) => Number(row.id.slice(1)))")
    assert seqs == sorted(seqs)
    assert Proxy.tricks >= {"lost", "late", "double"}
