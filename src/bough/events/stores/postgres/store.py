"""The event store in a Postgres database."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

from psycopg import Error
from psycopg.errors import DeadlockDetected
from psycopg_pool import PoolTimeout

from bough.errors import BoughError, Conflict, StoreError, Unavailable
from bough.events.draft import Append
from bough.events.lease_renewal import LeaseRenewer
from bough.events.queries import queries
from bough.events.record import Lease
from bough.events.stores import faults
from bough.events.stores.batch import Batch
from bough.events.stores.postgres.appending import BatchedAppend
from bough.events.stores.postgres.bounds import (
    ANSWER_SECONDS,
    CALL_SECONDS,
    CONNECT_SECONDS,
    PATIENT_SECONDS,
    Watchdog,
)
from bough.events.stores.postgres.connection import (
    Db,
    Pool,
    connect,
    is_lost,
    make_timeout_error,
    migrate,
    open_pool,
    store_error,
)
from bough.events.stores.postgres.listen import EVERYTHING, Listener
from bough.events.stores.postgres.reading import PostgresReading
from bough.events.stores.postgres.writing import PostgresWriting
from bough.events.stores.relational.store import RelationalEventStore
from bough.events.stores.relational.writing import batch_of
from bough.events.url import hide_password
from bough.types import Clock, SystemClock

T = TypeVar("T")

_THREADS = 8
SCHEMA = "bough"
POLL_SECONDS = 5.0


class PostgresEventStore(RelationalEventStore):
    """Conversations in one database, for any number of processes on any number of machines. Source: `EventStore`.

    Appends from the whole process travel in one statement a batch, everything else through a small pool. It may be
    used from several event loops at once.

    Attributes:
        url: Where it is, to be shown: without a password.
        address: Where it is, to connect to.
        schema: Which schema of the database.
    """

    def __init__(
        self, url: str, schema: str, pool: Pool, *, clock: Clock, poll_seconds: float, watchdog: Watchdog
    ) -> None:
        super().__init__(clock, "postgres")
        self.url = hide_password(url)
        self.address = url
        self.schema = schema
        self._sql = queries("postgres")
        self._pool = pool
        self._pids = set[int]()
        self._watchdog = watchdog
        self._listener = Listener(url, schema, self._sql, self._hub, self._pids, poll_seconds, clock, watchdog)
        work = BatchedAppend(pool, url, self._sql, self._hub, clock, schema, self._pids, watchdog)
        self._appends: Batch[Append] = Batch("bough-appends", self.url, work)
        self._writing = partial(PostgresWriting, sql=self._sql, clock=clock, channel=schema, followers=self._followers)
        renewal = RenewalConnection(url, schema, self._writing, watchdog)
        self._lease_renewer = LeaseRenewer(renewal.renew, renewal.close)
        self._threads = ThreadPoolExecutor(_THREADS, "bough-postgres")
        self._pid = os.getpid()
        weakref.finalize(self, self._lease_renewer.stop)
        weakref.finalize(self, self._appends.stop)
        weakref.finalize(self, self._listener.stop)
        weakref.finalize(self, watchdog.stop)

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
        watchdog = Watchdog()
        pool: Pool | None = None
        try:
            pool = open_pool(url, schema, watchdog)
            with connect(url, schema, watchdog) as db:
                migrate(db, url, schema)
            return cls(url, schema, pool, clock=clock, poll_seconds=poll_seconds, watchdog=watchdog)
        except (Error, BoughError) as error:
            watchdog.stop()
            if pool is not None:
                pool.close()
            if isinstance(error, Error):
                raise store_error(url, error) from error
            raise

    async def aclose(self) -> None:
        """Finish what is being written and close; subscribers end. See `EventStore.aclose`."""
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return  # its threads and connections are the parent's
        self._hub.close()
        self._appends.flush()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._lease_renewer.stop()
        self._lease_renewer.join()
        self._appends.stop()
        self._appends.join()
        self._threads.shutdown()
        self._listener.stop()
        self._listener.join()
        self._pool.close()
        self._watchdog.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise faults.make_closed(self.url)
        if self._pid != os.getpid():
            raise faults.make_forked(self.url)

    async def _append(self, append: Append) -> int:
        self._check_open()
        if self._followers.wants(append.draft):
            return await self._wait(self._append_followed(append), CALL_SECONDS)
        if append.draft.rows:
            return await self._watch_write(self._wait(self._appends.submit(append), CALL_SECONDS))
        record = await self.get(append.cid)
        if append.generation not in (None, record.generation):
            raise faults.make_fenced(append.cid, append.generation or 0, record.generation)
        if append.expected_head not in (None, record.head):
            raise faults.make_moved_on(append.cid, append.expected_head or 0, record.head)
        return record.head

    async def _append_followed(self, append: Append) -> int:
        """Append in a transaction of its own; one whose answer was lost is looked for, and sent once more."""
        try:
            return await self._write(lambda log: log.append(append))
        except (StoreError, Unavailable) as lost:
            if lost.details.get("outcome") != "unknown":
                raise
        if (head := await self._find_append(append)) is not None:
            return head
        try:
            return await self._write(lambda log: log.append(append))
        except Conflict:  # what was sent first may have arrived meanwhile
            if (head := await self._find_append(append)) is None:
                raise
            return head

    async def _find_append(self, append: Append) -> int | None:
        """Return the head behind an append that the log has already."""
        ids = [UUID(bytes=append.draft.rows[0].id)]
        found = await self._read(lambda log: log.run("found_events", ids=ids))
        there = [seq + len(append.draft.rows) for _, cid, seq in found if cid == append.cid.bytes]
        return there[0] if there else None

    async def _read(self, question: Callable[[PostgresReading], T], *, small: bool = False, patient: bool = False) -> T:
        def ask(db: Db) -> T:
            return question(PostgresReading(db, self._sql, self._clock))

        return await self._ask(ask, repeatable=True, patient=patient)

    async def _write(self, change: Callable[[PostgresWriting], T], *, alone: bool = False, patient: bool = False) -> T:
        return await self._watch_write(self._ask(partial(self._change, change, alone), patient=patient))

    def _change(self, change: Callable[[PostgresWriting], T], alone: bool, db: Db) -> T:
        log = self._writing(db)
        if alone:
            result = change(log)
        else:
            with db.transaction():
                result = change(log)
                if log.news:
                    ids = ",".join(str(cid) for cid, _, _ in log.news)
                    log.run("tell", channel=self.schema, ids=ids if len(ids) < 7900 else EVERYTHING)
                else:
                    log.run("tell_changed", channel=self.schema)
        self._hub.publish_commit()
        for cid, first, drafted in log.news:
            self._hub.publish(cid, batch_of(first, drafted))
        return result

    async def _ask(self, work: Callable[[Db], T], *, repeatable: bool = False, patient: bool = False) -> T:
        self._check_open()
        seconds = PATIENT_SECONDS if patient else CALL_SECONDS
        call = partial(self._with_connection, work, repeatable, monotonic() + seconds, patient)
        return await self._wait(asyncio.get_running_loop().run_in_executor(self._threads, call), seconds)

    async def _wait(self, answer: Awaitable[T], seconds: float) -> T:
        """Wait for an answer no longer than that: those who are served before may wait for theirs.

        Raises:
            Unavailable: It did not come.
        """
        bound = asyncio.timeout(seconds)
        try:
            async with bound:
                return await answer
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise make_timeout_error(self.address, seconds) from error

    def _with_connection(self, work: Callable[[Db], Any], repeatable: bool, ends: float, patient: bool) -> Any:
        """Do something over a pooled connection; what only reads is done once more when its connection was dead."""
        lost = expired = False
        try:
            with self._pool.connection(min(CONNECT_SECONDS, max(ends - monotonic(), 0.0))) as db:
                self._pids.add(db.info.backend_pid)
                left = ends - monotonic()
                with self._watchdog.watch(db, left if patient else min(left, ANSWER_SECONDS)) as watched:
                    try:
                        return work(db)
                    except Error as error:
                        lost, expired = is_lost(error, db), watched.expired
                        raise
        except DeadlockDetected:
            pass  # the server rolled it back in favour of another, which has continued since
        except (Error, PoolTimeout) as error:
            if lost:
                self._pool.drain()  # the others are as dead, most likely
            if not (lost and repeatable and monotonic() < ends):
                raise (make_timeout_error(self.address) if expired else store_error(self.address, error)) from error
            repeatable = False
        return self._with_connection(work, repeatable, ends, patient)


class RenewalConnection:
    """Renews leases over a connection that is made when it is first needed, and again when it was lost.

    Args:
        writing: Makes the writer over a connection.
        watchdog: Ends a renewal that the server does not answer.
    """

    def __init__(self, url: str, schema: str, writing: Callable[[Db], PostgresWriting], watchdog: Watchdog) -> None:
        self._url = url
        self._schema = schema
        self._writing = writing
        self._watchdog = watchdog
        self._db: Db | None = None

    def renew(self, lease: Lease, ttl_seconds: float) -> None:
        """Extend a lease. Blocks.

        Raises:
            Conflict: It was lost meanwhile.
            StoreError: The server cannot be reached.
        """
        try:
            if self._db is None:
                self._db = connect(self._url, self._schema, self._watchdog)
            with self._watchdog.watch(self._db, min(ttl_seconds, ANSWER_SECONDS)), self._db.transaction():
                self._writing(self._db).renew(lease, ttl_seconds)
        except (Error, OSError) as error:
            self.close()
            raise store_error(self._url, error) from error

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()
            self._db = None
