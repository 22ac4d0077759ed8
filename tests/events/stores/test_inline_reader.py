"""Small questions are answered without a thread; everything else is left to threads."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bough.errors import NotFound, StoreError
from bough.events import SqliteEventStore
from bough.events.model import ToolReturned, UserMessage
from bough.events.stores.sqlite import readers
from bough.types import new_id

pytestmark = pytest.mark.anyio

LENGTH = 5 * readers.MAX_ROWS


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not a slow disk."""
    monkeypatch.setattr(readers, "SLOW_SECONDS", 3600.0)


def messages(count: int) -> list[UserMessage]:
    return [UserMessage.text(str(i)) for i in range(count)]


def threads(store: SqliteEventStore) -> int:
    """How many reader threads there are; the first starts with the first question that a thread is asked."""
    return len(store._readers._threads)


async def read(store: SqliteEventStore, *place: Any) -> list[int]:
    return [stored.seq async for stored in store.read(*place)]


async def test_small_questions_need_no_thread(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create(events=messages(LENGTH))
    fork = await sqlite.fork(record.id, at=100, events=messages(3))
    assert (await sqlite.get(record.id)).head == LENGTH
    assert [stored.seq for stored in await sqlite.tail(fork.id, 50)] == list(range(53, 103))
    assert await read(sqlite, record.id, 100, 100 + readers.MAX_ROWS) == list(range(100, 100 + readers.MAX_ROWS))
    assert await sqlite.lineage(fork.id) == [(record.id, 0, 100), (fork.id, 100, 103)]
    (stored,) = await sqlite.tail(record.id, 1)
    assert await sqlite.locate(stored.id) == (record.id, LENGTH - 1)
    with pytest.raises(NotFound):
        await sqlite.get(new_id())
    assert threads(sqlite) == 0


async def test_what_was_just_appended_is_seen(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create()
    for seq in range(50):
        await sqlite.append(record.id, messages(1))
        assert [stored.seq for stored in await sqlite.tail(record.id, 1)] == [seq]
    assert threads(sqlite) == 0


Question = Callable[[SqliteEventStore, Any], Awaitable[Any]]

LARGE: dict[str, tuple[Question, int]] = {
    "many events": (lambda store, cid: store.tail(cid, readers.MAX_ROWS + 1), readers.MAX_ROWS + 1),
    "a whole log": (lambda store, cid: read(store, cid), LENGTH),
    "a list": (lambda store, cid: store.children(cid), 0),
}


@pytest.mark.parametrize("what", LARGE)
async def test_large_questions_are_left_to_threads(sqlite: SqliteEventStore, what: str) -> None:
    record = await sqlite.create(events=messages(LENGTH))
    question, answers = LARGE[what]
    assert len(await question(sqlite, record.id)) == answers
    assert threads(sqlite) == 1


async def test_few_conversations_are_listed_without_a_thread(
    sqlite: SqliteEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [(await sqlite.create()).id for _ in range(readers.MAX_RECORDS + 2)]
    first = await sqlite.list(limit=readers.MAX_RECORDS, order="created")
    second = await sqlite.list(cursor=first.next_cursor, limit=readers.MAX_RECORDS, order="created")
    assert [record.id for record in (*first.items, *second.items)] == ids
    assert threads(sqlite) == 0
    monkeypatch.setattr(readers, "_MAX_LIST_STEPS", 0)  # as if there were many conversations
    assert [record.id for record in (await sqlite.list(limit=3, order="created")).items] == ids[:3]
    assert threads(sqlite) == 1
    assert (await sqlite.get(ids[0])).id == ids[0], "the limit has ended with the list"


async def test_a_long_page_of_conversations_is_left_to_threads(sqlite: SqliteEventStore) -> None:
    await sqlite.create()
    assert len((await sqlite.list(limit=readers.MAX_RECORDS + 1)).items) == 1
    assert threads(sqlite) == 1


@pytest.mark.parametrize(("size", "count"), [(readers.MAX_BYTES, 1), (readers.MAX_BYTES // 8, 9)])
async def test_many_bytes_are_left_to_threads(sqlite: SqliteEventStore, size: int, count: int) -> None:
    large = [ToolReturned(tool_call_id="1", tool="t", result="x" * size) for _ in range(count)]
    record = await sqlite.create(events=large)
    assert len(await sqlite.tail(record.id, 10)) == count
    assert threads(sqlite) == 1


async def test_a_long_lineage_is_left_to_threads(sqlite: SqliteEventStore) -> None:
    tip = (await sqlite.create(events=messages(1))).id
    for _ in range(readers.MAX_ROWS):
        tip = (await sqlite.fork(tip, events=messages(1))).id
    assert threads(sqlite) == 0
    assert len(await sqlite.tail(tip, 5)) == 5
    assert len(await sqlite.lineage(tip)) == readers.MAX_ROWS + 1
    assert threads(sqlite) == 1


async def test_nobody_waits_for_another_or_for_a_lock(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create(events=messages(3))
    with sqlite._readers._inline._lock:  # as if another loop were being answered
        assert len(await sqlite.tail(record.id, 5)) == 3
    assert threads(sqlite) == 1


async def test_errors_are_left_to_threads_which_know_what_they_mean(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create()
    with pytest.raises(StoreError) as error:
        await sqlite._read(lambda log: log.db.execute("select 1 from nowhere"), small=True)
    assert error.value.details["path"] == str(sqlite.path)
    assert threads(sqlite) == 1
    assert (await sqlite.get(record.id)).head == 0


async def test_after_a_slow_answer_threads_are_asked_for_a_while(
    sqlite: SqliteEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await sqlite.create()
    monkeypatch.setattr(readers, "SLOW_SECONDS", 0.0)  # every answer is slow
    await sqlite.get(record.id)
    assert threads(sqlite) == 0
    await sqlite.get(record.id)
    assert threads(sqlite) == 1
    assert sqlite._readers._inline.try_query(lambda log: log.get(record.id)) is None


async def test_a_caller_that_asks_and_asks_lets_others_run(sqlite: SqliteEventStore) -> None:
    record = await sqlite.create()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(10 * readers._MAX_CONSECUTIVE_INLINE):
        await sqlite.get(record.id)
    task.cancel()
    assert turns >= 10
    assert threads(sqlite) == 0
