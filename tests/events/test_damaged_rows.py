"""A conversation's row that is not what was written says nothing, changes nothing, and breaks no other one."""

from __future__ import annotations

import io
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import psycopg
import pytest

from bough.errors import BoughError, CorruptLog
from bough.events import ConversationFilter, SqliteEventStore
from bough.events.check import every_record
from bough.events.model import StateChanged, UserMessage
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.types import new_id

pytestmark = pytest.mark.anyio

DAMAGE = {
    "id": "id = (select id from event limit 1)",
    "parent": "parent = 77",
    "base": "base = base - 1",
    "head": "head = head - 1",
    "generation": "generation = 7",
    "deleted": "deleted = {true}",
    "created": "created = created + 1",
    "updated": "updated = 1",
    "status": "status = 'finished'",
    "owner": "owner = 'somebody'",
    "title": "title = 'another'",
    "tags": "tags = '[1'",
    "config": "config = '{{'",
    "lineage": "lineage = null",
    "imported": "imported = 1",
    "forked_at": "forked_at = 1",
    "root": "root = null",
}


def message(text: str = "x") -> UserMessage:
    return UserMessage.text(text)


def damage(place: Any, what: str, number: int) -> None:
    """Change a row behind the store's back."""
    if place.url.startswith("sqlite:///"):
        with sqlite3.connect(place.url.removeprefix("sqlite:///")) as db:
            db.execute(f"update conversation set {what.format(true=1)} where cid = {number}")
        db.close()
        return
    with psycopg.connect(place.url, autocommit=True, options=f"-c search_path={place.schema}") as db:
        db.execute(f"update conversation set {what.format(true='true')} where cid = {number}".encode())


@pytest.fixture
async def store(place: Any) -> AsyncIterator[EventStore]:
    store = await place.open()
    yield store
    await store.aclose()


async def make_tree(store: EventStore) -> tuple[ConversationRecord, ConversationRecord, ConversationRecord]:
    """Return a root, a fork of it, and another root."""
    root = await store.create(events=[message(str(i)) for i in range(4)])
    given: Any = {"title": "fork", "tags": {"a": "b"}, "config": {"agent": "x"}, "lineage": {"reason": "r"}}
    fork = await store.fork(root.id, at=3, events=[message("own"), message("own")], **given)
    return root, fork, await store.create(events=[message()])


@pytest.mark.parametrize("column", DAMAGE)
async def test_a_damaged_row_breaks_only_itself(store: EventStore, place: Any, column: str) -> None:
    root, fork, other = await make_tree(store)
    damage(place, DAMAGE[column], fork.number)
    if column not in ("id", "deleted"):  # under its id, nothing is there
        uses: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.get(fork.id),
            lambda: store.append(fork.id, [message()]),
            lambda: store.append(fork.id, [message(), StateChanged(changes={"title": "new"})]),
            lambda: store.tail(fork.id, 1),
            lambda: store.fork(fork.id),
            lambda: store.fork(fork.id, at=1),
            lambda: store.acquire(fork.id, "me", 5),
            lambda: store.delete(fork.id),
            lambda: store.export(fork.id, io.BytesIO(), salvage=True),
        ]
        for use in uses:
            with pytest.raises(CorruptLog, match="the row of"):
                await use()
    page = await store.list(ConversationFilter(include_deleted=True))
    assert {record.id for record in page.items} == {root.id, other.id}
    assert len(page.damaged) == 1
    named = ConversationFilter(root=root.id, tags={"a": "b"}, agent="x")
    assert [record.id for record in (await store.list(named)).items] == []
    assert [record.id async for record in every_record(store)] == [root.id, other.id]
    findings = (await store.check()).findings
    assert [finding.problem.endswith("is damaged") for finding in findings] == [True]
    assert await store.append(root.id, [message()]) == 5
    assert await store.append(other.id, [message()]) == 2
    await store.export(root.id, io.BytesIO())


