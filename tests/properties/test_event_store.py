"""Whatever is done in whatever order, every store does what the plainest possible model does.

The oracle keeps each log as a list of its own: a fork copies the list. Memory, SQLite and Postgres get the same
calls with the same clock and must give the same answers, refusals included. An example ends by deleting everything:
no row may stay.
"""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from bough.errors import BoughError
from bough.events import ConversationFilter, ConversationRecord, PostgresEventStore, SqliteEventStore
from bough.events.model import BaseEvent, StateChanged, Usage, UsageAdded, UserMessage
from bough.events.record import Lease
from bough.events.store import EventStore
from bough.testing.postgres import drop_schema
from bough.testing.store.model import ModelEventStore
from bough.types import new_id

EXAMPLES = 500 if os.environ.get("CI") else 30
STEPS = 16
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

PICK = st.integers(0, 10**6)
FEW = st.integers(0, 3)
STATUSES = st.sampled_from(["idle", "running", "paused", "finished"])


class StepClock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.moment = NOON

    def now(self) -> datetime:
        return self.moment

    def monotonic(self) -> float:
        return self.moment.timestamp()


@dataclass
class Tree:
    """The oracle: what each living conversation's log must be, event ids only."""

    logs: dict[UUID, list[UUID]] = field(default_factory=dict)
    sources: dict[UUID, UUID] = field(default_factory=dict)

    def below(self, cid: UUID) -> set[UUID]:
        found, size = {cid}, 0
        while len(found) > size:
            size = len(found)
            found |= {fork for fork, source in self.sources.items() if source in found}
        return found


class Stores:
    """The stores under test in one event loop; SQLite can be opened again."""

    def __init__(self, postgres: str, folder: Path) -> None:
        self.clock = StepClock()
        self.runner = asyncio.Runner()
        self.file = folder / "log.db"
        self.schema = f"machine_{new_id().hex}"
        self.postgres = postgres
        self.memory = ModelEventStore(clock=self.clock)
        self.sqlite = self.run(SqliteEventStore.open(self.file, clock=self.clock))
        self.server = self.run(PostgresEventStore.open(postgres, schema=self.schema, clock=self.clock))

    def all(self) -> list[EventStore]:
        return [self.memory, self.sqlite, self.server]

    def run(self, call: Any) -> Any:
        return self.runner.run(call)

    def reopen(self) -> None:
        self.run(self.sqlite.aclose())
        self.sqlite = self.run(SqliteEventStore.open(self.file, clock=self.clock))

    def wipe(self) -> None:
        """Remove what an example that failed left behind, so that it can be repeated."""
        for store in self.all():
            for record in self.run(listed(store, include_deleted=False)):
                self.run(store.delete(record.id))

    def close(self) -> None:
        for store in self.all():
            self.run(store.aclose())
        self.runner.close()
        drop_schema(self.postgres, self.schema)


