"""Each kind of event: a word that its row shows is found by the page's search and jumped to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, get_args
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from bough.events.codec import decode
from bough.events.model import Event
from bough.server.services import Services
from bough.types import new_id

from .site import Site

GOLDEN = Path(__file__).parents[1] / "golden" / "events"
KINDS = sorted(get_args(part)[0].__name__ if get_args(part) else part.__name__ for part in get_args(get_args(Event)[0]))
LABELS = frozenset(
    {
        "Edit",
        "from",
        "here",
        "Fork",
        "beside",
        "More",
        "Show",
        "lines",
        "Thought",
        "Result",
        "Arguments",
        "Raise",
        "open",
    }
)
"""Words that are in each row of a macro, so that nobody looks for them."""

HTML = {"Accept": "text/html"}


class Log(NamedTuple):
    """A conversation with an event of each kind, and the seq of each."""

    id: str
    seqs: Mapping[str, int]


def read_newest(kind: str) -> Any:
    """Return the event of the newest golden file of a kind, with an id of its own."""
    golden = json.loads(sorted(GOLDEN.glob(f"*/{kind}.json"))[-1].read_text())
    return decode(0, new_id(), kind, datetime.fromisoformat(golden["ts"]), golden["raw"].encode())


@pytest.fixture(scope="module")
def log(site: Site) -> Log:
    id = site.start("hello")
    head = site.client.get(f"/api/conversations/{id}").json()["head"]

    async def append(services: Services) -> None:
        await services.store.append(UUID(id), [read_newest(kind) for kind in KINDS])

    site.call(append)
    return Log(id, {kind: head + number for number, kind in enumerate(KINDS)})


class ShownEvent(NamedTuple):
    """What the page shows of an event: the seq that a search finds, the row's id, and words."""

    seq: int
    row: str
    words: list[str]


def read_shown(html: str, seq: int) -> ShownEvent:
    """Return what a timeline shows of an event: its row, or its line of a folded row."""
    if completed := re.search(rf'id="e{seq}" data-in="(\d+)"', html):
        seq = int(completed[1])
    row = next(row for row in re.split("(?=<article)", html) if f'id="e{seq}"' in row).split("</article>")[0]
    line = re.search(rf"<li[^>]*>{seq} (.*?)</li>", row)
    text = re.sub("<[^>]*>", " ", line[1] if line else row.partition(">")[2])
    row_id = re.search(r'id="(e\d+)"', row)
    assert row_id is not None
    return ShownEvent(seq, row_id[1], [word for word in re.findall(r"[^\W\d_]{4,}", text) if word not in LABELS])


def find(site: Site, log: Log, word: str) -> list[int]:
    answer = site.client.get(f"/c/{log.id}/find", params={"text": word})
    assert answer.status_code == 200, answer.text
    return answer.json()["matches"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_word_that_a_row_shows_is_found(site: Site, log: Log, kind: str) -> None:
    shown = read_shown(site.client.get(f"/c/{log.id}", headers=HTML).text, log.seqs[kind])
    assert shown.words
    assert [word for word in shown.words if shown.seq not in find(site, log, word)] == []


@pytest.mark.needs("chromium")
def test_a_word_of_each_kind_is_jumped_to(page: Page, site: Site, log: Log) -> None:
    html = site.client.get(f"/c/{log.id}", headers=HTML).text
    field = page.get_by_label("Find in this conversation")
    for kind, seq in log.seqs.items():
        shown = read_shown(html, seq)
        matches, word = min(
            ((find(site, log, word), word) for word in sorted(set(shown.words))), key=lambda pair: len(pair[0])
        )
        page.goto(f"{site.url}/c/{log.id}")
        field.fill(word)
        for number in range(1, matches.index(shown.seq) + 2):
            field.press("Enter")
            expect(page.locator("#matches"), kind).to_have_text(f"{number} of {len(matches)}")
        expect(page.locator(f"#{shown.row}"), kind).to_be_focused()
        expect(page.locator(f"#{shown.row}"), kind).to_contain_text(word, use_inner_text=True)
