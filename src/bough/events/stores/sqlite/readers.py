"""Answering questions about the log: small ones on the spot, all others in a few threads with a connection each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from bough.events.stores import faults
from bough.events.stores.batch import BatchResult, deliver
from bough.events.stores.sqlite.connection import SQLITE_ERRORS, StoreFile, connect, store_error
from bough.events.stores.sqlite.reading import SqliteReading
from bough.events.stores.sqlite.spot import Spot
from bough.types import Clock

T = TypeVar("T")

_MOST_THREADS = 4
_MOST_IN_A_ROW = 32

Ask = Callable[[SqliteReading], Any]


class _Question(NamedTuple):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    ask: Ask


class Readers:
    """Answers questions so that no event loop waits for the disk.

    What `Spot` answers costs no thread. Everything else goes to threads of its own, leaner than an executor: a question
    costs one wake-up there and one back. Threads are daemons and start when all others are busy.
    """

    def __init__(self, file: StoreFile, sql: Mapping[str, str], clock: Clock) -> None:
        self._file = file
        self._path = file.path
        self._sql = sql
        self._clock = clock
        self._spot = Spot(file, sql, clock)
        self._in_a_row = 0
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Question | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open_questions = 0

    async def ask(self, ask: Callable[[SqliteReading], T], *, small: bool = False) -> T:
        """Return the answer to a question.

        Args:
            small: It is tried on the spot first. Others get their turn every so many answers, for a caller that asks
                and asks never waits.
        """
        if small and (outcome := self._spot.answer(ask)) is not None:
            self._in_a_row += 1
            if self._in_a_row >= _MOST_IN_A_ROW:
                self._in_a_row = 0
                await asyncio.sleep(0)
            return outcome.value
        self._in_a_row = 0
        return await self._ask_thread(ask)

    def stop(self) -> None:
        """Ask the threads to end when everything asked before is answered."""
        self._spot.close()
        for _ in self._threads:
            self._queue.put(None)

    def join(self) -> None:
        """Wait for the threads' end; what was asked too late is refused. Blocks."""
        for thread in self._threads:
            thread.join()
        while not self._queue.empty():
            question = self._queue.get()
            if question is not None:
                closed = BatchResult(error=faults.make_closed(f"sqlite:///{self._path}"))
                deliver(question.loop, [question.future], [closed])

    async def _ask_thread(self, ask: Ask) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            self._open_questions += 1
            if len(self._threads) < min(self._open_questions, _MOST_THREADS):
                self._start()
        self._queue.put(_Question(loop, future, ask))
        return await future

    def _start(self) -> None:
        name = f"bough-reader {self._path.name}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        log: SqliteReading | None = None
        while (question := self._queue.get()) is not None:
            try:
                log = log or SqliteReading(connect(self._file, read_only=True), self._sql, self._clock)
                outcome = BatchResult(question.ask(log))
            except SQLITE_ERRORS as error:
                outcome = BatchResult(error=store_error(self._path, error))
            except Exception as error:  # noqa: BLE001 whoever asked is told; the thread has to continue
                outcome = BatchResult(error=error)
            with self._lock:
                self._open_questions -= 1
            deliver(question.loop, [question.future], [outcome])
            del question, outcome  # so that nothing is kept alive while the thread waits
        if log is not None:
            log.db.close()
