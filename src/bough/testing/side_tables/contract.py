"""The contract of `EventStore.transaction`, `on_append` and `commits`, as tests."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from bough.errors import BoughError, Conflict, InvalidInput, NotFound, StoreError
from bough.events.model import StateChanged, UserMessage
from bough.events.queries import migrations
from bough.events.record import StoredEvent
from bough.events.side_tables import SideTables, Tables
from bough.events.store import StoreAdmin
from bough.testing.store.reading import export_bundle, make_messages, read_texts
from bough.types import new_id

NOTES = SideTables("note", "bough.testing.side_tables.sql")
"""The side tables of this contract: notes on conversations."""

_SECONDS = 20
_CREATE_STATEMENT = re.compile(
    r"^\s*create\s+(?:unique\s+)?(?:table|index|trigger|function)\s+(\w+)", re.IGNORECASE | re.MULTILINE
)


def check_names(package: SideTables) -> None:
    """Assert that the names of a package's tables and indexes begin with its name, in both SQL dialects."""
    for dialect in ("sqlite", "postgres"):
        steps = migrations(dialect, package.package)
        assert [step.version for step in steps] == list(range(1, len(steps) + 1)), dialect
        names = [name for step in steps for name in _CREATE_STATEMENT.findall(step.sql)]
        assert names, dialect
        foreign = [name for name in names if name != package.name and not name.startswith(f"{package.name}_")]
        assert not foreign, (dialect, foreign)
    assert package.statements("sqlite").keys() == package.statements("postgres").keys()


def write_note(cid: UUID, text: str = "a note", id: UUID | None = None) -> Callable[[Tables], UUID]:
    """Return a function for `transaction` that writes a note and returns its id."""
    note = id or new_id()

    def change(tables: Tables) -> UUID:
        tables.run("note.insert", id=note, cid=tables.number(cid), text=text, at=0)
        return note

    return change


async def read_notes(store: StoreAdmin, cid: UUID) -> list[str]:
    """Return the texts of a conversation's notes."""

    def read(tables: Tables) -> list[str]:
        return [row[1] for row in tables.run("note.of", cid=tables.number(cid))]

    return await store.transaction(NOTES, read, read_only=True)


async def count_notes(store: StoreAdmin) -> int:
    """Return the number of notes in the store."""
    return await store.transaction(NOTES, lambda tables: _get_first_column(tables.one("note.count")), read_only=True)


def _get_first_column(row: tuple[Any, ...] | None) -> Any:
    assert row is not None
    return row[0]


