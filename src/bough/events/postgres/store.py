"""The event store in a Postgres database."""

from __future__ import annotations

import asyncio
import builtins
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from psycopg import Error
from psycopg.errors import DeadlockDetected
from psycopg_pool import PoolTimeout

from bough.errors import BoughError, CorruptLog
from bough.events import faults
from bough.events.base import BaseEventStore
from bough.events.batch import Batch
from bough.events.check import Census
from bough.events.draft import Piece, draft, fresh
from bough.events.lineage import Range
from bough.events.postgres.appending import Append, BatchedAppend
from bough.events.postgres.connection import (
    Db,
    Pool,
    connect,
    discard,
    is_lost,
    migrate,
    open_pool,
    redacted,
    store_error,
)
from bough.events.postgres.listen import Listener
from bough.events.postgres.reading import PostgresReading
from bough.events.postgres.writing import PostgresWriting
from bough.events.queries import queries
from bough.events.record import ConversationFilter, ConversationRecord, Lease, Page, StoredEvent
from bough.events.relational.writing import batch_of
from bough.events.store import Cut, DeleteMode
from bough.types import Clock, JsonObject, SystemClock, new_id

if TYPE_CHECKING:
    from bough.events.model import Event

T = TypeVar("T")

_THREADS = 8
SCHEMA = "bough"
POLL_SECONDS = 5.0


