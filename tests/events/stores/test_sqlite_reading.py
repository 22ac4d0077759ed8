"""How much SQLite reads for an answer: rows and plans, which no machine changes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bough.events import ConversationFilter, SqliteEventStore
from bough.events.model import UserMessage
from bough.events.stores.relational.reading import PAGE_ROWS
from bough.events.stores.sqlite.reading import SqliteReading

pytestmark = pytest.mark.anyio


def message() -> UserMessage:
    return UserMessage.text("x")


async def test_reading_backwards_looks_further_and_further(sqlite: SqliteEventStore) -> None:
    """Whoever finds what it looks for at the end has read 16 rows, however long the log and its lineage are."""
    tip = (await sqlite.create(events=[message() for _ in range(3_000)])).id
    for _ in range(20):
        tip = (await sqlite.fork(tip, events=[message()])).id
    pages: list[int] = []

    def count(log: SqliteReading, parts: Any, reverse: bool, rows: int = PAGE_ROWS) -> Any:
        events, left = page(log, parts, reverse, rows)
        pages.append(len(events))
        return events, left

    page = SqliteReading.page
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteReading, "page", count)
        await anext(aiter(sqlite.read(tip, reverse=True)))
        assert pages == [16]
        del pages[:]
        assert len([stored async for stored in sqlite.read(tip, reverse=True)]) == 3_020
    assert pages == [16, 64, 256, 1024, 1660]


async def test_a_list_of_an_owner_reads_no_rows_of_others(sqlite: SqliteEventStore) -> None:
    plan = await sqlite._read(
        lambda log: log.db.execute(
            "explain query plan " + log._records(ConversationFilter(owner="me"), "updated_desc"),
            dict.fromkeys(re.findall(r":(\w+)", log._records(ConversationFilter(owner="me"), "updated_desc"))),
        ).fetchall()
    )
    assert any("conversation_owner (owner=?)" in row[3] for row in plan), plan