class SideTablesContract:
    """Tests of all rules of side tables."""

    pytestmark = pytest.mark.anyio

    async def test_rows_and_events_are_written_together(self, store: StoreAdmin) -> None:
        """One transaction writes a conversation, a fork, events, a lease and rows."""
        root = await store.create(events=make_messages("a"))

        def change(tables: Tables) -> tuple[UUID, UUID, int]:
            created = tables.create(events=make_messages("b"))
            fork = tables.fork(root.id, at=1, events=make_messages("c"), title="fork")
            head = tables.append(root.id, make_messages("d"), expected_head=1)
            lease = tables.acquire(created.id, "me", 60)
            tables.append(created.id, make_messages("e"), generation=lease.generation)
            for cid in (root.id, created.id, fork.id):
                write_note(cid)(tables)
            assert tables.get(created.id).head == 2
            return created.id, fork.id, head

        created, fork, head = await store.transaction(NOTES, change)
        assert head == 2
        assert await read_texts(store, created) == ["b", "e"]
        assert await read_texts(store, fork) == ["a", "c"]
        assert await read_texts(store, root.id) == ["a", "d"]
        assert (await store.get(fork)).title == "fork"
        with pytest.raises(Conflict):
            await store.acquire(created, "you", 60)
        assert [await read_notes(store, cid) for cid in (root.id, created, fork)] == [["a note"]] * 3
        assert (await store.check()).findings == ()

    async def test_a_change_that_raises_leaves_nothing(self, store: StoreAdmin) -> None:
        """If the change raises, no rows, conversations, events or leases are written."""
        root = await store.create(events=make_messages("a"))

        def change(tables: Tables) -> None:
            write_note(root.id)(tables)
            tables.create(events=make_messages("b"))
            tables.fork(root.id, events=make_messages("c"))
            tables.append(root.id, make_messages("d"))
            tables.acquire(root.id, "me", 60)
            raise LookupError("no")

        with pytest.raises(LookupError):
            await store.transaction(NOTES, change)
        assert await count_notes(store) == 0
        assert await read_texts(store, root.id) == ["a"]
        assert (await store.get(root.id)).generation == 0
        assert (await store.census()).events == 1
        assert (await store.acquire(root.id, "you", 60)).generation == 1

    async def test_a_refused_append_leaves_nothing(self, store: StoreAdmin) -> None:
        """If an operation of the change is rejected, none of its writes remain."""
        root = await store.create(events=make_messages("a"))
        event = make_messages("twice")
        await store.append(root.id, event)
        refused: list[tuple[Callable[[Tables], object], type[BoughError]]] = [
            (lambda tables: tables.append(root.id, make_messages("x"), expected_head=7), Conflict),
            (lambda tables: tables.append(root.id, make_messages("x"), generation=7), Conflict),
            (lambda tables: tables.append(root.id, [*make_messages("x"), *event]), Conflict),
            (lambda tables: tables.append(new_id(), make_messages("x")), NotFound),
            (lambda tables: tables.fork(root.id, at=9), InvalidInput),
            (lambda tables: tables.number(new_id()), NotFound),
        ]
        for act, error in refused:

            def change(tables: Tables, act: Callable[[Tables], object] = act) -> None:
                write_note(root.id)(tables)
                act(tables)

            with pytest.raises(error):
                await store.transaction(NOTES, change)
        assert await count_notes(store) == 0
        assert (await store.census()).events == 2

    async def test_an_error_of_the_database_cannot_be_swallowed(self, store: StoreAdmin) -> None:
        """A change that ignores a failed statement is not committed. A change may ignore that a lease is taken."""
        root = await store.create()
        id = new_id()
        await store.transaction(NOTES, write_note(root.id, id=id))

        def swallow(tables: Tables) -> None:
            write_note(root.id, "lost")(tables)
            try:
                write_note(root.id, id=id)(tables)
            except Conflict:
                return

        with pytest.raises(Conflict):
            await store.transaction(NOTES, swallow)
        await store.acquire(root.id, "one", 60)

        def skip(tables: Tables) -> str:
            write_note(root.id, "kept")(tables)
            try:
                tables.acquire(root.id, "two", 60)
            except Conflict:
                return "skipped"
            return "taken"

        assert await store.transaction(NOTES, skip) == "skipped"
        assert await read_notes(store, root.id) == ["a note", "kept"]

    async def test_two_hundred_changes_at_once(self, store: StoreAdmin) -> None:
        """Concurrent changes that read and write: none is lost, and none sees another's partial change."""
        root = await store.create()
        id = await store.transaction(NOTES, write_note(root.id))

        def change(tables: Tables) -> int:
            new_value: int = _get_first_column(tables.one("note.raise", id=id))
            tables.append(root.id, make_messages(new_value))
            return new_value

        values = await asyncio.gather(*(store.transaction(NOTES, change) for _ in range(200)))
        assert sorted(values) == list(range(1, 201))
        assert await read_texts(store, root.id) == [str(n) for n in range(1, 201)]

    async def test_a_read_only_change_writes_nothing(self, store: StoreAdmin) -> None:
        """A read-only change can write neither events nor rows."""
        root = await store.create()
        writes: list[Callable[[Tables], object]] = [
            lambda tables: tables.append(root.id, make_messages("x")),
            lambda tables: tables.create(),
            lambda tables: tables.acquire(root.id, "me", 60),
        ]
        for act in writes:
            with pytest.raises(InvalidInput):
                await store.transaction(NOTES, act, read_only=True)
        with pytest.raises(StoreError):
            await store.transaction(NOTES, write_note(root.id), read_only=True)
        assert await count_notes(store) == 0
        assert (await store.get(root.id)).head == 0

    async def test_tables_are_valid_only_inside_the_change(self, store: StoreAdmin) -> None:
        """After the change, the tables raise. Coroutine functions and unknown statements are rejected too."""
        root = await store.create()
        leaked: list[Tables] = []
        await store.transaction(NOTES, leaked.append)
        with pytest.raises(InvalidInput):
            leaked[0].append(root.id, make_messages("late"))

        async def later(tables: Tables) -> None:
            write_note(root.id)(tables)

        with pytest.raises(InvalidInput):
            await store.transaction(NOTES, later)
        with pytest.raises(InvalidInput):
            await store.transaction(NOTES, lambda tables: tables.run("note.nothing"))
        assert (await store.get(root.id)).head == 0

    async def test_ids_and_times_have_one_form(self, store: StoreAdmin) -> None:
        """Ids are returned as 16 bytes; the store's time is in microseconds."""
        root = await store.create()
        id = await store.transaction(NOTES, write_note(root.id))
        rows = await store.transaction(NOTES, lambda tables: tables.run("note.of", cid=tables.number(root.id)))
        assert rows == [(id.bytes, "a note", 0)]
        first, second = await store.transaction(NOTES, lambda tables: (tables.now(), tables.now()))
        assert 1_700_000_000_000_000 < first <= second

    async def test_tables_are_cleaned_by_their_triggers(self, store: StoreAdmin) -> None:
        """Rows are deleted with their conversation, also if it becomes a tombstone that a fork still needs."""
        deleted, tombstone = [await store.create(events=make_messages("a")) for _ in range(2)]
        fork = await store.fork(tombstone.id)
        for record in (deleted, tombstone, fork):
            await store.transaction(NOTES, write_note(record.id))
        await store.delete(deleted.id)
        await store.delete(tombstone.id)
        assert await count_notes(store) == 1
        await store.transaction(NOTES, lambda tables: tables.delete(fork.id))
        assert await count_notes(store) == 0
        assert (await store.census()).events == 0

    async def test_rows_follow_events(self, store: StoreAdmin) -> None:
        """A follower runs in the transaction of an append, create, fork or change, for its kinds; not for an import."""

        def add(tables: Tables, cid: UUID, stored: StoredEvent) -> None:
            text = f"{stored.seq} {stored.kind}"
            tables.run("note.insert", id=stored.id, cid=tables.number(cid), text=text, at=0)

        store.on_append(NOTES, ("UserMessage",), add)
        store.on_append(NOTES, ("UserMessage",), add)
        root = await store.create(events=[StateChanged(changes={"title": "t"}), *make_messages("a")])
        await asyncio.gather(*(store.append(root.id, make_messages(n)) for n in range(3)))
        await store.append(root.id, [StateChanged(changes={"title": "u"})])
        fork = await store.fork(root.id, events=make_messages("f"))
        await store.transaction(NOTES, lambda tables: tables.append(fork.id, make_messages("g")))
        assert await read_notes(store, root.id) == [f"{n} UserMessage" for n in range(1, 5)]
        assert await read_notes(store, fork.id) == ["6 UserMessage", "7 UserMessage"]
        bundle = await export_bundle(store, fork.id)
        await store.delete(fork.id)
        await store.delete(root.id)
        await store.import_(io.BytesIO(bundle))
        assert await count_notes(store) == 0

    async def test_an_error_of_a_follower_fails_the_append(self, store: StoreAdmin) -> None:
        """If a follower raises for an event, the append of that event fails, but no other append in the same commit."""

        def add(tables: Tables, cid: UUID, stored: StoredEvent) -> None:
            tables.run("note.insert", id=stored.id, cid=tables.number(cid), text="x", at=0)
            assert isinstance(stored.event, UserMessage)
            if stored.event.plain == "bad":
                raise LookupError("bad")

        store.on_append(NOTES, ("UserMessage",), add)
        root = await store.create()
        texts = ["a", "bad", "b", "c", "bad", "d"]
        results = await asyncio.gather(
            *(store.append(root.id, make_messages(text)) for text in texts), return_exceptions=True
        )
        assert [isinstance(result, LookupError) for result in results] == [text == "bad" for text in texts]
        assert sorted(await read_texts(store, root.id)) == ["a", "b", "c", "d"]
        assert await count_notes(store) == 4
        with pytest.raises(InvalidInput):
            store.on_append(NOTES, ("StateChanged",), lambda tables, cid, stored: tables.delete(cid))
            await store.append(root.id, [StateChanged(changes={"title": "t"})])
        assert (await store.get(root.id)).title is None

    async def test_tables_of_a_newer_version_are_rejected(self, store: StoreAdmin) -> None:
        """An older program cannot use the tables; it can still append events, and followers are skipped."""
        root = await store.create()
        later = SideTables("later", NOTES.package)

        def upgrade(tables: Tables) -> None:
            tables.connection.execute("insert into beside (package, version) values ('later', 99)")

        await store.transaction(NOTES, upgrade)
        with pytest.raises(StoreError, match="99"):
            await store.transaction(later, lambda tables: None)
        store.on_append(later, ("UserMessage",), lambda tables, cid, stored: pytest.fail("called"))
        assert await store.append(root.id, make_messages("a")) == 1

    async def test_commits_are_reported(self, store: StoreAdmin) -> None:
        """Commits of events, and of rows alone, are reported; closing the store ends the iteration."""
        root = await store.create()
        await store.transaction(NOTES, write_note(root.id))
        commits = aiter(store.commits())
        for act in (
            lambda: store.append(root.id, make_messages("a")),
            lambda: store.transaction(NOTES, write_note(root.id)),
        ):
            next_commit = asyncio.ensure_future(anext(commits))
            await asyncio.sleep(0)  # lets the task start to wait, so that the commit cannot precede it
            await act()
            async with asyncio.timeout(_SECONDS):
                await next_commit
        ended = asyncio.ensure_future(anext(commits, "ended"))
        await asyncio.sleep(0)
        await store.aclose()
        async with asyncio.timeout(_SECONDS):
            while await ended != "ended":  # commits reported before the store was closed
                ended = asyncio.ensure_future(anext(commits, "ended"))