class PostgresEventStore(BaseEventStore):
    """Conversations in one database, for any number of processes on any number of machines. Source: `EventStore`.

    Appends from the whole process travel in one statement a batch, everything else through a small pool. It may be
    used from several event loops at once.
    """

    def __init__(self, url: str, schema: str, pool: Pool, *, clock: Clock, poll_seconds: float) -> None:
        super().__init__()
        self.url = redacted(url)
        self._address = url
        self._schema = schema
        self._clock = clock
        self._sql = queries("postgres")
        self._pool = pool
        self._pids = set[int]()
        self._listener = Listener(url, schema, self._sql, self._hub, self._pids, poll_seconds)
        work = BatchedAppend(pool, url, self._sql, self._hub, clock, schema, self._pids)
        self._appends: Batch[Append] = Batch("bough-appends", self.url, work)
        self._threads = ThreadPoolExecutor(_THREADS, "bough-postgres")
        weakref.finalize(self, self._appends.stop)
        weakref.finalize(self, self._listener.stop)

    @classmethod
    async def open(
        cls, url: str, *, schema: str = SCHEMA, clock: Clock | None = None, poll_seconds: float = POLL_SECONDS
    ) -> PostgresEventStore:
        """Return the store in a database, made or brought up to date first.

        Args:
            url: `postgresql://user:password@host:port/database`.
            schema: Which schema of the database; several stores can share one.
            clock: Where time comes from; the machine's by default.
            poll_seconds: How often live tails look for themselves, in case a notification was lost.

        Raises:
            StoreError: The server cannot be reached, or the schema comes from a newer bough.
        """
        return await asyncio.to_thread(cls._open, url, schema, clock or SystemClock(), poll_seconds)

    @classmethod
    def _open(cls, url: str, schema: str, clock: Clock, poll_seconds: float) -> PostgresEventStore:
        pool = open_pool(url, schema)
        try:
            with connect(url, schema) as db:
                migrate(db, url, schema)
            return cls(url, schema, pool, clock=clock, poll_seconds=poll_seconds)
        except Error as error:
            pool.close()
            raise store_error(url, error) from error
        except BoughError:
            pool.close()
            raise

    async def create(
        self, record: ConversationRecord | None = None, *, events: Sequence[Event] = ()
    ) -> ConversationRecord:
        """Create a root conversation. See `EventStore.create`."""
        root, drafted = record or fresh(new_id(), self._clock.now()), draft(events)
        return await self._write(lambda log: log.create(root, drafted))

    async def get(self, cid: UUID) -> ConversationRecord:
        """Return the record. See `EventStore.get`."""
        return await self._read(lambda log: log.get(cid))

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
        self._check_open()
        drafted = draft(events)
        if drafted.rows:
            return await self._appends.submit(Append(cid, drafted, generation, expected_head))
        record = await self.get(cid)
        if generation not in (None, record.generation):
            raise faults.fenced(cid, generation or 0, record.generation)
        if expected_head not in (None, record.head):
            raise faults.moved_on(cid, expected_head or 0, record.head)
        return record.head

    async def read(
        self, cid: UUID, start: int = 0, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[StoredEvent]:
        """Iterate events, a page at a time. See `EventStore.read`."""
        events, left = await self._read_log(cid, lambda log: log.begin(cid, start, stop, reverse))
        while events:
            for stored in events:
                yield stored
            if not left:
                return
            events, left = await self._read_log(cid, lambda log, left=left: log.page(left, reverse))

    async def tail(self, cid: UUID, n: int) -> builtins.list[StoredEvent]:
        """Return the last n events. See `EventStore.tail`."""
        return await self._read_log(cid, lambda log: log.tail(cid, n))

    async def locate(self, event_id: UUID, *, cid: UUID | None = None) -> tuple[UUID, int]:
        """Return (owner, seq). See `EventStore.locate`."""
        return await self._read(lambda log: log.locate(event_id, cid))

    async def fork(
        self,
        cid: UUID,
        *,
        at: Cut | None = None,
        id: UUID | None = None,
        events: Sequence[Event] = (),
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        config: JsonObject | None = None,
        owner: str | None = None,
        lineage: JsonObject | None = None,
    ) -> ConversationRecord:
        """Fork with one statement. See `EventStore.fork`."""
        now, id = self._clock.now(), id or new_id()
        wanted = ConversationRecord(
            id=id, root=id, title=title, tags=dict(tags or {}), config=config or {}, owner=owner,
            lineage=lineage or {}, created=now, updated=now,
        )  # fmt: skip
        drafted = draft(events)
        return await self._write(lambda log: log.fork(cid, at, wanted, drafted), alone=True)

    async def list(self, filter: ConversationFilter | None = None, cursor: str | None = None, limit: int = 50) -> Page:
        """Return a page of conversations. O(conversations in the store). See `EventStore.list`."""
        return await self._read(lambda log: log.list(filter or ConversationFilter(), cursor, limit))

    async def children(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the forks. See `EventStore.children`."""
        return await self._read(lambda log: log.children(cid))

    async def lineage(self, cid: UUID) -> builtins.list[Range[UUID]]:
        """Return the ranges of the log. See `EventStore.lineage`."""
        return await self._read(lambda log: log.lineage(cid))

    async def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take the lease. See `EventStore.acquire`."""
        return await self._write(lambda log: log.acquire(cid, owner, ttl))

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease. See `EventStore.renew`."""
        return await self._write(lambda log: log.renew(lease, ttl))

    async def release(self, lease: Lease) -> None:
        """Give the lease back. See `EventStore.release`."""
        await self._write(lambda log: log.release(lease))

    async def delete(self, cid: UUID, mode: DeleteMode = "tombstone") -> None:
        """Delete a conversation. See `EventStore.delete`."""
        await self._write(lambda log: log.delete(cid, mode))

    async def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record, tombstone or not. See `EventStore.peek`."""
        return await self._read(lambda log: log.peek(cid))

    async def ancestry(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return what a conversation descends from. See `EventStore.ancestry`."""
        return await self._read(lambda log: log.ancestry(cid))

    async def span(self, owner: UUID, lo: int, hi: int) -> builtins.list[StoredEvent]:
        """Return own events with their digests checked. See `EventStore.span`."""
        return await self._read(lambda log: log.span(owner, lo, hi))

    async def restore(self, pieces: Sequence[Piece]) -> None:
        """Insert what an import found missing. See `EventStore.restore`."""
        await self._write(lambda log: log.restore(pieces))

    async def census(self) -> Census:
        """Count the events. See `EventStore.census`."""
        return await self._read(lambda log: log.census())

    async def aclose(self) -> None:
        """Finish what is being written and close; subscribers end. See `EventStore.aclose`."""
        if self._closed:
            return
        self._closed = True
        self._hub.close()
        self._appends.flush()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._appends.stop()
        self._appends.join()
        self._threads.shutdown()
        self._listener.stop()
        self._listener.join()
        self._pool.close()

    def _check_open(self) -> None:
        if self._closed:
            raise faults.closed(self.url)

    async def _read(self, question: Callable[[PostgresReading], T]) -> T:
        return await self._ask(lambda db: question(PostgresReading(db, self._sql)), repeatable=True)

    async def _read_log(self, cid: UUID, question: Callable[[PostgresReading], T]) -> T:
        """Read events; if some are missing because the conversation was deleted meanwhile, say that instead."""
        try:
            return await self._read(question)
        except CorruptLog:
            await self.get(cid)
            raise

    async def _write(self, change: Callable[[PostgresWriting], T], *, alone: bool = False) -> T:
        """Make a change in a transaction (`alone`: in one statement) and tell watchers once it is durable."""
        return await self._ask(partial(self._change, change, alone))

    def _change(self, change: Callable[[PostgresWriting], T], alone: bool, db: Db) -> T:
        log = PostgresWriting(db, self._sql, self._clock)
        if alone:
            result = change(log)
        else:
            with db.transaction():
                result = change(log)
                if log.news:
                    ids = ",".join(str(cid) for cid, _, _ in log.news)
                    log.run("tell", channel=self._schema, ids=ids if len(ids) < 7900 else "*")
        for cid, first, drafted in log.news:
            self._hub.publish(cid, batch_of(first, drafted))
        return result

    async def _ask(self, work: Callable[[Db], T], *, repeatable: bool = False) -> T:
        self._check_open()
        call = partial(self._with_connection, work, repeatable)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _with_connection(self, work: Callable[[Db], Any], repeatable: bool) -> Any:
        """Do something over a pooled connection; what only reads is done once more when its connection was dead."""
        lost = False
        try:
            with self._pool.connection() as db:
                self._pids.add(db.info.backend_pid)
                try:
                    return work(db)
                except Error as error:
                    lost = is_lost(error, db)
                    raise
        except DeadlockDetected:
            pass  # the server rolled it back in favour of another, which has gone on since
        except (Error, PoolTimeout) as error:
            if lost:
                discard(self._pool)
            if not (lost and repeatable):
                raise store_error(self._address, error) from error
            repeatable = False
        return self._with_connection(work, repeatable)