async def test_a_fork_of_a_damaged_source_cannot_be_read_and_says_why(store: EventStore, place: Any) -> None:
    """Where its shared events are is what the damaged row says."""
    root, fork, _ = await make_tree(store)
    damage(place, DAMAGE["base"], root.number)
    for use in (store.tail(fork.id, 1), store.fork(fork.id, at=1), store.lineage(fork.id)):
        with pytest.raises(CorruptLog, match=str(root.id)):
            await use
    assert (await store.get(fork.id)).head == 5


async def test_pages_go_on_behind_damaged_rows(store: EventStore, place: Any) -> None:
    made = [await store.create() for _ in range(7)]
    for record in made[2:6]:
        damage(place, "title = 'x'", record.number)
    ids, damaged, cursor, more = list[UUID](), 0, None, True
    while more:
        page = await store.list(None, cursor, 2, "created")
        ids += [record.id for record in page.items]
        damaged += len(page.damaged)
        cursor, more = page.next_cursor, page.next_cursor is not None
    assert (ids, damaged) == ([made[0].id, made[1].id, made[6].id], 4)
    assert [record.id for record in await store.scan(made[1].number, 2)] == [made[6].id]


Said: TypeAlias = tuple[ConversationRecord, list[Any]] | BoughError


async def read_all(store: EventStore, cids: list[UUID]) -> dict[UUID, Said]:
    """Return what a store says of conversations, or why it does not."""
    found: dict[UUID, Said] = {}
    for cid in cids:
        try:
            found[cid] = await store.get(cid), [tuple(stored) async for stored in store.read(cid)]
        except BoughError as error:
            found[cid] = error
    return found


def is_same(found: tuple[ConversationRecord, list[Any]], truth: tuple[ConversationRecord, list[Any]]) -> bool:
    """Whether that was written. The event at a cut may be missing: whoever reads the log there is told so."""
    if found[0].fork_event is None:
        found = replace(found[0], fork_event=truth[0].fork_event), found[1]
    return found == truth


@pytest.mark.parametrize("step", [61, pytest.param(7, marks=pytest.mark.slow)])
async def test_a_flipped_byte_gives_an_error_or_what_was_written(tmp_path: Path, step: int) -> None:
    """Any byte of the file: nothing that is read is other data, and what a list leaves out, a check finds."""
    path, copy = tmp_path / "log.db", tmp_path / "copy.db"
    store = await SqliteEventStore.open(path)
    root, fork, other = await make_tree(store)
    await store.append(root.id, [StateChanged(changes={"title": "A title ä", "tags": {"k": "v"}, "status": "paused"})])
    cids = [root.id, fork.id, other.id]
    truth: dict[UUID, Any] = {**await read_all(store, cids)}
    await store.aclose()
    raw = path.read_bytes()
    places = [place for place, byte in enumerate(raw) if byte][::step]
    for place in places:
        shutil.copyfile(path, copy)
        with copy.open("r+b") as file:
            file.seek(place)
            file.write(bytes([raw[place] ^ 0xFF]))
        try:
            damaged = await SqliteEventStore.open(copy)
        except BoughError:
            continue
        try:
            for cid, found in (await read_all(damaged, cids)).items():
                assert isinstance(found, BoughError) or is_same(found, truth[cid]), f"byte {place}"
            page = await damaged.list(ConversationFilter(include_deleted=True))
            for record in page.items:
                assert is_same((record, []), (truth[record.id][0], [])), f"byte {place}"
            if len(page.items) < len(cids):
                assert (await damaged.check()).findings, f"byte {place}"
        except BoughError:
            pass
        finally:
            await damaged.aclose()


async def test_an_id_that_is_nobody_s_is_not_found_beside_damage(store: EventStore, place: Any) -> None:
    _, fork, _ = await make_tree(store)
    damage(place, "title = 'x'", fork.number)
    with pytest.raises(BoughError) as missing:
        await store.get(new_id())
    assert missing.value.code == "not_found"
