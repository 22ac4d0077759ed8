"""The event store in a Postgres database."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

from psycopg import Error, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import DeadlockDetected
from psycopg_pool import PoolTimeout

from bough.errors import BoughError, Conflict, StoreError, Unavailable
from bough.events.draft import Append
from bough.events.lease_renewal import LeaseRenewer
from bough.events.queries import queries
from bough.events.record import Lease
from bough.events.stores import faults
from bough.events.stores.batch import Batch
from bough.events.stores.faults import hide_password
from bough.events.stores.hub import END, Hub
from bough.events.stores.postgres.appending import BatchedAppend
from bough.events.stores.postgres.bounds import (
    ANSWER_SECONDS,
    CALL_SECONDS,
    CONNECT_SECONDS,
    LONG_CALL_SECONDS,
    Watchdog,
)
from bough.events.stores.postgres.connection import (
    Db,
    Pool,
    compact_tables,
    connect,
    is_lost,
    make_timeout_error,
    migrate,
    open_pool,
    store_error,
)
from bough.events.stores.postgres.reading import PostgresReading
from bough.events.stores.postgres.writing import PostgresWriting
from bough.events.stores.relational.store import RelationalEventStore
from bough.events.stores.relational.writing import make_batch
from bough.types import Clock, SystemClock

T = TypeVar("T")

_THREADS = 8
SCHEMA = "bough"
POLL_SECONDS = 5.0


def _name_database(url: str) -> tuple[str, str, str]:
    """Return host, port and name of the database of a URL."""
    parts = conninfo_to_dict(url)
    return str(parts.get("host") or ""), str(parts.get("port") or 5432), str(parts.get("dbname") or "")


class PostgresEventStore(RelationalEventStore):
    """Stores conversations in one database, for any number of processes and machines. See `EventStore`.

    All appends of the process are written in batches, one statement each; everything else uses a small pool. Several
    event loops may use it concurrently.

    Attributes:
        url: The URL without its password, for display.
        address: The URL to connect to.
        schema: The schema.
    """

    def __init__(
        self, url: str, schema: str, pool: Pool, *, clock: Clock, poll_seconds: float, watchdog: Watchdog
    ) -> None:
        super().__init__(clock, "postgres")
        self.url = hide_password(url)
        self.address = url
        self.schema = schema
        self.files_key = ("postgres", *_name_database(url), schema)
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
        """Open the store in a database. Creates or upgrades the schema if needed.

        Args:
            url: `postgresql://user:password@host:port/database`.
            schema: The schema; several stores can share a database.
            clock: The clock; the server's by default.
            poll_seconds: How often subscriptions poll, in case a notification was lost.

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
        """Finish pending writes and close. Subscriptions end. See `EventStore.aclose`."""
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return  # after a fork, threads and connections belong to the parent
        self._hub.close()
        self._appends.flush()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        # The watchdog last: the others need its time limits while they close.
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
            raise faults.store_closed(self.url)
        if self._pid != os.getpid():
            raise faults.store_of_parent_process(self.url)

    async def _append(self, append: Append) -> int:
        self._check_open()
        if self._followers.matches(append.draft):
            return await self._wait(self._append_followed(append), CALL_SECONDS)
        if append.draft.rows:
            return await self._record_failure(self._wait(self._appends.submit(append), CALL_SECONDS))
        record = await self.get(append.cid)
        if append.generation not in (None, record.generation):
            raise faults.generation_conflict(append.cid, append.generation or 0, record.generation)
        if append.expected_head not in (None, record.head):
            raise faults.head_conflict(append.cid, append.expected_head or 0, record.head)
        return record.head

    async def _append_followed(self, append: Append) -> int:
        """Append in a separate transaction. If the answer is lost, look the append up and resend it if missing."""
        try:
            return await self._write(lambda log: log.append(append))
        except (StoreError, Unavailable) as lost:
            if lost.details.get("outcome") != "unknown":
                raise
        if (head := await self._find_append(append)) is not None:
            return head
        try:
            return await self._write(lambda log: log.append(append))
        except Conflict:  # the first transaction may have been applied late
            if (head := await self._find_append(append)) is None:
                raise
            return head

    async def _find_append(self, append: Append) -> int | None:
        """Return the head after an append that the log has; None if it does not have it."""
        ids = [UUID(bytes=append.draft.rows[0].id)]
        rows = await self._read(lambda log: log.run("found_events", ids=ids))
        heads = [seq + len(append.draft.rows) for _, cid, seq in rows if cid == append.cid.bytes]
        return heads[0] if heads else None

    async def _read(
        self, query: Callable[[PostgresReading], T], *, small: bool = False, may_take_long: bool = False
    ) -> T:
        def ask(db: Db) -> T:
            return query(PostgresReading(db, self._sql, self._clock))

        return await self._run_in_thread(ask, repeatable=True, may_take_long=may_take_long)

    async def _write(
        self,
        change: Callable[[PostgresWriting], T],
        *,
        is_single_statement: bool = False,
        is_addition: bool = False,
        may_take_long: bool = False,
    ) -> T:
        return await self._record_failure(
            self._run_in_thread(
                partial(self._change, change, is_single_statement, is_addition), may_take_long=may_take_long
            )
        )

    def _change(
        self, change: Callable[[PostgresWriting], T], is_single_statement: bool, is_addition: bool, db: Db
    ) -> T:
        log = self._writing(db)
        if is_single_statement:
            result = change(log)
        else:
            with db.transaction():
                result = change(log)
                if log.notifications:
                    ids = ",".join(str(cid) for cid, _, _ in log.notifications)
                    log.run("tell", channel=self.schema, ids=ids if len(ids) < 7900 else _ALL_CONVERSATIONS)
                else:
                    log.run("tell_changed", channel=self.schema)
        # After the commit: subscribers that read earlier would see the old state.
        self._hub.publish_commit(is_addition=is_addition)
        for cid, first, appended in log.notifications:
            self._hub.publish(cid, make_batch(first, appended))
        return result

    async def _compact(self) -> str | None:
        return await self._run_in_thread(compact_tables, may_take_long=True)

    async def _run_in_thread(
        self, work: Callable[[Db], T], *, repeatable: bool = False, may_take_long: bool = False
    ) -> T:
        self._check_open()
        seconds = LONG_CALL_SECONDS if may_take_long else CALL_SECONDS
        call = partial(self._with_connection, work, repeatable, monotonic() + seconds, may_take_long)
        return await self._wait(asyncio.get_running_loop().run_in_executor(self._threads, call), seconds)

    async def _wait(self, answer: Awaitable[T], seconds: float) -> T:
        """Wait for an answer for at most `seconds`, including the time in queues.

        Raises:
            Unavailable: The answer did not arrive in time.
        """
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await answer
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise make_timeout_error(self.address, seconds) from error

    def _with_connection(
        self, work: Callable[[Db], Any], repeatable: bool, deadline: float, may_take_long: bool
    ) -> Any:
        """Run `work` over a pooled connection. Reads are repeated once if the connection was dead."""
        lost = expired = False
        try:
            with self._pool.connection(min(CONNECT_SECONDS, max(deadline - monotonic(), 0.0))) as db:
                self._pids.add(db.info.backend_pid)
                remaining = deadline - monotonic()
                with self._watchdog.watch(
                    db, remaining if may_take_long else min(remaining, ANSWER_SECONDS)
                ) as watched:
                    try:
                        return work(db)
                    except Error as error:
                        lost, expired = is_lost(error, db), watched.expired
                        raise
        except DeadlockDetected:
            pass  # the server rolled it back in favour of another transaction; run it again
        except (Error, PoolTimeout) as error:
            if lost:
                self._pool.drain()  # the other connections most likely are lost too
            if not (lost and repeatable and monotonic() < deadline):
                raise (make_timeout_error(self.address) if expired else store_error(self.address, error)) from error
            repeatable = False
        return self._with_connection(work, repeatable, deadline, may_take_long)


