"""The asynchronous methods of stores with tables. Each store decides in which thread queries and changes run."""

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
from bough.events.draft import Append, Draft, ForkFields, ImportPiece, encode_draft, new_record, parse_cut, plan_fork
from bough.events.erasure.receipt import (
    ERASURES,
    NOT_COMPACTED,
    NOT_COVERED,
    POSTGRES_NOT_COVERED,
    ErasureReceipt,
    Tenant,
)
from bough.events.integrity import Census
from bough.events.lease_renewal import LeaseRenewer, RenewedLease
from bough.events.record import (
    ConversationFilter,
    ConversationRecord,
    DeleteMode,
    Lease,
    MessageQuery,
    OnIndexed,
    Order,
    Page,
    Pruned,
    Range,
    SearchPage,
    StoredEvent,
    microseconds,
)
from bough.events.side_tables import OnAppend, SideTables, Tables, list_packages
from bough.events.stores import faults
from bough.events.stores.base import BaseEventStore
from bough.events.stores.relational.reading import FIRST_ROWS, PAGE_ROWS, EventFilter, Ranges, RelationalReading
from bough.events.stores.relational.tables import Followers, run_change, store_blobs
from bough.events.stores.relational.writing import RelationalWriting
from bough.types import Clock, new_id

if TYPE_CHECKING:
    from bough.events.model import Event

T = TypeVar("T")

_EVERY_ROWS = 500
_PRUNE_ROWS = 100


