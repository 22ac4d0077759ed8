"""The asynchronous face of a log that is kept in tables: who asks, in which thread, is up to each store."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar, Unpack, get_args
from uuid import UUID

from bough.errors import CorruptLog, InvalidInput, NotFound, StoreError, Unavailable
from bough.events.beside import Beside, Follow, Tables, list_packages
from bough.events.draft import Append, Draft, ForkFields, ImportPiece, draft, new_record, parse_cut, plan_fork
from bough.events.integrity import Census
from bough.events.lease_renewal import LeaseRenewer, RenewedLease
from bough.events.lineage import Range
from bough.events.record import (
    ConversationFilter,
    ConversationRecord,
    DeleteMode,
    Lease,
    Order,
    Page,
    Pruned,
    StoredEvent,
    microseconds,
)
from bough.events.stores import faults
from bough.events.stores.base import BaseEventStore
from bough.events.stores.relational.reading import FIRST_ROWS, PAGE_ROWS, EventChoice, Parts, RelationalReading
from bough.events.stores.relational.tables import Followers, keep_blobs, run_change
from bough.events.stores.relational.writing import RelationalWriting
from bough.types import Clock, new_id

if TYPE_CHECKING:
    from bough.events.model import Event

T = TypeVar("T")

_EVERY_ROWS = 500
_PRUNE_ROWS = 100


class RelationalEventStore(BaseEventStore):
    """Every method of the protocol as a question to `RelationalReading` or a change by `RelationalWriting`."""

    def __init__(self, clock: Clock, dialect: str) -> None:
        super().__init__()
        self._clock = clock
        self._dialect = dialect
        self._followers = Followers(dialect)
        self._statements: dict[Beside, dict[str, str]] = {}

    url: str
    write_failure: StoreError | None = None
    """Why a write failed where the store was at fault. Whoever sees that it can be written again sets None."""

    _is_read_only = False
    """Whether nothing can be written."""

    _lease_renewer: LeaseRenewer
    """Renews leases; each store has a way of its own to do that in a thread."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise unless the store can be used.

        Raises:
            StoreError: It is closed.
            Unavailable: It was opened before this process was forked.
        """

    @abstractmethod
    async def _append(self, append: Append) -> int:
        """Append durably, together with whatever else is appended at the same time; return the new head."""

    @abstractmethod
    async def _read(
        self, question: Callable[[RelationalReading], T], *, small: bool = False, patient: bool = False
    ) -> T:
        """Return the answer to a question.

        Args:
            small: The answer is mostly a few rows, found by their keys.
            patient: It may look at every row of the store.
        """

    @abstractmethod
    async def _write(
        self, change: Callable[[RelationalWriting], T], *, alone: bool = False, patient: bool = False
    ) -> T:
        """Make a change durably and tell watchers.

        Args:
            alone: It is one statement, which needs no transaction around it.
            patient: It may look at every row of some conversations.
        """

    async def _watch_write(self, write: Awaitable[T]) -> T:
        """Return what a write returns, and remember whether the store failed it."""
        try:
            return await write
        except CorruptLog:
            raise  # of one conversation: others can be written
        except StoreError as error:
            self.write_failure = error
            raise

    async def create(
        self, record: ConversationRecord | None = None, *, events: Sequence[Event] = (), owner: str | None = None
    ) -> ConversationRecord:
        """Create a root conversation. See `EventStore.create`."""
        given, drafted = record or new_record(new_id(), self._clock.now()), draft(events)
        root = given if owner is None else replace(given, owner=owner)
        await self._prepare_followers(drafted)
        return await self._write(lambda log: log.create(root, drafted))

    async def get(self, cid: UUID) -> ConversationRecord:
        """Return the record. See `EventStore.get`."""
        return await self._read(lambda log: log.get(cid), small=True)

    async def resolve(self, name: str) -> UUID:
        """Return the conversation a name stands for. See `EventStore.resolve`."""
        return await self._read(lambda log: log.resolve(name))

    async def append(
        self,
        cid: UUID,
        events: Sequence[Event],
        *,
        generation: int | None = None,
        expected_head: int | None = None,
    ) -> int:
        """Append all or none, durably. See `EventStore.append`."""
        drafted = draft(events)
        await self._prepare_followers(drafted)
        return await self._append(Append(cid, drafted, generation, expected_head))

    async def read(
        self,
        cid: UUID,
        start: int = 0,
        stop: int | None = None,
        *,
        reverse: bool = False,
        kinds: Collection[str] | None = None,
        after_ts: datetime | None = None,
        before_ts: datetime | None = None,
    ) -> AsyncGenerator[StoredEvent]:
        """Iterate events, a page at a time. See `EventStore.read`."""
        if kinds is not None or after_ts is not None or before_ts is not None:
            choice = _choice(kinds, after_ts, before_ts)
            pages = self._choose(await self._read(lambda log: log.between(cid, start, stop, reverse)), reverse, choice)
        else:
            pages = self._pages(cid, start, stop, reverse)
        async with aclosing(pages):
            async for events in pages:
                for stored in events:
                    yield stored

    async def _pages(
        self, cid: UUID, start: int, stop: int | None, reverse: bool
    ) -> AsyncGenerator[builtins.list[StoredEvent]]:
        """Iterate pages; backwards they grow, as a reader who has not found it yet looks further and further."""
        rows = FIRST_ROWS if reverse else PAGE_ROWS
        events, left = await self._read_log(cid, lambda log: log.begin(cid, start, stop, reverse, rows))
        while events:
            yield events
            if not left:
                return
            rows = min(rows * 4, PAGE_ROWS)
            events, left = await self._read_log(cid, lambda log, left=left, rows=rows: log.page(left, reverse, rows))

    async def _choose(
        self, left: Parts, reverse: bool, choice: EventChoice
    ) -> AsyncGenerator[builtins.list[StoredEvent]]:
        while left:
            events, left = await self._read(lambda log, left=left: log.choose(left, reverse, choice))
            yield events

    async def read_ids(self, cid: UUID, start: int, stop: int) -> builtins.list[tuple[int, UUID, str]]:
        """Return seq, id and kind of events. See `EventStore.read_ids`."""
        return await self._read(lambda log: log.read_ids(log.between(cid, start, stop)))

    async def every(self, kind: str) -> AsyncIterator[StoredEvent]:
        """Iterate all events of a kind. See `EventStore.every`."""
        cid, seq, more = 0, -1, True
        while more:
            found = await self._read(lambda log, cid=cid, seq=seq: log.every(kind, cid, seq, _EVERY_ROWS), patient=True)
            for _, stored in found:
                yield stored
            more = len(found) == _EVERY_ROWS
            cid, seq = (found[-1][0], found[-1][1].seq) if found else (cid, seq)

    async def tail(self, cid: UUID, n: int) -> builtins.list[StoredEvent]:
        """Return the last n events. See `EventStore.tail`."""
        return await self._read_log(cid, lambda log: log.tail(cid, n))

    async def locate(self, event_id: UUID, *, cid: UUID | None = None) -> tuple[UUID, int]:
        """Return (owner, seq). See `EventStore.locate`."""
        return await self._read(lambda log: log.locate(event_id, cid), small=True)

    async def fork(self, cid: UUID, **fields: Unpack[ForkFields]) -> ConversationRecord:
        """Fork by writing one row. See `EventStore.fork`."""
        wanted, place = plan_fork(fields, self._clock.now()), parse_cut(fields.get("at"))
        drafted = draft(fields.get("events", ()))
        await self._prepare_followers(drafted)
        alone = not self._followers.wants(drafted)
        return await self._write(lambda log: log.fork(cid, place, wanted, drafted), alone=alone)

    async def list(
        self,
        filter: ConversationFilter | None = None,
        cursor: str | None = None,
        limit: int = 50,
        order: Order = "updated_desc",
    ) -> Page:
        """Return a page of conversations. See `EventStore.list`."""
        if order not in get_args(Order):
            raise InvalidInput(f"no order named {order!r}", hint=", ".join(get_args(Order)))
        wanted = filter or ConversationFilter()
        return await self._read(lambda log: log.list(wanted, cursor, limit, order), patient=True)

    async def count(self, filter: ConversationFilter | None = None) -> int:
        """Return how many conversations match. See `EventStore.count`."""
        return await self._read(lambda log: log.count(filter or ConversationFilter()), patient=True)

    async def scan(self, after: int = 0, limit: int = 500) -> builtins.list[ConversationRecord]:
        """Return conversations by number. See `EventStore.scan`."""
        return await self._read(lambda log: log.scan(after, limit))

    async def prune(
        self,
        older_than: timedelta,
        filter: ConversationFilter | None = None,
        *,
        keep_tagged: bool = False,
        dry_run: bool = False,
    ) -> Pruned:
        """Delete what has not changed for long. See `EventStore.prune`."""
        before = self._clock.now() - older_than
        wanted = replace(filter or ConversationFilter(), updated_before=before, include_deleted=False)
        deleted, size, cursor, more = 0, 0, None, True
        while more:
            page = await self.list(wanted, cursor, _PRUNE_ROWS, "updated")
            for record in page.items:
                if not (keep_tagged and record.tags):
                    freed = await self._prune(record.id, microseconds(before), dry_run)
                    deleted, size = (deleted, size) if freed is None else (deleted + 1, size + freed)
            cursor, more = page.next_cursor, page.next_cursor is not None
        return Pruned(deleted=deleted, bytes=size)

    async def _prune(self, cid: UUID, before: int, dry_run: bool) -> int | None:
        try:
            return await self._write(lambda log: log.prune(cid, before, dry_run=dry_run), patient=True)
        except NotFound:
            return None  # somebody else was faster

    async def children(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the forks. See `EventStore.children`."""
        return await self._read(lambda log: log.children(cid))

    async def lineage(self, cid: UUID) -> builtins.list[Range[UUID]]:
        """Return the ranges of the log. See `EventStore.lineage`."""
        return await self._read(lambda log: log.lineage(cid), small=True)

    async def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take the lease. See `EventStore.acquire`."""
        return await self._write(lambda log: log.acquire(cid, owner, ttl))

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease. See `EventStore.renew`."""
        return await self._write(lambda log: log.renew(lease, ttl))

    def keep(self, lease: Lease, ttl: float, lost: Callable[[], object]) -> RenewedLease:
        """Renew a lease until it is stopped. See `EventStore.keep`."""
        self._check_open()
        return self._lease_renewer.keep(lease, ttl, lost)

    async def release(self, lease: Lease) -> None:
        """Give the lease back. See `EventStore.release`."""
        await self._write(lambda log: log.release(lease))

    async def together(
        self,
        beside: Beside | Collection[Beside],
        change: Callable[[Tables], T],
        *,
        read_only: bool = False,
        small: bool = False,
    ) -> T:
        """Return what a change of rows and log returns. See `EventStore.together`."""
        packages = list_packages(beside)
        await self._prepare(packages)
        statements = {name: sql for package in packages for name, sql in self._statements[package].items()}
        if read_only:
            return await self._read(lambda log: _look(log, statements, change), small=small)
        for follower in self._followers.packages():
            await self._prepare_follower(follower)
        return await self._write(lambda log: run_change(log, statements, change, appends=True))

    def follow(self, beside: Beside, kinds: Collection[str], add: Follow) -> None:
        """Write rows beside certain events. See `EventStore.follow`."""
        self._followers.add(beside, kinds, add)

    async def delete(self, cid: UUID, mode: DeleteMode = "tombstone") -> None:
        """Delete a conversation. See `EventStore.delete`."""
        await self._write(lambda log: log.delete(cid, mode), patient=True)

    async def count_imported(self, cid: UUID) -> int:
        """Return where what came by import ends. See `EventStore.count_imported`."""
        return await self._read(lambda log: log.count_imported(cid), small=True)

    async def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record, tombstone or not. See `EventStore.peek`."""
        return await self._read(lambda log: log.peek(cid), small=True)

    async def ancestry(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return what a conversation descends from. See `EventStore.ancestry`."""
        return await self._read(lambda log: log.ancestry(cid))

    async def span(self, owner: UUID, lo: int, hi: int) -> builtins.list[StoredEvent]:
        """Return own events. See `EventStore.span`."""
        return await self._read(lambda log: log.span(owner, lo, hi))

    async def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert what an import found missing. See `EventStore.restore`."""
        await self._write(lambda log: _restore(log, pieces), patient=True)

    async def census(self) -> Census:
        """Count the events and let the database check itself. See `EventStore.census`."""
        return await self._read(lambda log: log.census(), patient=True)

    async def _prepare(self, packages: Collection[Beside]) -> None:
        """Bring tables beside the log up to date, once for each package.

        Raises:
            StoreError: They come from a newer version of the package.
            Unavailable: They are not there, or old, and the store is read-only.
        """
        for beside in packages:
            if beside in self._statements:
                continue
            version = await self._read(lambda log, beside=beside: log.beside_version(beside))
            if beside.steps_after(version, self._dialect):
                if self._is_read_only:
                    raise faults.no_tables(self.url, beside.name)
                await self._write(lambda log, beside=beside: log.migrate_beside(beside), patient=True)
            self._statements[beside] = beside.statements(self._dialect)

    async def _prepare_followers(self, drafted: Draft) -> None:
        if self._followers.wants(drafted):
            for beside in self._followers.packages() - self._statements.keys():
                await self._prepare_follower(beside)

    async def _prepare_follower(self, beside: Beside) -> None:
        """Make a follower's tables ready; one whose tables are newer than the code is left out."""
        try:
            await self._prepare([beside])
        except (StoreError, Unavailable) as error:
            if error.details.get("package") != beside.name:
                raise  # the store itself cannot be written
            self._followers.refuse(beside, error)

    async def _read_log(self, cid: UUID, question: Callable[[RelationalReading], T]) -> T:
        """Read events; if some are missing because the conversation was deleted meanwhile, say that instead."""
        try:
            return await self._read(question, small=True)
        except CorruptLog:
            await self.get(cid)
            raise


def _choice(kinds: Collection[str] | None, after_ts: datetime | None, before_ts: datetime | None) -> EventChoice:
    return EventChoice(
        None if kinds is None else tuple(kinds),
        None if after_ts is None else microseconds(after_ts),
        None if before_ts is None else microseconds(before_ts),
    )


def _restore(log: RelationalWriting, pieces: Sequence[ImportPiece]) -> None:
    log.restore(pieces)
    for piece in pieces:
        keep_blobs(log, piece.record.id, piece.first, piece.events.blobs)


def _look(log: RelationalReading, statements: Mapping[str, str], change: Callable[[Tables], T]) -> T:
    with log.snapshot():
        return run_change(log, statements, change, appends=False)
