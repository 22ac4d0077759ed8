"""Run queries: small ones in the caller's thread, others in up to four threads with a connection each."""

from __future__ import annotations

import asyncio
import builtins
import sqlite3
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from bough.events.record import ConversationFilter, Order, Page, StoredEvent
from bough.events.stores import faults
from bough.events.stores.batch import BatchResult, deliver
from bough.events.stores.relational.reading import PAGE_ROWS, EventFilter, Ranges
from bough.events.stores.sqlite.connection import SQLITE_ERRORS, StoreFile, connect, store_error
from bough.events.stores.sqlite.reading import SqliteReading
from bough.types import Clock

MAX_ROWS = 128
"""Maximum number of events, or of conversations in a lineage, that an inline query reads."""

MAX_BYTES = 256 << 10
"""Maximum payload bytes of an inline query."""

MAX_RECORDS = 20
"""Maximum number of records of an inline list of conversations."""

_MAX_LIST_STEPS = 16_000
"""Steps of SQLite's virtual machine for an inline list: less than a millisecond."""

_STEPS_A_CALL = 1000
_MAX_ROW_BYTES = 64 << 10
SLOW_SECONDS = 0.025
"""An inline query that takes longer means that the disk is slow; inline queries then pause."""

_PAUSE_SECONDS = 1.0


class InlineReader:
    """Runs small queries in the caller's thread, over one connection. Never waits for a lock or another query.

    The events, bytes and conversations that a query reads are limited, and SQLite refuses rows that are too large
    before it reads them. After a slow query, no query is run inline for one second.
    """

    def __init__(self, file: StoreFile, sql: Mapping[str, str], clock: Clock) -> None:
        self._lock = threading.Lock()
        self._log: _SmallReading | None = _SmallReading(connect(file, read_only=True), sql, clock)
        # Waiting for a lock here would block the caller's event loop: fail instead, and let a thread wait.
        self._log.db.execute("pragma busy_timeout = 0")
        self._log.db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_ROW_BYTES)
        self._paused_until = 0.0

    def try_query(self, query: Callable[[SqliteReading], Any]) -> BatchResult | None:
        """Run a query and return its result; None if a thread must run it.

        Raises:
            BoughError: Raised by the query.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            started = monotonic()
            if self._log is None or started < self._paused_until:
                return None
            outcome = BatchResult(query(self._log))
            ended = monotonic()
            if ended - started > SLOW_SECONDS:
                self._paused_until = ended + _PAUSE_SECONDS
        except (_TooLarge, *SQLITE_ERRORS):
            return None  # a thread then runs it: it may wait for locks and read more, and it translates errors
        else:
            return outcome
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connection. All later queries go to threads."""
        with self._lock:
            log, self._log = self._log, None
        if log is not None:
            log.db.close()


class _TooLarge(Exception):
    """The result is too large for an inline query."""


