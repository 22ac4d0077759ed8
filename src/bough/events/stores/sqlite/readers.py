"""Run queries: small ones in the caller's thread, others in a few threads with a connection each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from bough.events.stores import faults
from bough.events.stores.batch import BatchResult, deliver
from bough.events.stores.sqlite.connection import SQLITE_ERRORS, StoreFile, connect, store_error
from bough.events.stores.sqlite.inline_reader import InlineReader
from bough.events.stores.sqlite.reading import SqliteReading
from bough.types import Clock

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
                closed = BatchResult(error=faults.make_closed(f"sqlite:///{self._path}"))
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
