"""The contract of an event store as tests: subclass it, give it a `store` fixture, and pytest runs every rule.

```python
class TestMyStore(EventStoreContract):
    @pytest.fixture
    async def store(self):
        async with my_store() as store:
            yield store
```
Each test has an empty store. The tests need anyio's pytest plugin and an `anyio_backend` fixture of "asyncio".
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest

from bough.errors import Conflict, InvalidInput, NotFound, PermissionDenied, StoreError
from bough.events.codec import ERASED
from bough.events.memory import MemoryEventStore
from bough.events.model import (
    BaseEvent,
    ConversationStarted,
    Event,
    ModelResponded,
    StateChanged,
    ToolCalled,
    ToolReturned,
    UserMessage,
)
from bough.events.record import ConversationFilter, ConversationRecord, StoredEvent
from bough.events.store import EventStore
from bough.types import new_id

SECONDS = 20


def said(*texts: object) -> list[Event]:
    """Return a user message for each text."""
    return [UserMessage.text(str(text)) for text in texts]


async def log_of(store: EventStore, cid: UUID) -> list[StoredEvent]:
    """Return the whole log."""
    return [stored async for stored in store.read(cid)]


async def texts_of(store: EventStore, cid: UUID) -> list[str]:
    """Return what the messages of a log say."""
    return [text_of(stored) for stored in await log_of(store, cid)]


def text_of(stored: StoredEvent) -> str:
    """Return what a message says."""
    assert isinstance(stored.event, UserMessage)
    return stored.event.plain


async def take(store: EventStore, cid: UUID, n: int, after: int = -1) -> list[StoredEvent]:
    """Return the first n events of a subscription."""
    found: list[StoredEvent] = []
    async with asyncio.timeout(SECONDS):
        async for stored in store.subscribe(cid, after):
            found.append(stored)
            if len(found) == n:
                break
    return found


class EventStoreContract:
    """Every rule of `EventStore`."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    async def store(self) -> EventStore:
        """An empty store; subclasses give theirs."""
        raise NotImplementedError("a contract test needs a `store` fixture")

    # conversations

    async def test_a_created_conversation_is_found(self, store: EventStore) -> None:
        """A record is returned as it was given."""
        now = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
        cid = new_id()
        given = ConversationRecord(
            id=cid, root=cid, title="Ünïcode ✓", tags={"a": "b"}, config={"agent": "x", "n": [1, None]},
            owner="me", lineage={"why": "because"}, status="paused", created=now, updated=now,
        )  # fmt: skip
        assert await store.create(given) == given
        assert await store.get(cid) == given

    async def test_create_without_a_record_makes_a_root(self, store: EventStore) -> None:
        """A root is its own root, has no parent and is idle."""
        record = await store.create()
        assert (record.root, record.parent, record.base, record.head) == (record.id, None, 0, 0)
        assert (record.forked_from, record.forked_at, record.fork_event) == (None, None, None)
        assert (record.status, record.generation, record.deleted) == ("idle", 0, False)
        assert await store.get(record.id) == record
        assert await log_of(store, record.id) == []
        assert await store.lineage(record.id) == []

    async def test_create_writes_its_events(self, store: EventStore) -> None:
        """The first events come with the record, and their projection too."""
        events = [ConversationStarted(title="t"), StateChanged(changes={"title": "later", "tags": {"k": "v"}})]
        record = await store.create(events=events)
        assert (record.head, record.title, record.tags) == (2, "later", {"k": "v"})
        assert [stored.event for stored in await log_of(store, record.id)] == events

    async def test_an_id_is_used_once(self, store: EventStore) -> None:
        """Creating with a taken id is a conflict and changes nothing."""
        record = await store.create(events=said("a"))
        with pytest.raises(Conflict):
            await store.create(record, events=said("b"))
        assert await texts_of(store, record.id) == ["a"]
        assert len((await store.list()).items) == 1

    async def test_what_does_not_exist_is_not_found(self, store: EventStore) -> None:
        """Every method says NotFound for an unknown conversation."""
        nobody = new_id()
        for call in (
            store.get(nobody), store.append(nobody, said("a")), store.tail(nobody, 1), store.fork(nobody),
            store.children(nobody), store.lineage(nobody), store.acquire(nobody, "me", 1), store.delete(nobody),
            store.ancestry(nobody), store.peek(nobody), store.locate(new_id()), log_of(store, nobody),
            take(store, nobody, 1),
        ):  # fmt: skip
            with pytest.raises(NotFound):
                await call

    # appending and reading

    async def test_events_read_back_as_they_were(self, store: EventStore) -> None:
        """Id, kind, time to the microsecond and payload survive."""
        call = ToolCalled(tool_call_id="1", tool="t", arguments={"a": [1, 2.5, "ü", None, {"b": True}]})
        events: Sequence[Event] = [*said("hi"), call, ToolReturned(tool_call_id="1", tool="t", result={"x": 1})]
        record = await store.create()
        assert await store.append(record.id, events) == 3
        log = await log_of(store, record.id)
        assert [stored.event for stored in log] == events
        assert [(s.id, s.kind, s.ts) for s in log] == [(e.id, e.kind, e.ts) for e in events]
        assert [s.seq for s in log] == [0, 1, 2]

    async def test_seqs_are_gap_free_under_concurrency(self, store: EventStore) -> None:
        """Many appenders at once get consecutive places and lose nothing."""
        record = await store.create()
        heads = await asyncio.gather(*(store.append(record.id, said(i)) for i in range(50)))
        assert sorted(heads) == list(range(1, 51))
        log = await log_of(store, record.id)
        assert [stored.seq for stored in log] == list(range(50))
        assert {text_of(stored) for stored in log} == {str(i) for i in range(50)}
        assert all(text_of(log[head - 1]) == str(i) for i, head in enumerate(heads))

    async def test_an_append_is_all_or_nothing(self, store: EventStore) -> None:
        """A batch with one event that is stored already writes nothing, and the next append works."""
        old, *new = said("old", "new", "newer")
        record = await store.create(events=[old])
        with pytest.raises(Conflict):
            await store.append(record.id, [*new, old])
        with pytest.raises(Conflict):
            await store.append(record.id, [new[0], new[0]])
        assert await texts_of(store, record.id) == ["old"]
        assert await store.append(record.id, new) == 3

    async def test_a_failing_append_harms_no_other(self, store: EventStore) -> None:
        """Of appends made at the same time only the bad ones fail."""
        old = said("old")
        record = await store.create(events=old)
        calls = [store.append(record.id, [*said(i), *old] if i % 3 == 0 else said(i)) for i in range(30)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(result, Conflict) for result in results] == [i % 3 == 0 for i in range(30)]
        assert len(await log_of(store, record.id)) == 21

    async def test_appending_nothing_changes_nothing(self, store: EventStore) -> None:
        """An empty batch returns the head and leaves the time of change alone."""
        record = await store.create(events=said("a"))
        assert await store.append(record.id, []) == 1
        assert await store.get(record.id) == record

    async def test_expected_head_lets_exactly_one_win(self, store: EventStore) -> None:
        """Of two appends with one `expected_head` one gets a conflict."""
        record = await store.create(events=said("a"))
        calls = [store.append(record.id, said(i), expected_head=1) for i in range(8)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(map(type, results), key=str) == sorted([int, *[Conflict] * 7], key=str)
        assert (await store.get(record.id)).head == 2

    async def test_state_changes_reach_the_record(self, store: EventStore) -> None:
        """`status`, `title` and `tags` follow the events; other changes stay in the log."""
        record = await store.create()
        await store.append(record.id, [StateChanged(changes={"status": "running", "policy": {"a": 1}})])
        await store.append(
            record.id, [StateChanged(changes={"title": "T"}), StateChanged(changes={"tags": {"x": "y"}})]
        )
        now = await store.get(record.id)
        assert (now.status, now.title, now.tags, now.head) == ("running", "T", {"x": "y"}, 3)
        await store.append(record.id, [StateChanged(changes={"status": "idle", "title": None, "tags": {}})])
        now = await store.get(record.id)
        assert (now.status, now.title, now.tags) == ("idle", None, {})

    async def test_odd_titles_are_made_fit(self, store: EventStore) -> None:
        """Lone surrogates and NUL characters in a title or tag never make an append fail."""
        record = await store.create(
            events=[StateChanged(changes={"title": "a\ud800b\x00c", "tags": {"k\x00": "\udfff"}})]
        )
        assert (record.title, record.tags) == ("a?bc", {"k": "?"})
        assert await store.get(record.id) == record

    @pytest.mark.parametrize("changes", [{"status": "dancing"}, {"title": 7}, {"tags": ["a"]}, {"tags": {"a": 1}}])
    async def test_a_bad_state_change_is_refused(self, store: EventStore, changes: dict[str, object]) -> None:
        """A status, title or tags of the wrong shape is invalid input and writes nothing."""
        record = await store.create()
        with pytest.raises(InvalidInput):
            await store.append(record.id, [*said("a"), StateChanged(changes=changes)])
        assert await store.get(record.id) == record

    async def test_reading_between_two_places(self, store: EventStore) -> None:
        """`start`, `stop` and `reverse` cut as slices do, and out of range is empty."""
        record = await store.create(events=said(*range(10)))
        fork = await store.fork(record.id, at=6, events=said("f6", "f7"))

        async def seqs(**fields: int | bool | None) -> list[int]:
            return [stored.seq async for stored in store.read(fork.id, **fields)]  # pyright: ignore[reportArgumentType]

        assert await seqs(start=4, stop=7) == [4, 5, 6]
        assert await seqs(start=4, stop=7, reverse=True) == [6, 5, 4]
        assert await seqs(start=-5) == list(range(8))
        assert await seqs(start=8) == await seqs(start=5, stop=5) == await seqs(start=99, stop=3) == []
        assert await seqs(stop=100, reverse=True) == list(range(7, -1, -1))

    async def test_tail(self, store: EventStore) -> None:
        """The last n, oldest first, across the cut."""
        record = await store.create(events=said(*range(10)))
        fork = await store.fork(record.id, at=6, events=said("f6", "f7"))
        assert [text_of(stored) for stored in await store.tail(fork.id, 3)] == ["5", "f6", "f7"]
        assert len(await store.tail(fork.id, 100)) == 8
        assert await store.tail(fork.id, 0) == []

    async def test_a_log_of_many_pages(self, store: EventStore) -> None:
        """A log longer than any page reads whole, both ways."""
        record = await store.create(events=said(*range(3000)))
        fork = await store.fork(record.id, at=2500, events=said(*range(700)))
        assert [stored.seq async for stored in store.read(fork.id)] == list(range(3200))
        assert [stored.seq async for stored in store.read(fork.id, reverse=True)] == list(range(3199, -1, -1))

    async def test_large_and_odd_payloads(self, store: EventStore) -> None:
        """Ten megabytes, lone surrogates and NUL characters: stored, not refused, and the next append works."""
        record = await store.create()
        big = ToolReturned(tool_call_id="1", tool="t", result="x" * 10_000_000)
        odd = ToolReturned(tool_call_id="2", tool="t", result="a\ud800b\x00c")
        await store.append(record.id, [big])
        await store.append(record.id, [odd, *said("next")])
        log = await log_of(store, record.id)
        assert log[0].event == big
        assert isinstance(log[1].event, ToolReturned)
        assert log[1].event.result == "a\ufffdb\x00c"
        assert text_of(log[2]) == "next"

    async def test_locate(self, store: EventStore) -> None:
        """An event's owner and place; with `cid` only within that log."""
        events = said(*range(4))
        record = await store.create(events=events)
        early, late = await store.fork(record.id, at=2), await store.fork(record.id, at=4)
        assert await store.locate(events[2].id) == (record.id, 2)
        assert await store.locate(events[2].id, cid=late.id) == (record.id, 2)
        with pytest.raises(NotFound):
            await store.locate(events[2].id, cid=early.id)

    # forks

    async def test_a_fork_is_an_exact_prefix(self, store: EventStore) -> None:
        """At every cut the fork has the same rows, and its own events go on from there."""
        record = await store.create(events=said(*range(5)))
        log = await log_of(store, record.id)
        for cut in range(6):
            fork = await store.fork(record.id, at=cut)
            assert await log_of(store, fork.id) == log[:cut]
            assert (fork.base, fork.head, fork.forked_from, fork.forked_at) == (cut, cut, record.id, cut)
            assert (fork.root, fork.parent) == (record.id, record.id if cut else None)
            assert fork.fork_event == (log[cut - 1].id if cut else None)
            assert await store.append(fork.id, said("own")) == cut + 1
            assert (await log_of(store, fork.id))[:-1] == log[:cut]
        assert await log_of(store, record.id) == log
        assert (await store.get(record.id)).updated == record.updated

    async def test_a_fork_attaches_to_the_owner_of_its_last_event(self, store: EventStore) -> None:
        """Forks of unmodified forks do not lengthen the lineage."""
        root = await store.create(events=said(*range(4)))
        child = await store.fork(root.id)
        grandchild = await store.fork(child.id)
        assert (grandchild.parent, grandchild.forked_from) == (root.id, child.id)
        await store.append(child.id, said("c4"))
        assert (await store.fork(child.id)).parent == child.id
        assert (await store.fork(child.id, at=4)).parent == root.id
        assert (await store.fork(child.id, at=0)).parent is None

    async def test_fork_by_event_id(self, store: EventStore) -> None:
        """An id means: share up to and with this event. A sibling's event is not found."""
        events = said(*range(4))
        root = await store.create(events=events)
        assert (await store.fork(root.id, at=events[1].id)).head == 2
        fork, own = await store.fork(root.id, at=1), said("own")
        await store.append(fork.id, own)
        assert (await store.fork(fork.id, at=own[0].id)).head == 2
        for at in (events[2].id, new_id()):
            with pytest.raises(NotFound):
                await store.fork(fork.id, at=at)

    async def test_bad_cuts_write_nothing(self, store: EventStore) -> None:
        """Negative or beyond the head is invalid input; nothing is there afterwards."""
        root = await store.create(events=said(*range(3)))
        for at in (-1, 4, 10**9):
            with pytest.raises(InvalidInput):
                await store.fork(root.id, at=at, id=UUID(int=7), events=said("x"))
        with pytest.raises(NotFound):
            await store.get(UUID(int=7))
        assert len((await store.list()).items) == 1

    async def test_a_fork_inherits_nothing_by_itself(self, store: EventStore) -> None:
        """Title, tags, config and owner are what is given; events given come first."""
        root = await store.create(events=[*said("a"), StateChanged(changes={"title": "T", "tags": {"a": "b"}})])
        plain = await store.fork(root.id)
        assert (plain.title, plain.tags, plain.config, plain.owner, plain.status) == (None, {}, {}, None, "idle")
        own = [StateChanged(changes={"status": "paused"}), *said("first")]
        fork = await store.fork(
            root.id, at=1, title="F", tags={"x": "y"}, config={"agent": "b"}, owner="me", lineage={"r": 1}, events=own
        )
        assert (fork.title, fork.tags, fork.config, fork.owner) == ("F", {"x": "y"}, {"agent": "b"}, "me")
        assert (fork.lineage, fork.status, fork.head) == ({"r": 1}, "paused", 3)
        assert [stored.event for stored in (await log_of(store, fork.id))[1:]] == own

    async def test_the_same_fork_twice_is_one_fork(self, store: EventStore) -> None:
        """One id with the same arguments is the same fork, however often and at once; with others a conflict."""
        root = await store.create(events=said(*range(3)))
        other = await store.create(events=said("x"))
        id = new_id()
        forks = await asyncio.gather(*(store.fork(root.id, at=2, id=id, lineage={"r": "x"}) for _ in range(10)))
        assert {fork.id for fork in forks} == {id}
        assert len(await store.children(root.id)) == 1
        await store.append(id, said("own"))
        assert (await store.fork(root.id, at=2, id=id, lineage={"r": "x"})).head == 3
        for call in (
            store.fork(root.id, at=1, id=id, lineage={"r": "x"}),
            store.fork(root.id, at=2, id=id, lineage={"r": "y"}),
            store.fork(other.id, id=id, lineage={"r": "x"}),
            store.fork(root.id, id=other.id),
            store.create((await store.get(id))),
        ):
            with pytest.raises(Conflict):
                await call

    async def test_a_fork_with_a_stored_event_writes_nothing(self, store: EventStore) -> None:
        """A fork whose first event exists already is refused whole."""
        events = said("a")
        root = await store.create(events=events)
        with pytest.raises(Conflict):
            await store.fork(root.id, events=[*said("new"), *events])
        assert await store.children(root.id) == []

    async def test_lineage_and_common_ancestor(self, store: EventStore) -> None:
        """Disjoint ranges, oldest first; what two logs share ends where they part."""
        root = await store.create(events=said(*range(6)))
        a = await store.fork(root.id, at=4, events=said("a4", "a5"))
        b = await store.fork(a.id, at=5, events=said("b5"))
        c = await store.fork(root.id, at=2)
        assert await store.lineage(b.id) == [(root.id, 0, 4), (a.id, 4, 5), (b.id, 5, 6)]
        assert await store.lineage(c.id) == [(root.id, 0, 2)]
        assert await store.common_ancestor(a.id, b.id) == (a.id, 5)
        assert await store.common_ancestor(b.id, root.id) == (root.id, 4)
        assert await store.common_ancestor(b.id, c.id) == await store.common_ancestor(c.id, b.id) == (root.id, 2)
        assert await store.common_ancestor(root.id, root.id) == (root.id, 6)
        assert await store.common_ancestor(root.id, (await store.create(events=said("x"))).id) is None
        assert await store.common_ancestor(root.id, (await store.fork(root.id, at=0)).id) is None

    async def test_children_and_ancestry(self, store: EventStore) -> None:
        """Children are forks of this conversation, oldest first; ancestry is everything above."""
        root = await store.create(events=said("a"))
        first, second = await store.fork(root.id), await store.fork(root.id)
        third = await store.fork(first.id, at=0)
        assert [child.id for child in await store.children(root.id)] == [first.id, second.id]
        assert [child.id for child in await store.children(first.id)] == [third.id]
        assert [above.id for above in await store.ancestry(third.id)] == [root.id, first.id]
        assert await store.ancestry(root.id) == []

    # live tails

    async def test_a_subscriber_gets_every_event_once(self, store: EventStore) -> None:
        """History, then live events, in order; whatever was appended meanwhile."""
        root = await store.create(events=said(*range(3)))
        fork = await store.fork(root.id, at=2)
        tails = [asyncio.create_task(take(store, fork.id, 42)) for _ in range(3)]
        for i in range(40):
            await store.append(fork.id, said(i))
        for tail in tails:
            assert [stored.seq for stored in await tail] == list(range(42))
        assert [stored.seq for stored in await take(store, fork.id, 2, after=39)] == [40, 41]

    async def test_a_slow_subscriber_misses_nothing(self, store: EventStore) -> None:
        """A subscriber that falls behind by more than any buffer still gets all."""
        record = await store.create()
        tail = store.subscribe(record.id)
        await store.append(record.id, said("first"))
        assert (await anext(tail)).seq == 0
        for i in range(200):
            await store.append(record.id, said(i))
        async with asyncio.timeout(SECONDS):
            assert [(await anext(tail)).seq for _ in range(200)] == list(range(1, 201))

    async def test_subscribers_end_with_the_conversation_and_with_the_store(self, store: EventStore) -> None:
        """Deleting or closing ends a tail without an error."""
        doomed, closed = await store.create(events=said("a")), await store.create(events=said("a"))
        tails = [store.subscribe(record.id) for record in (doomed, closed)]
        assert [(await anext(tail)).seq for tail in tails] == [0, 0]
        waiting = [asyncio.create_task(_rest(tail)) for tail in tails]
        async with asyncio.timeout(SECONDS):
            await store.delete(doomed.id)
            assert await waiting[0] == []
            await store.aclose()
            assert await waiting[1] == []
        with pytest.raises(StoreError):
            await store.get(closed.id)
        await store.aclose()

    # lists and names

    async def test_list_is_latest_first_and_pages(self, store: EventStore) -> None:
        """Pages follow one another without loss or repetition."""
        records = [await store.create() for _ in range(7)]
        await store.append(records[0].id, said("now the latest"))
        wanted = [records[i].id for i in (0, 6, 5, 4, 3, 2, 1)]
        page = await store.list(limit=3)
        found = [item.id for item in page.items]
        while page.next_cursor:
            page = await store.list(cursor=page.next_cursor, limit=3)
            found += [item.id for item in page.items]
        assert found == wanted
        assert (await store.list(limit=7)).next_cursor is None
        with pytest.raises(InvalidInput):
            await store.list(cursor="%%%")

    async def test_list_filters(self, store: EventStore) -> None:
        """Every field that is set must match."""
        root = await store.create(events=[StateChanged(changes={"title": "Größe ZÄHLT", "status": "running"})])
        fork = await store.fork(root.id, tags={"a": "1", "b": "2"}, config={"agent": "coder"}, owner="me")
        other = await store.create()

        async def ids(**fields: object) -> set[UUID]:
            page = await store.list(ConversationFilter(**fields))  # pyright: ignore[reportArgumentType]
            return {record.id for record in page.items}

        assert await ids() == {root.id, fork.id, other.id}
        assert await ids(status="running") == {root.id}
        assert await ids(status="idle") == {fork.id, other.id}
        assert await ids(text="zählt") == {root.id}
        assert await ids(tags={"a": "1"}) == await ids(tags={"a": "1", "b": "2"}) == {fork.id}
        assert await ids(tags={"a": "2"}) == await ids(tags={"a": "1", "c": "3"}) == set()
        assert await ids(agent="coder") == await ids(owner="me") == {fork.id}
        assert await ids(root=root.id) == {root.id, fork.id}
        assert await ids(root=other.id, status="running") == await ids(root=new_id()) == set()

    async def test_names(self, store: EventStore) -> None:
        """An id, its unique start or end, or `-` for the latest; several matches are told apart."""
        a, b, c = [UUID(f"{n:08x}-0000-7000-8000-{n:012x}") for n in (0xABC10001, 0xABC10002, 0xDEF10003)]
        for cid in (a, b, c):
            await store.create(ConversationRecord(id=cid, root=cid, created=_NOON, updated=_NOON))
        assert await store.resolve("def1") == await store.resolve("DEF1-0003") == await store.resolve(str(c)) == c
        assert await store.resolve("f10003") == c
        assert await store.resolve("-") == c
        with pytest.raises(InvalidInput) as several:
            await store.resolve("abc1")
        assert several.value.details["matches"] == [str(a), str(b)]
        with pytest.raises(NotFound):
            await store.resolve("123456")
        for bad in ("abc", "", "xyz123", "a" * 33, "%%%%"):
            with pytest.raises(InvalidInput):
                await store.resolve(bad)

    async def test_no_conversation_is_the_latest_of_none(self, store: EventStore) -> None:
        """`-` in an empty store is not found."""
        with pytest.raises(NotFound):
            await store.resolve("-")

    # leases

    async def test_a_lease_keeps_others_out(self, store: EventStore) -> None:
        """A second owner gets a conflict that names the first; messages without a generation still go in."""
        record = await store.create()
        lease = await store.acquire(record.id, "one", 60)
        with pytest.raises(Conflict) as held:
            await store.acquire(record.id, "two", 60)
        assert held.value.details["owner"] == "one"
        assert await store.append(record.id, said("a"), generation=lease.generation) == 1
        assert await store.append(record.id, said("b")) == 2
        await store.release(lease)
        assert (await store.acquire(record.id, "two", 60)).generation > lease.generation

    async def test_a_fenced_generation_never_appends(self, store: EventStore) -> None:
        """After a takeover the old runner's appends, renewal and release do nothing."""
        record = await store.create()
        old = await store.acquire(record.id, "one", 0)
        new = await store.acquire(record.id, "two", 60)
        assert new.generation > old.generation
        with pytest.raises(Conflict):
            await store.append(record.id, said("late"), generation=old.generation)
        with pytest.raises(Conflict):
            await store.renew(old, 60)
        await store.release(old)
        with pytest.raises(Conflict):
            await store.acquire(record.id, "one", 60)
        assert await store.append(record.id, said("a"), generation=new.generation) == 1

    async def test_renewing_keeps_the_generation(self, store: EventStore) -> None:
        """Renewing extends; acquiring again raises the generation, also for the same owner."""
        record = await store.create()
        lease = await store.acquire(record.id, "one", 1)
        renewed = await store.renew(lease, 60)
        assert renewed.generation == lease.generation
        assert renewed.expires > lease.expires
        again = await store.acquire(record.id, "one", 60)
        assert again.generation > lease.generation
        with pytest.raises(Conflict):
            await store.renew(lease, 60)
        await store.release(again)
        with pytest.raises(Conflict):
            await store.renew(again, 60)

    async def test_of_many_runners_one_wins(self, store: EventStore) -> None:
        """Acquiring at the same time gives one lease."""
        record = await store.create()
        calls = [store.acquire(record.id, f"runner {i}", 60) for i in range(8)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(result, Conflict) for result in results) == 7

    # deletion

    async def test_a_deleted_conversation_is_gone(self, store: EventStore) -> None:
        """It is nowhere, and its id can be used again when nothing depends on it."""
        record = await store.create(events=said("a"))
        await store.delete(record.id)
        for call in (store.get(record.id), store.append(record.id, said("b")), store.fork(record.id)):
            with pytest.raises(NotFound):
                await call
        assert (await store.list()).items == []
        assert (await store.create(record)).id == record.id
        assert await log_of(store, record.id) == []

    async def test_forks_keep_what_they_reach(self, store: EventStore) -> None:
        """Deleting the source leaves every fork whole, and drops exactly what none reaches."""
        root = await store.create(events=said(*range(10)))
        forks = [await store.fork(root.id, at=cut, events=said("own")) for cut in (3, 6)]
        logs = [await log_of(store, fork.id) for fork in forks]
        await store.delete(root.id)
        assert [await log_of(store, fork.id) for fork in forks] == logs
        assert (await store.census()).events == 6 + 2
        assert (await store.get(forks[0].id)).forked_from == root.id
        assert (await store.get(forks[0].id)).fork_event == logs[0][2].id
        await store.delete(forks[1].id)
        assert (await store.census()).events == 3 + 1
        assert await log_of(store, forks[0].id) == logs[0]
        await store.delete(forks[0].id)
        assert await _nothing_left(store)

    async def test_deleting_everything_leaves_nothing(self, store: EventStore) -> None:
        """Whatever the order, no row stays."""
        for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)):
            root = await store.create(events=said(*range(4)))
            a = await store.fork(root.id, at=3, events=said("a"))
            b = await store.fork(a.id)
            c = await store.fork(b.id, at=0, events=said("c"))
            tree = (root, a, b, c)
            for i in order:
                await store.delete(tree[i].id)
                assert (await store.check()).findings == ()
            assert await _nothing_left(store)

    async def test_cascade_takes_the_forks_along(self, store: EventStore) -> None:
        """Forks of forks too; conversations outside the tree stay."""
        root, other = await store.create(events=said(*range(4))), await store.create(events=said("x"))
        fork = await store.fork(root.id, at=2, events=said("f"))
        below = await store.fork(fork.id, at=1)
        await store.delete(fork.id, "cascade")
        for gone in (fork, below):
            with pytest.raises(NotFound):
                await store.get(gone.id)
        assert len(await log_of(store, root.id)) == 4
        await store.delete(root.id, "cascade")
        assert [record.id for record in (await store.list(ConversationFilter(include_deleted=True))).items] == [
            other.id
        ]

    async def test_erase_scrubs_shared_payloads(self, store: EventStore) -> None:
        """Forks keep typed stubs: ids, kinds, places and tool calls stay, what was said is gone."""
        secret = "correct horse battery staple"
        response = {"kind": "response", "parts": [
            {"part_kind": "text", "content": secret},
            {"part_kind": "tool-call", "tool_name": "t", "args": {"a": secret}, "tool_call_id": "1"},
        ]}  # fmt: skip
        root = await store.create(events=[
            *said(secret), ModelResponded(response=response), ToolCalled(tool_call_id="1", tool="t", arguments={"a": secret}),
            ToolReturned(tool_call_id="1", tool="t", result=secret),
        ])  # fmt: skip
        fork = await store.fork(root.id, events=said("kept"))
        before = await log_of(store, fork.id)
        await store.delete(root.id, "erase")
        after = await log_of(store, fork.id)
        assert [(s.seq, s.id, s.kind, s.ts) for s in after] == [(s.seq, s.id, s.kind, s.ts) for s in before]
        assert not any(secret.encode() in stored.raw for stored in after)
        assert text_of(after[0]) == ERASED
        called, returned = after[2].event, after[3].event
        assert isinstance(called, ToolCalled) and isinstance(returned, ToolReturned)
        assert (called.tool_call_id, called.arguments, returned.tool_call_id) == ("1", {}, "1")
        assert text_of(after[4]) == "kept"
        assert (await store.check()).findings == ()

    async def test_an_unknown_way_to_delete_is_refused(self, store: EventStore) -> None:
        """Nothing is deleted by a misspelt mode."""
        record = await store.create()
        with pytest.raises(InvalidInput):
            await store.delete(record.id, "shred")  # pyright: ignore[reportArgumentType]
        assert await store.get(record.id) == record

    # bundles and checks

    async def test_a_bundle_carries_a_conversation_to_another_store(self, store: EventStore) -> None:
        """Exported, imported elsewhere, continued, brought back: equal, and twice adds nothing."""
        fork = await self._tree(store)
        other = MemoryEventStore()
        bundle = await _exported(store, fork.id)
        there = await other.import_(io.BytesIO(bundle))
        assert await log_of(other, fork.id) == await log_of(store, fork.id)
        assert _portable(there) == _portable(await store.get(fork.id))
        assert await other.lineage(fork.id) == await store.lineage(fork.id)
        events = (await other.census()).events
        assert await other.import_(io.BytesIO(bundle)) == there
        assert (await other.census()).events == events
        await other.append(fork.id, [*said("continued"), StateChanged(changes={"title": "on"})])
        back = await store.import_(io.BytesIO(await _exported(other, fork.id)))
        assert (back.title, back.head) == ("on", there.head + 2)
        assert await log_of(store, fork.id) == await log_of(other, fork.id)
        assert (await store.check()).findings == (await other.check()).findings == ()
        assert (await store.fork(fork.id, at=1)).parent == (await other.fork(fork.id, at=1)).parent

    async def test_a_bundle_comes_in(self, store: EventStore) -> None:
        """What memory exported this store imports: same log, lineage and record; forks share what is there."""
        other = MemoryEventStore()
        fork = await self._tree(other)
        sibling = await other.fork(fork.id, at=5, events=said("sibling"))
        for record in (fork, sibling):
            await store.import_(io.BytesIO(await _exported(other, record.id)))
            assert await log_of(store, record.id) == await log_of(other, record.id)
            assert await store.lineage(record.id) == await other.lineage(record.id)
            assert _portable(await store.get(record.id)) == _portable(await other.get(record.id))
        assert (await store.census()).events == len({s.id for r in (fork, sibling) for s in await log_of(other, r.id)})
        assert (await store.check()).findings == ()
        for record in (fork, sibling):
            await store.delete(record.id)
        assert await _nothing_left(store)

    async def test_an_imported_source_comes_back_to_life(self, store: EventStore) -> None:
        """A source imported after its fork takes the place of the tombstone that stood for it."""
        other = MemoryEventStore()
        fork = await self._tree(other)
        root = (await other.ancestry(fork.id))[0]
        for cid in (fork.id, root.id):
            await store.import_(io.BytesIO(await _exported(other, cid)))
        assert await log_of(store, root.id) == await log_of(other, root.id)
        assert (await store.get(root.id)).deleted is False
        assert (await store.census()).events == 6 + 1 + 2
        assert (await store.check()).findings == ()

    async def test_a_source_that_is_behind_is_not_touched(self, store: EventStore) -> None:
        """A fork of later events than the living source here has: the fork owns them, the source stays."""
        other = MemoryEventStore()
        root = await other.create(events=said(*range(3)))
        await store.import_(io.BytesIO(await _exported(other, root.id)))
        await other.append(root.id, said(3, 4))
        fork = await other.fork(root.id, events=said("f"))
        await store.append(root.id, said("other way"))
        await store.import_(io.BytesIO(await _exported(other, fork.id)))
        assert await log_of(store, fork.id) == await log_of(other, fork.id)
        assert await texts_of(store, root.id) == ["0", "1", "2", "other way"]
        assert await store.lineage(fork.id) == [(root.id, 0, 3), (fork.id, 3, 6)]
        got = await store.get(fork.id)
        assert (got.forked_at, got.fork_event) == (5, (await other.get(fork.id)).fork_event)
        assert (await store.check()).findings == ()
        with pytest.raises(Conflict):
            await store.import_(io.BytesIO(await _exported(other, root.id)))

    async def test_a_bundle_that_was_changed_is_refused(self, store: EventStore) -> None:
        """A changed byte, a missing line, a missing end, other text: invalid input, and nothing is stored."""
        record = await store.create(events=said("hello", "world"))
        bundle = await _exported(store, record.id)
        await store.delete(record.id)
        lines = bundle.splitlines(keepends=True)
        for bad in (
            bundle.replace(b"hello", b"hullo"), lines[0] + b"".join(lines[2:]), b"".join(lines[:-1]), b"", b"{}\n",
            b"\xff\xfe", b"[1]\n[2]\n", bundle.replace(b'"version":1', b'"version":2'),
        ):  # fmt: skip
            with pytest.raises(InvalidInput):
                await store.import_(io.BytesIO(bad))
        assert await _nothing_left(store)
        with pytest.raises(PermissionDenied):
            await store.import_(io.BytesIO(bundle), trusted=[bytes(32)])
        assert (await store.import_(io.BytesIO(bundle))).head == 2

    async def test_a_bundle_says_nothing_of_tenants(self, store: EventStore) -> None:
        """The owner stays behind, and an import takes none from a bundle."""
        now = datetime.now(UTC)
        cid = new_id()
        await store.create(ConversationRecord(id=cid, root=cid, owner="tenant-seven", created=now, updated=now))
        bundle = await _exported(store, cid)
        assert b"tenant-seven" not in bundle
        assert (await MemoryEventStore().import_(io.BytesIO(bundle))).owner is None

    async def test_a_whole_store_is_clean(self, store: EventStore) -> None:
        """The check counts what is there and finds nothing wrong."""
        await self._tree(store)
        report = await store.check()
        assert (report.findings, report.conversations, report.events) == ((), 3, 10)
        assert report.require() is report

    async def _tree(self, store: EventStore) -> ConversationRecord:
        root = await store.create(events=said(*range(6)))
        middle = await store.fork(root.id, at=4, events=said("m4", "m5"), title="middle")
        events: list[BaseEvent] = [*said("l5"), StateChanged(changes={"title": "leaf", "tags": {"a": "ü"}})]
        leaf = await store.fork(middle.id, at=5, events=events, config={"agent": "x"}, lineage={"reason": "y"})  # pyright: ignore[reportArgumentType]
        return leaf


_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _portable(record: ConversationRecord) -> tuple[object, ...]:
    places = (record.id, record.root, record.parent, record.base, record.head, record.forked_from, record.forked_at)
    words = (record.fork_event, record.status, record.title, record.tags, record.config, record.lineage)
    return (*places, *words, record.created)


async def _exported(store: EventStore, cid: UUID) -> bytes:
    file = io.BytesIO()
    await store.export(cid, file)
    return file.getvalue()


async def _rest(tail: object) -> list[StoredEvent]:
    return [stored async for stored in tail]  # pyright: ignore


async def _nothing_left(store: EventStore) -> bool:
    everything = await store.list(ConversationFilter(include_deleted=True))
    return everything.items == [] and (await store.census()).events == 0