class _SmallReading(SqliteReading):
    """Queries whose results are limited; larger ones raise `_TooLarge`."""

    page_bytes = MAX_BYTES

    def lineage_rows(self, cid: UUID, limit: int = MAX_ROWS + 1) -> builtins.list[Any]:
        """Return the rows of a lineage. See `RelationalReading.lineage_rows`."""
        rows = super().lineage_rows(cid, limit)
        if len(rows) == limit:
            raise _TooLarge
        return rows

    def page(self, ranges: Ranges, reverse: bool, rows: int = PAGE_ROWS) -> tuple[builtins.list[StoredEvent], Ranges]:
        """Return a page of at most `MAX_ROWS` events and `MAX_BYTES`. See `RelationalReading.page`."""
        expected = min(sum(hi - lo for _, lo, hi in ranges), rows)
        if expected > MAX_ROWS:
            raise _TooLarge
        events, remaining = super().page(ranges, reverse, rows)
        if len(events) < expected:
            raise _TooLarge
        return events, remaining

    def select_page(
        self, ranges: Ranges, reverse: bool, event_filter: EventFilter
    ) -> tuple[builtins.list[StoredEvent], Ranges]:
        """Refuse, since the number of rows to examine is unknown. See `RelationalReading.select_page`."""
        raise _TooLarge

    def list(self, filter: ConversationFilter, cursor: str | None, limit: int, order: Order) -> Page:
        """Return a page of at most `MAX_RECORDS` records if few rows are sorted. See `RelationalReading.list`."""
        if limit > MAX_RECORDS:
            raise _TooLarge
        remaining = iter(range(_MAX_LIST_STEPS // _STEPS_A_CALL))
        # Ends the statement with an error; a thread then runs it without a limit.
        self.db.set_progress_handler(lambda: next(remaining, None) is None, _STEPS_A_CALL)
        try:
            return super().list(filter, cursor, limit, order)
        finally:
            self.db.set_progress_handler(None, 0)


T = TypeVar("T")

_MAX_THREADS = 4
_MAX_CONSECUTIVE_INLINE = 32

Query = Callable[[SqliteReading], Any]


class _QueuedQuery(NamedTuple):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    query: Query


class Readers:
    """Runs queries without blocking event loops on the disk.

    Queries that `InlineReader` cannot run go to daemon threads, each of which is started when all others are busy. They
    are cheaper than an executor: a query costs one wake-up of the thread and one of the event loop.
    """

    def __init__(self, file: StoreFile, sql: Mapping[str, str], clock: Clock) -> None:
        self._file = file
        self._path = file.path
        self._sql = sql
        self._clock = clock
        self._inline = InlineReader(file, sql, clock)
        self._consecutive_inline = 0
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_QueuedQuery | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open_queries = 0

    async def run(self, query: Callable[[SqliteReading], T], *, small: bool = False) -> T:
        """Run a query and return its result.

        Args:
            small: Whether to try to run it in the caller's thread first.
        """
        if small and (outcome := self._inline.try_query(query)) is not None:
            self._consecutive_inline += 1
            if self._consecutive_inline >= _MAX_CONSECUTIVE_INLINE:
                # Inline queries never yield to the event loop: let its other tasks run.
                self._consecutive_inline = 0
                await asyncio.sleep(0)
            return outcome.value
        self._consecutive_inline = 0
        return await self._run_in_thread(query)

    def stop(self) -> None:
        """Make the threads end after the queries submitted so far."""
        self._inline.close()
        for _ in self._threads:
            self._queue.put(None)

    def join(self) -> None:
        """Wait for the threads to end, then fail the queries that none of them ran. Blocks."""
        for thread in self._threads:
            thread.join()
        while not self._queue.empty():
            query = self._queue.get()
            if query is not None:
                closed = BatchResult(error=faults.store_closed(f"sqlite:///{self._path}"))
                deliver(query.loop, [query.future], [closed])

    async def _run_in_thread(self, query: Query) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            self._open_queries += 1
            if len(self._threads) < min(self._open_queries, _MAX_THREADS):
                self._start()
        self._queue.put(_QueuedQuery(loop, future, query))
        return await future

    def _start(self) -> None:
        name = f"bough-reader {self._path.name}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        log: SqliteReading | None = None
        while (queued := self._queue.get()) is not None:
            try:
                log = log or SqliteReading(connect(self._file, read_only=True), self._sql, self._clock)
                outcome = BatchResult(queued.query(log))
            except SQLITE_ERRORS as error:
                outcome = BatchResult(error=store_error(self._path, error))
            except Exception as error:  # noqa: BLE001 the caller receives it; the thread must continue
                outcome = BatchResult(error=error)
            with self._lock:
                self._open_queries -= 1
            deliver(queued.loop, [queued.future], [outcome])
            del queued, outcome  # otherwise the waiting thread would keep them alive
        if log is not None:
            log.db.close()
