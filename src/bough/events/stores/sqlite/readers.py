"""Run queries: small ones in the caller's thread, others in a few threads with a connection each."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from bough.events.record import StoredEvent
from bough.events.stores import faults
from bough.events.stores.batch import BatchResult, deliver
from bough.events.stores.relational.reading import PAGE_ROWS, EventChoice, Parts
from bough.events.stores.sqlite.connection import SQLITE_ERRORS, StoreFile, connect, store_error
from bough.events.stores.sqlite.reading import SqliteReading
from bough.types import Clock

MAX_ROWS = 128
"""Maximum number of events, or generations of a lineage, of an inline query."""

MAX_BYTES = 256 << 10
"""Maximum payload bytes of an inline query."""

_MAX_ROW_BYTES = 64 << 10
SLOW_SECONDS = 0.025
"""A query that takes longer means that the disk is slow."""

_PAUSE_SECONDS = 1.0


class InlineReader:
    """A connection for small queries from any thread, which never waits for another query.

    Events, bytes and generations are bounded, and SQLite refuses rows that are too large before reading them. A slow
    disk costs at most one slow query per second: after each, queries go to threads for a while.
    """

    def __init__(self, file: StoreFile, sql: Mapping[str, str], clock: Clock) -> None:
        self._lock = threading.Lock()
        self._log: _SmallReading | None = _SmallReading(connect(file, read_only=True), sql, clock)
        # Waiting for a lock here would block the caller's event loop: fail instead, and let a thread wait.
        self._log.db.execute("pragma busy_timeout = 0")
        self._log.db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_ROW_BYTES)
        self._not_before = 0.0

    def answer(self, ask: Callable[[SqliteReading], Any]) -> BatchResult | None:
        """Run a query and return its result; None if a thread must run it. Raises what the query raises."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            started = monotonic()
            if self._log is None or started < self._not_before:
                return None
            outcome = BatchResult(ask(self._log))
            ended = monotonic()
            if ended - started > SLOW_SECONDS:
                self._not_before = ended + _PAUSE_SECONDS
        except (_TooMuch, *SQLITE_ERRORS):
            return None  # a thread may wait for locks and read more, and translates errors
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


class _TooMuch(Exception):
    """The result is too large for an inline query."""


class _SmallReading(SqliteReading):
    """Queries with bounds; raises `_TooMuch` beyond them."""

    page_bytes = MAX_BYTES

    def generations(self, cid: UUID, limit: int = MAX_ROWS + 1) -> list[Any]:
        """Return the rows of a lineage. See `RelationalReading.generations`."""
        rows = super().generations(cid, limit)
        if len(rows) == limit:
            raise _TooMuch
        return rows

    def page(self, parts: Parts, reverse: bool, rows: int = PAGE_ROWS) -> tuple[list[StoredEvent], Parts]:
        """Return a small page, or all events of small ranges. See `RelationalReading.page`."""
        expected = min(sum(hi - lo for _, lo, hi in parts), rows)
        if expected > MAX_ROWS:
            raise _TooMuch
        events, remaining = super().page(parts, reverse, rows)
        if len(events) < expected:
            raise _TooMuch
        return events, remaining

    def choose(self, parts: Parts, reverse: bool, choice: EventChoice) -> tuple[list[StoredEvent], Parts]:
        """Refuse, since the number of rows to examine is unknown. See `RelationalReading.choose`."""
        raise _TooMuch


T = TypeVar("T")

_MAX_THREADS = 4
_MAX_IN_A_ROW = 32

Ask = Callable[[SqliteReading], Any]


class _Query(NamedTuple):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    ask: Ask


class Readers:
    """Runs queries without blocking event loops on the disk.

    Queries that `InlineReader` can run need no thread. Others go to threads that are cheaper than an executor: a query
    costs one wake-up there and one back. Threads are daemons, and are started when all others are busy.
    """

    def __init__(self, file: StoreFile, sql: Mapping[str, str], clock: Clock) -> None:
        self._file = file
        self._path = file.path
        self._sql = sql
        self._clock = clock
        self._inline = InlineReader(file, sql, clock)
        self._in_a_row = 0
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Query | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open_queries = 0

    async def ask(self, ask: Callable[[SqliteReading], T], *, small: bool = False) -> T:
        """Run a query and return its result.

        Args:
            small: Whether to try it in the caller's thread first.
        """
        if small and (outcome := self._inline.answer(ask)) is not None:
            self._in_a_row += 1
            if self._in_a_row >= _MAX_IN_A_ROW:  # inline queries never yield: let other tasks of the loop run
                self._in_a_row = 0
                await asyncio.sleep(0)
            return outcome.value
        self._in_a_row = 0
        return await self._ask_thread(ask)

    def stop(self) -> None:
        """Make the threads end after the queries submitted so far."""
        self._inline.close()
        for _ in self._threads:
            self._queue.put(None)

    def join(self) -> None:
        """Wait for the threads to end, and refuse queries submitted too late. Blocks."""
        for thread in self._threads:
            thread.join()
        while not self._queue.empty():
            query = self._queue.get()
            if query is not None:
                closed = BatchResult(error=faults.store_closed(f"sqlite:///{self._path}"))
                deliver(query.loop, [query.future], [closed])

    async def _ask_thread(self, ask: Ask) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            self._open_queries += 1
            if len(self._threads) < min(self._open_queries, _MAX_THREADS):
                self._start()
        self._queue.put(_Query(loop, future, ask))
        return await future

    def _start(self) -> None:
        name = f"bough-reader {self._path.name}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        log: SqliteReading | None = None
        while (query := self._queue.get()) is not None:
            try:
                log = log or SqliteReading(connect(self._file, read_only=True), self._sql, self._clock)
                outcome = BatchResult(query.ask(log))
            except SQLITE_ERRORS as error:
                outcome = BatchResult(error=store_error(self._path, error))
            except Exception as error:  # noqa: BLE001 the caller gets it; the thread must continue
                outcome = BatchResult(error=error)
            with self._lock:
                self._open_queries -= 1
            deliver(query.loop, [query.future], [outcome])
            del query, outcome  # else the thread keeps them alive while it waits
        if log is not None:
            log.db.close()