class StoreMachine(RuleBasedStateMachine):
    """Calls the stores, compares their answers, and keeps the oracle."""

    stores: ClassVar[Stores]

    def __init__(self) -> None:
        super().__init__()
        self.stores.wipe()
        self.tree = Tree()
        self.leases: list[Lease] = []
        self.steps = 0

    # what is done

    @rule(n=FEW)
    def create(self, n: int) -> None:
        cid, events = new_id(), said(n)
        now = self.stores.clock.moment
        record = ConversationRecord(id=cid, root=cid, created=now, updated=now)
        self.same(lambda store: store.create(record, events=events))
        self.tree.logs[cid] = ids(events)

    @precondition(lambda self: self.tree.logs)
    @rule(pick=PICK, n=FEW, off=st.sampled_from([None, 0, 0, 1, -1]), lease=PICK)
    def append(self, pick: int, n: int, off: int | None, lease: int) -> None:
        cid, events = self.pick(pick), said(n)
        log = self.tree.logs[cid]
        held = self.leases[lease % len(self.leases)] if self.leases and lease % 2 else None
        generation = held.generation if held and held.conversation == cid else None
        expected = None if off is None else len(log) + off
        answer = self.same(lambda store: store.append(cid, events, expected_head=expected, generation=generation))
        if answer[0] == "ok":
            assert off in (None, 0)
            log += ids(events)
            assert answer[1] == len(log)
        else:
            assert answer[1] == "conflict"

    @precondition(lambda self: self.tree.logs)
    @rule(pick=PICK, status=STATUSES, title=st.none() | st.text(max_size=5), tag=st.text(max_size=3))
    def change(self, pick: int, status: str, title: str | None, tag: str) -> None:
        event = StateChanged(changes={"status": status, "title": title, "tags": {"t": tag}})
        cid = self.pick(pick)
        self.same(lambda store: store.append(cid, [event]))
        self.tree.logs[cid] += ids([event])

    @precondition(lambda self: any(self.tree.logs.values()))
    @rule(pick=PICK, other=PICK, before=FEW)
    def append_again(self, pick: int, other: int, before: int) -> None:
        stored = [cid for cid, log in self.tree.logs.items() if log]
        source, cid = stored[other % len(stored)], self.pick(pick)
        event = self.stores.run(self.stores.memory.tail(source, 1))[0].event
        events = [*said(before), event]
        assert self.same(lambda store: store.append(cid, events)) == ("error", "conflict")

    @precondition(lambda self: self.tree.logs)
    @rule(pick=PICK, cut=PICK, n=FEW, by_id=st.booleans())
    def fork(self, pick: int, cut: int, n: int, by_id: bool) -> None:
        cid, id, events = self.pick(pick), new_id(), said(n)
        log = self.tree.logs[cid]
        at: int | UUID = cut % (len(log) + 1)
        shared = log[:at]
        if by_id and shared:
            at = shared[-1]
        answer = self.same(lambda store: store.fork(cid, at=at, id=id, events=events, lineage={"n": n}))
        assert answer[0] == "ok"
        if pick % 3 == 0:
            assert self.same(lambda store: store.fork(cid, at=at, id=id, lineage={"n": n})) == answer
        elif pick % 3 == 1:
            assert self.same(lambda store: store.fork(cid, at=at, id=id)) == ("error", "conflict")
        self.tree.logs[id] = shared + ids(events)
        self.tree.sources[id] = cid

    @precondition(lambda self: self.tree.logs)
    @rule(pick=PICK, cut=PICK, cut_again=PICK)
    def fork_of_a_fork(self, pick: int, cut: int, cut_again: int) -> None:
        """fork(fork(c, i), j <= i) has the same log and the same ranges as fork(c, j)."""
        cid, first, second, direct = self.pick(pick), new_id(), new_id(), new_id()
        log = self.tree.logs[cid]
        i = cut % (len(log) + 1)
        j = cut_again % (i + 1)
        self.same(lambda store: store.fork(cid, at=i, id=first))
        self.same(lambda store: store.fork(first, at=j, id=second))
        self.same(lambda store: store.fork(cid, at=j, id=direct))
        ranges = [self.same(lambda store, fork=fork: store.lineage(fork)) for fork in (second, direct)]
        assert ranges[0] == ranges[1]
        for fork, source, at in ((first, cid, i), (second, first, j), (direct, cid, j)):
            self.tree.logs[fork], self.tree.sources[fork] = log[:at], source

    @precondition(lambda self: self.tree.logs)
    @rule(pick=PICK, other=PICK, beyond=st.integers(1, 5), way=st.sampled_from(["below", "beyond", "unknown", "other"]))
    def bad_cut(self, pick: int, other: int, beyond: int, way: str) -> None:
        cid = self.pick(pick)
        log, foreign = (
            self.tree.logs[cid],
            [e for e in self.tree.logs[self.pick(other)] if e not in self.tree.logs[cid]],
        )
        places = {
            "below": -beyond,
            "beyond": len(log) + beyond,
            "unknown": new_id(),
            "other": (foreign or [new_id()])[0],
        }
        answer = self.same(lambda store: store.fork(cid, at=places[way]))
        assert answer == ("error", "invalid_input" if way in ("below", "beyond") else "not_found")

    @precondition(lambda self: self.tree.logs)
    @rule(pick=PICK, mode=st.sampled_from(["tombstone", "tombstone", "cascade"]))
    def delete(self, pick: int, mode: Any) -> None:
        cid = self.pick(pick)
        assert self.same(lambda store: store.delete(cid, mode))[0] == "ok"
        for gone in self.tree.below(cid) if mode == "cascade" else {cid}:
            self.tree.logs.pop(gone, None)

    @precondition(lambda self: self.tree.logs)
    @rule(pick=PICK, owner=st.sampled_from(["one", "two"]), ttl=st.sampled_from([0, 2, 60]))
    def acquire(self, pick: int, owner: str, ttl: float) -> None:
        cid = self.pick(pick)
        answer = self.same(lambda store: store.acquire(cid, owner, ttl))
        if answer[0] == "ok":
            assert all(old.generation < answer[1].generation for old in self.leases if old.conversation == cid)
            self.leases.append(answer[1])

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, renew=st.booleans())
    def renew_or_release(self, pick: int, renew: bool) -> None:
        lease = self.leases[pick % len(self.leases)]
        self.same(lambda store: store.renew(lease, 60) if renew else store.release(lease))

    @precondition(lambda self: self.tree.logs)
    @rule(pick=PICK)
    def carry(self, pick: int) -> None:
        """A bundle imported elsewhere gives the same log and lineage; imported here it adds nothing."""
        cid = self.pick(pick)
        bundles = [self.stores.run(exported(store, cid)) for store in self.stores.all()]
        for store, bundle in zip(self.stores.all(), bundles, strict=True):
            elsewhere = ModelEventStore(clock=self.stores.clock)
            self.stores.run(elsewhere.import_(io.BytesIO(bundle)))
            for question in (log_of, EventStore.lineage):
                assert self.stores.run(question(elsewhere, cid)) == self.stores.run(question(store, cid))
            self.stores.run(store.import_(io.BytesIO(bundle)))

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds: int) -> None:
        self.stores.clock.moment += timedelta(seconds=seconds)

    @rule()
    def reopen(self) -> None:
        self.stores.reopen()

    # what always holds

    @invariant()
    def the_oracle_is_right(self) -> None:
        """A log in one store at each step, in turns; now and then every row; at the end everything."""
        self.steps += 1
        self.stores.clock.moment += timedelta(microseconds=1)
        if self.tree.logs:
            store = self.stores.all()[self.steps % 3]
            cid = self.pick(self.steps // 3)
            assert [stored.id for stored in self.stores.run(log_of(store, cid))] == self.tree.logs[cid]
        if self.steps % 8 == 0:
            self.check_rows()

    def check_log(self, cid: UUID) -> None:
        wanted = self.tree.logs[cid]
        log = self.same(lambda store: log_of(store, cid))[1]
        assert [stored.id for stored in log] == wanted
        assert [stored.seq for stored in log] == list(range(len(wanted)))
        ranges = self.same(lambda store: store.lineage(cid))[1]
        assert [seq for _, lo, hi in ranges for seq in range(lo, hi)] == list(range(len(wanted)))

    def check_rows(self) -> None:
        """Stored are exactly the events that a living conversation reaches."""
        records = self.same(lambda store: listed(store, include_deleted=True))[1]
        assert {record.id for record in records if not record.deleted} == set(self.tree.logs)
        reached = {event for log in self.tree.logs.values() for event in log}
        assert self.same(lambda store: store.census())[1].events == len(reached)

    def teardown(self) -> None:
        self.check_rows()
        for cid in self.tree.logs:
            self.check_log(cid)
        for store in self.stores.all():
            assert self.stores.run(store.check()).findings == ()
        for cid in list(self.tree.logs):
            self.same(lambda store, cid=cid: store.delete(cid))
        assert self.rows() == (0, 0)

    # how

    def pick(self, pick: int) -> UUID:
        return list(self.tree.logs)[pick % len(self.tree.logs)]

    def same(self, call: Callable[[EventStore], Awaitable[Any]]) -> tuple[str, Any]:
        """The one answer of all stores."""
        answers = self.stores.run(answers_of(call, self.stores.all()))
        assert answers[0] == answers[1] == answers[2]
        return answers[0]

    def rows(self) -> tuple[int, int]:
        """Conversations and events stored, tombstones included; the same everywhere."""
        return self.same(rows_of)[1]


def said(n: int) -> list[BaseEvent]:
    used = Usage(requests=1, input_tokens=n, output_tokens=1, cost_usd=0.25)
    return [UsageAdded(purpose="ask", usage=used) if i % 2 else UserMessage.text(str(i)) for i in range(n)]


def ids(events: list[BaseEvent]) -> list[UUID]:
    return [event.id for event in events]


async def answers_of(call: Callable[[EventStore], Awaitable[Any]], stores: list[EventStore]) -> list[tuple[str, Any]]:
    return await asyncio.gather(*(answer_of(call, store) for store in stores))


async def answer_of(call: Callable[[EventStore], Awaitable[Any]], store: EventStore) -> tuple[str, Any]:
    try:
        return "ok", await call(store)
    except BoughError as error:
        return "error", error.code


async def log_of(store: EventStore, cid: UUID) -> list[Any]:
    return [stored async for stored in store.read(cid)]


async def listed(store: EventStore, include_deleted: bool) -> list[ConversationRecord]:
    page = await store.list(ConversationFilter(include_deleted=include_deleted), limit=1000)
    return page.items


async def rows_of(store: EventStore) -> tuple[int, int]:
    return len(await listed(store, include_deleted=True)), (await store.census()).events


async def exported(store: EventStore, cid: UUID) -> bytes:
    file = io.BytesIO()
    await store.export(cid, file)
    return file.getvalue()


@pytest.fixture
def stores(postgres: str) -> Iterator[Stores]:
    with tempfile.TemporaryDirectory() as folder:
        opened = Stores(postgres, Path(folder))
        yield opened
        opened.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_stores_do_what_the_model_does(stores: Stores) -> None:
    class Machine(StoreMachine):
        pass

    Machine.stores = stores
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
    )