class RenewalConnection:
    """Renews leases over a separate connection, which is opened on demand and reopened when lost.

    Args:
        writing: Creates the writer for a connection.
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
            Conflict: The lease was lost.
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


_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 5.0
_ALL_CONVERSATIONS = "*"


class Listener:
    """Listens in a thread. Reconnects after a lost connection, and finds missed events by comparing heads.

    Args:
        own_pids: Server processes of this process's connections, whose commits are published directly.
        poll_seconds: How often heads are compared, even without notifications.
        watchdog: Ends a connection that does not answer, so that it is replaced.
    """

    def __init__(
        self,
        url: str,
        schema: str,
        queries: Mapping[str, str],
        hub: Hub,
        own_pids: Collection[int],
        poll_seconds: float,
        clock: Clock,
        watchdog: Watchdog,
    ) -> None:
        self._url = url
        self._schema = schema
        self._queries = queries
        self._hub = hub
        self._own_pids = own_pids
        self._poll_seconds = poll_seconds
        self._clock = clock
        self._watchdog = watchdog
        self._next_poll = monotonic() + poll_seconds
        self._stopping = threading.Event()
        self._heads: dict[UUID, int] = {}
        self._db = self._connect()
        self._thread = threading.Thread(target=self._run, name="bough-listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the connection. Idempotent; callable from any thread."""
        self._stopping.set()
        self._db.close()

    def join(self) -> None:
        """Wait for the thread to end. Blocks."""
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._receive()
            except (Error, OSError):
                self._reconnect()

    def _receive(self) -> None:
        notifications = list(self._db.notifies(timeout=max(self._next_poll - monotonic(), 0.0), stop_after=1))
        others = {notification.payload for notification in notifications if notification.pid not in self._own_pids}
        if others:  # own commits were published when they were made
            self._hub.publish_commit()
        for payload in others:
            self._publish(payload)
        if monotonic() >= self._next_poll:  # also during steady traffic, since a notification may be lost
            self._compare()

    def _publish(self, payload: str) -> None:
        if not payload:
            return  # only side tables changed
        if payload == _ALL_CONVERSATIONS:
            self._compare()
            return
        changed = [UUID(part) for part in payload.split(",")]
        watched = [cid for cid in changed if self._hub.is_watched(cid)]
        if not watched:
            return
        heads = self._read_heads(watched)
        for cid in watched:
            self._hub.publish(cid, None if cid in heads else END)

    def _compare(self) -> None:
        self._next_poll = monotonic() + self._poll_seconds
        self._hub.publish_commit()  # a notification may have been missed
        watched = self._hub.list_watched()
        if not watched:
            return
        heads = self._read_heads(watched)
        for cid in watched:
            if cid not in heads:
                self._hub.publish(cid, END)
            elif heads[cid] != self._heads.get(cid):
                self._hub.publish(cid, None)
        self._heads = heads

    def _read_heads(self, watched: Sequence[UUID]) -> dict[UUID, int]:
        with self._watchdog.watch(self._db, ANSWER_SECONDS):
            return PostgresReading(self._db, self._queries, self._clock).heads(watched)

    def _connect(self) -> Db:
        db = connect(self._url, self._schema, self._watchdog)
        with self._watchdog.watch(db, CONNECT_SECONDS):
            db.execute(sql.SQL("listen {}").format(sql.Identifier(self._schema)))
        return db

    def _reconnect(self) -> None:
        pause = _RETRY_SECONDS
        while not self._stopping.is_set():
            try:
                self._db.close()
                self._db = self._connect()
                self._compare()  # after `listen`: what was written before it was not notified
            except (Error, OSError):
                self._stopping.wait(pause)  # unavailable: writers get an error, watchers only wait
                pause = min(pause * 2, _MAX_RETRY_SECONDS)
            else:
                return
