"""The live stream behind a proxy that cuts, doubles and reorders its events: each row once and in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect
from starlette.requests import Request

from bough.events.model import UserMessage
from bough.server.access import authenticate
from bough.server.services import Services
from bough.web.log import Chunk, LogReader, count_turns

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
    seqs = page.locator(".log article.row").evaluate_all("rows => rows.map((row) => Number(row.id.slice(1)))")
    assert seqs == sorted(seqs)
    assert Proxy.tricks >= {"lost", "late", "double"}


def test_a_stream_counts_the_messages_before_it_once(site: Site) -> None:
    """A log without kept states near: what one frame counted gives the next one the same turns."""
    id = site.start()
    cid = UUID(id)

    async def read(services: Services) -> tuple[Sequence[Chunk], Sequence[Chunk], tuple[int, int] | None]:
        head = (await services.store.get(cid)).head
        await services.store.append(cid, [UserMessage.text(f"message {seq}") for seq in range(head, 5000)])
        scope: dict[str, Any] = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "headers": [],
            "query_string": b"",
            "state": {},
        }
        request = Request({**scope, "app": site.running.app, "client": ("127.0.0.1", 1)})
        access = await authenticate(request, None)
        first = await LogReader.open(access, cid)
        counted = count_turns(await first.read_from(4900, 4960))
        assert counted is not None
        # Nothing before the place is counted again: a wrong number there shows in every turn after it.
        second = await LogReader.open(access, cid, counted=(counted[0], counted[1] + 1000))
        return await first.read_from(4960, 4990), await second.read_from(4960, 4990), counted

    plain, hinted, counted = site.call(read)
    numbers = [part.number for chunk in plain for part in chunk.parts]
    assert numbers == list(range(4961, 4990))
    assert counted == (4950, 4949)
    assert [part.number - 1000 for chunk in hinted for part in chunk.parts] == numbers