class RelationalEventStore(BaseEventStore):
    """Implements the protocol by queries of `RelationalReading` and changes of `RelationalWriting`."""

    def __init__(self, clock: Clock, dialect: str) -> None:
        super().__init__()
        self._clock = clock
        self._dialect = dialect
        self._followers = Followers(dialect)
        self._statements: dict[SideTables, dict[str, str]] = {}

    url: str
    write_failure: StoreError | None = None
    """The last error of a write that was the store's own. Callers reset it to None after a successful write."""

    _is_read_only = False
    """Whether the store cannot be written."""

    _lease_renewer: LeaseRenewer
    """Renews leases in a thread."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise unless the store can be used.

        Raises:
            StoreError: The store is closed.
            Unavailable: The store was opened before this process was forked.
        """

    @abstractmethod
    async def _append(self, append: Append) -> int:
        """Append durably, in a batch with concurrent appends; return the new head."""

    @abstractmethod
    async def _read(
        self, query: Callable[[RelationalReading], T], *, small: bool = False, may_take_long: bool = False
    ) -> T:
        """Run a query and return its result.

        Args:
            small: Whether the query usually reads only a few rows by their keys.
            may_take_long: Whether the query may read the whole store, so that its time limit is higher.
        """

    @abstractmethod
    async def _write(
        self,
        change: Callable[[RelationalWriting], T],
        *,
        is_single_statement: bool = False,
        is_addition: bool = False,
        may_take_long: bool = False,
    ) -> T:
        """Run a change durably and notify watchers.

        Args:
            is_addition: Whether the change only adds a conversation. Watchers without `appends` are not notified of it.
            is_single_statement: Whether the change is one statement, which needs no explicit transaction.
            may_take_long: Whether the change may read whole conversations, so that its time limit is higher.
        """

    @abstractmethod
    async def _compact(self) -> str | None:
        """Rewrite the store without free space. Return None, or why remains of deleted rows may be left."""

    async def _record_failure(self, write: Awaitable[T]) -> T:
        """Return the result of a write, and record an error of the store in `write_failure`."""
        try:
            return await write
        except CorruptLog:
            raise  # only one conversation is damaged; the store itself can be written
        except StoreError as error:
            self.write_failure = error
            raise

    async def create(
        self, record: ConversationRecord | None = None, *, events: Sequence[Event] = (), owner: str | None = None
    ) -> ConversationRecord:
        """Create a root conversation. See `EventStore.create`."""
        encoded = encode_draft(events)
        root = record or new_record(new_id(), self._clock.now())
        if owner is not None:
            root = replace(root, owner=owner)
        await self._prepare_followers(encoded)
        return await self._write(lambda log: log.create(root, encoded), is_addition=True)

    async def get(self, cid: UUID) -> ConversationRecord:
        """Return the record. See `EventStore.get`."""
        return await self._read(lambda log: log.get(cid), small=True)

    async def resolve(self, name: str) -> UUID:
        """Return the conversation that a name denotes. See `EventStore.resolve`."""
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
        encoded = encode_draft(events)
        await self._prepare_followers(encoded)
        return await self._append(Append(cid, encoded, generation, expected_head))

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
        """Iterate over events, one page at a time. See `EventStore.read`."""
        if kinds is not None or after_ts is not None or before_ts is not None:
            event_filter = _make_event_filter(kinds, after_ts, before_ts)
            pages = self._select_pages(
                await self._read(lambda log: log.ranges_between(cid, start, stop, reverse)), reverse, event_filter
            )
        else:
            pages = self._pages(cid, start, stop, reverse)
        async with aclosing(pages):
            async for events in pages:
                for stored in events:
                    yield stored

    async def _pages(
        self, cid: UUID, start: int, stop: int | None, reverse: bool
    ) -> AsyncGenerator[builtins.list[StoredEvent]]:
        """Iterate over pages of events. Reverse reads begin with a small page, since most of them stop early."""
        rows = FIRST_ROWS if reverse else PAGE_ROWS
        events, remaining = await self._read_log(cid, lambda log: log.first_page(cid, start, stop, reverse, rows))
        while events:
            yield events
            if not remaining:
                return
            rows = min(rows * 4, PAGE_ROWS)
            events, remaining = await self._read_log(
                cid, lambda log, remaining=remaining, rows=rows: log.page(remaining, reverse, rows)
            )

    async def _select_pages(
        self, remaining: Ranges, reverse: bool, event_filter: EventFilter
    ) -> AsyncGenerator[builtins.list[StoredEvent]]:
        while remaining:
            events, remaining = await self._read(
                lambda log, remaining=remaining: log.select_page(remaining, reverse, event_filter)
            )
            yield events

    async def read_ids(self, cid: UUID, start: int, stop: int) -> builtins.list[tuple[int, UUID, str]]:
        """Return seq, id and kind of events. See `EventStore.read_ids`."""
        return await self._read(lambda log: log.read_ids(log.ranges_between(cid, start, stop)))

    async def every(self, kind: str) -> AsyncIterator[StoredEvent]:
        """Iterate over all events of a kind. See `EventStore.every`."""
        cid, seq, has_more = 0, -1, True
        while has_more:
            page = await self._read(
                lambda log, cid=cid, seq=seq: log.every(kind, cid, seq, _EVERY_ROWS), may_take_long=True
            )
            for _, stored in page:
                yield stored
            has_more = len(page) == _EVERY_ROWS
            if has_more:
                cid, last = page[-1]
                seq = last.seq

    async def tail(self, cid: UUID, n: int) -> builtins.list[StoredEvent]:
        """Return the last n events. See `EventStore.tail`."""
        return await self._read_log(cid, lambda log: log.tail(cid, n))

    async def locate(self, event_id: UUID, *, cid: UUID | None = None) -> tuple[UUID, int]:
        """Return (owner, seq). See `EventStore.locate`."""
        return await self._read(lambda log: log.locate(event_id, cid), small=True)

    async def fork(self, cid: UUID, **fields: Unpack[ForkFields]) -> ConversationRecord:
        """Fork by writing one row. See `EventStore.fork`."""
        planned, cut = plan_fork(fields, self._clock.now()), parse_cut(fields.get("at"))
        encoded = encode_draft(fields.get("events", ()))
        await self._prepare_followers(encoded)
        is_single_statement = not self._followers.matches(encoded)
        return await self._write(
            lambda log: log.fork(cid, cut, planned, encoded), is_single_statement=is_single_statement, is_addition=True
        )

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
        conditions = filter or ConversationFilter()
        return await self._read(lambda log: log.list(conditions, cursor, limit, order), small=True, may_take_long=True)

    async def count(self, filter: ConversationFilter | None = None) -> int:
        """Return how many conversations match. See `EventStore.count`."""
        return await self._read(lambda log: log.count(filter or ConversationFilter()), may_take_long=True)

    async def search(self, query: MessageQuery, *, on_indexed: OnIndexed | None = None) -> SearchPage:
        """Return messages that match. See `EventStore.search`."""
        from bough.events.search.search import search_messages

        return await search_messages(self._admin, query, on_indexed=on_indexed)

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
        """Delete conversations that have not changed for long. See `EventStore.prune`."""
        changed_before = self._clock.now() - older_than
        conditions = replace(filter or ConversationFilter(), updated_before=changed_before, include_deleted=False)
        deleted, size, cursor, has_more = 0, 0, None, True
        while has_more:
            page = await self.list(conditions, cursor, _PRUNE_ROWS, "updated")
            for record in page.items:
                if keep_tagged and record.tags:
                    continue
                freed = await self._prune(record.id, microseconds(changed_before), dry_run)
                if freed is not None:
                    deleted += 1
                    size += freed
            cursor, has_more = page.next_cursor, page.next_cursor is not None
        return Pruned(deleted=deleted, bytes=size)

    async def _prune(self, cid: UUID, changed_before: int, dry_run: bool) -> int | None:
        """Delete a conversation and return its bytes; None if it is kept. See `RelationalWriting.prune`."""
        try:
            return await self._write(lambda log: log.prune(cid, changed_before, dry_run=dry_run), may_take_long=True)
        except NotFound:
            return None  # another process deleted it

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

    async def lease_owner(self, cid: UUID) -> str | None:
        """Return the owner of the lease. See `EventStore.lease_owner`."""
        return await self._read(lambda log: log.lease_owner(cid), small=True)

    def keep_lease(self, lease: Lease, ttl: float, lost: Callable[[], object]) -> RenewedLease:
        """Renew a lease until it is stopped. See `EventStore.keep_lease`."""
        self._check_open()
        return self._lease_renewer.keep(lease, ttl, lost)

    async def release(self, lease: Lease) -> None:
        """Release the lease. See `EventStore.release`."""
        await self._write(lambda log: log.release(lease))

    async def transaction(
        self,
        side_tables: SideTables | Collection[SideTables],
        change: Callable[[Tables], T],
        *,
        read_only: bool = False,
        small: bool = False,
    ) -> T:
        """Run a change of side tables and log. See `EventStore.transaction`."""
        packages = list_packages(side_tables)
        await self._prepare(packages)
        statements = {name: sql for package in packages for name, sql in self._statements[package].items()}
        if read_only:
            return await self._read(lambda log: _run_read_only(log, statements, change), small=small)
        for follower in self._followers.packages():
            await self._prepare_follower(follower)
        return await self._write(lambda log: run_change(log, statements, change, appends=True))

    def on_append(self, side_tables: SideTables, kinds: Collection[str], add: OnAppend) -> None:
        """Write rows for certain events. See `EventStore.on_append`."""
        self._followers.add(side_tables, kinds, add)

    async def delete(self, cid: UUID, mode: DeleteMode = "tombstone") -> None:
        """Delete a conversation. See `EventStore.delete`."""
        if mode == "erase":
            await self.erase(cid)
            return
        await self._write(lambda log: log.delete(cid, mode), may_take_long=True)

    async def erase(
        self, cid: UUID, *, others: Collection[UUID] = (), compact: bool = True, tenant: Tenant | None = None
    ) -> ErasureReceipt:
        """Erase conversations and compact the store. See `EventStore.erase`."""
        await self._prepare([ERASURES])
        statements = self._statements[ERASURES]
        erased = await self._write(lambda log: log.erase(cid, others, statements, tenant), may_take_long=True)
        if erased.is_compacted:
            return erased  # the receipt of an earlier erasure
        failure: str | None = "only the store's operator compacts it"
        if compact:  # after the commit, which is final even if compacting fails
            failure = await self._compact()
            failure = None if failure is None else f"{failure}; erase it again to repeat"
        receipt = replace(erased, is_compacted=failure is None, not_covered=self._list_not_covered(failure))
        if receipt != erased:
            await self._write(lambda log: log.save_receipt(receipt, statements))
        return receipt

    def _list_not_covered(self, failure: str | None) -> tuple[str, ...]:
        reasons = () if failure is None else (f"{NOT_COMPACTED}: {failure}",)
        copies = tuple(f"the copy {name} from before an upgrade: delete it" for name in self._list_copies())
        return (*reasons, *copies, *NOT_COVERED, *(POSTGRES_NOT_COVERED if self._dialect == "postgres" else ()))

    def _list_copies(self) -> Sequence[str]:
        """Return the files that upgrades of the schema have left beside the store."""
        return ()

    async def count_imported(self, cid: UUID) -> int:
        """Return the seq before which events were imported. See `EventStore.count_imported`."""
        return await self._read(lambda log: log.count_imported(cid), small=True)

    async def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record, tombstone or not. See `EventStore.peek`."""
        return await self._read(lambda log: log.peek(cid), small=True)

    async def ancestry(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the ancestors of a conversation. See `EventStore.ancestry`."""
        return await self._read(lambda log: log.ancestry(cid))

    async def span(self, owner: UUID, lo: int, hi: int) -> builtins.list[StoredEvent]:
        """Return own events. See `EventStore.span`."""
        return await self._read(lambda log: log.span(owner, lo, hi))

    async def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert the missing parts of an import. See `EventStore.restore`."""
        await self._write(lambda log: _restore(log, pieces), may_take_long=True)

    async def census(self) -> Census:
        """Count the events and let the database check itself. See `EventStore.census`."""
        return await self._read(lambda log: log.census(), may_take_long=True)

    async def _prepare(self, packages: Collection[SideTables]) -> None:
        """Create or upgrade side tables, once per package.

        Raises:
            StoreError: The tables come from a newer version of the package.
            Unavailable: The tables are missing or old, and the store is read-only.
        """
        for package in packages:
            if package in self._statements:
                continue
            version = await self._read(lambda log, package=package: log.side_tables_version(package))
            if package.steps_after(version, self._dialect):
                if self._is_read_only:
                    raise faults.side_tables_missing(self.url, package.name)
                await self._write(lambda log, package=package: log.migrate_side_tables(package), may_take_long=True)
            self._statements[package] = package.statements(self._dialect)

    async def _prepare_followers(self, encoded: Draft) -> None:
        """Create or upgrade the tables of followers if any of them writes rows for these events."""
        if self._followers.matches(encoded):
            for package in self._followers.packages() - self._statements.keys():
                await self._prepare_follower(package)

    async def _prepare_follower(self, package: SideTables) -> None:
        """Create or upgrade a follower's tables; skip the follower if they are newer than its code."""
        try:
            await self._prepare([package])
        except (StoreError, Unavailable) as error:
            if error.details.get("package") != package.name:
                raise  # an error of the store itself, not of this package
            self._followers.skip(package, error)

    async def _read_log(self, cid: UUID, query: Callable[[RelationalReading], T]) -> T:
        """Run a query of events. Raises `NotFound`, not `CorruptLog`, if they are missing because of a deletion."""
        try:
            return await self._read(query, small=True)
        except CorruptLog:
            await self.get(cid)  # raises `NotFound` if the conversation was deleted meanwhile
            raise


def _make_event_filter(
    kinds: Collection[str] | None, after_ts: datetime | None, before_ts: datetime | None
) -> EventFilter:
    return EventFilter(
        None if kinds is None else tuple(kinds),
        None if after_ts is None else microseconds(after_ts),
        None if before_ts is None else microseconds(before_ts),
    )


def _restore(log: RelationalWriting, pieces: Sequence[ImportPiece]) -> None:
    log.restore(pieces)
    for piece in pieces:
        store_blobs(log, piece.record.id, piece.first, piece.events.blobs)


def _run_read_only(log: RelationalReading, statements: Mapping[str, str], change: Callable[[Tables], T]) -> T:
    with log.snapshot():
        return run_change(log, statements, change, appends=False)
