"""Live tails: many readers of one conversation cost one read each, not one an event."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bough.events import SqliteEventStore
from bough.events.model import UserMessage
from bough.events.record import StoredEvent

pytestmark = pytest.mark.anyio

READERS = 300
EVENTS = 30


async def test_many_readers_share_what_is_appended(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create()
    questions = 0
    read = sqlite._read

    async def counting(*question: Any, **how: Any) -> Any:
        nonlocal questions
        questions += 1
        return await read(*question, **how)

    sqlite._read = counting
    tails = [asyncio.create_task(first(sqlite, record.id, EVENTS)) for _ in range(READERS)]
    while len(sqlite._hub._watchers.get(record.id, ())) < READERS or questions < READERS:
        await asyncio.sleep(0)  # every reader has begun
    started = questions
    for i in range(EVENTS):
        await sqlite.append(record.id, [UserMessage.text(str(i))])
    for events in await asyncio.gather(*tails):
        assert [stored.seq for stored in events] == list(range(EVENTS))
    assert questions - started < READERS * 3, "readers read the store for events they were handed"
    assert not sqlite._hub.has_watchers()


async def test_a_watcher_of_rows_is_not_woken_by_conversations_and_events(sqlite: SqliteEventStore) -> None:
    """An idle dispatcher of tasks looks at its tables only when a commit may have changed them."""
    with sqlite._hub.watch_commits() as every, sqlite._hub.watch_commits(appends=False) as rows:
        async with asyncio.timeout(30):
            await rows.arrived.wait()  # the first look for commits of other processes
            record = await sqlite.create()
            await sqlite.append(record.id, [UserMessage.text("a")])
            await sqlite.fork(record.id)
            rows.arrived.clear()
            every.arrived.clear()
            for write in (
                lambda: sqlite.create(),
                lambda: sqlite.append(record.id, [UserMessage.text("b")]),
                lambda: sqlite.fork(record.id),
            ):
                await write()
                await every.arrived.wait()
                every.arrived.clear()
                assert not rows.arrived.is_set()
            lease = await sqlite.acquire(record.id, "one", 60)
            await rows.arrived.wait()
            rows.arrived.clear()
            await sqlite.release(lease)
            await rows.arrived.wait()


async def first(store: SqliteEventStore, cid: object, n: int) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    tail = store.subscribe(cid)
    async with asyncio.timeout(30):
        async for stored in tail:
            found.append(stored)
            if len(found) == n:
                break
    await tail.aclose()
    return found
