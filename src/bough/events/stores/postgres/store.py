"""The event store in a Postgres database."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from psycopg import Error
from psycopg.errors import DeadlockDetected
from psycopg_pool import PoolTimeout

from bough.errors import BoughError
from bough.events.draft import Append
from bough.events.keeping import Keeper
from bough.events.queries import queries
from bough.events.stores import faults
from bough.events.stores.batch import Batch
from bough.events.stores.postgres.appending import BatchedAppend
from bough.events.stores.postgres.connection import (
    Db,
    Pool,
    connect,
    discard,
    is_lost,
    migrate,
    open_pool,
    store_error,
)
from bough.events.stores.postgres.listen import EVERYTHING, Listener
from bough.events.stores.postgres.reading import PostgresReading
from bough.events.stores.postgres.renewal import RenewalConnection
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

    def __init__(self, url: str, schema: str, pool: Pool, *, clock: Clock, poll_seconds: float) -> None:
        super().__init__(clock, "postgres")
        self.url = hide_password(url)
        self.address = url
        self.schema = schema
        self._sql = queries("postgres")
        self._pool = pool
        self._pids = set[int]()
        self._listener = Listener(url, schema, self._sql, self._hub, self._pids, poll_seconds, clock)
        work = BatchedAppend(pool, url, self._sql, self._hub, clock, schema, self._pids)
        self._appends: Batch[Append] = Batch("bough-appends", self.url, work)
        self._writing = partial(PostgresWriting, sql=self._sql, clock=clock, channel=schema, followers=self._followers)
        renewal = RenewalConnection(url, schema, self._writing)
        self._keeper = Keeper(renewal.renew, renewal.close)
        self._threads = ThreadPoolExecutor(_THREADS, "bough-postgres")
        self._pid = os.getpid()
        weakref.finalize(self, self._keeper.stop)
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
        self._keeper.stop()
        self._keeper.join()
        self._appends.stop()
        self._appends.join()
        self._threads.shutdown()
        self._listener.stop()
        self._listener.join()
        self._pool.close()

    def _check_open(self) -> None:
        if self._closed:
            raise faults.closed(self.url)
        if self._pid != os.getpid():
            raise faults.forked(self.url)

    async def _append(self, append: Append) -> int:
        self._check_open()
        if self._followers.wants(append.draft):
            return await self._write(lambda log: log.append(append))
        if append.draft.rows:
            return await self._appends.submit(append)
        record = await self.get(append.cid)
        if append.generation not in (None, record.generation):
            raise faults.fenced(append.cid, append.generation or 0, record.generation)
        if append.expected_head not in (None, record.head):
            raise faults.moved_on(append.cid, append.expected_head or 0, record.head)
        return record.head

    async def _read(self, question: Callable[[PostgresReading], T], *, small: bool = False) -> T:
        return await self._ask(lambda db: question(PostgresReading(db, self._sql, self._clock)), repeatable=True)

    async def _write(self, change: Callable[[PostgresWriting], T], *, alone: bool = False) -> T:
        return await self._ask(partial(self._change, change, alone))

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
            pass  # the server rolled it back in favour of another, which has continued since
        except (Error, PoolTimeout) as error:
            if lost:
                discard(self._pool)
            if not (lost and repeatable):
                raise store_error(self.address, error) from error
            repeatable = False
        return self._with_connection(work, repeatable)
