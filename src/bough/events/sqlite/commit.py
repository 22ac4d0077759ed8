"""The writer: one thread, one connection, and everything that waits at the same time in one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from bough.events import faults
from bough.events.hub import END, Hub
from bough.events.sqlite.connection import connect, store_error
from bough.events.sqlite.writing import Writing, batch_of
from bough.types import Clock

T = TypeVar("T")
Request = Callable[[Writing], Any]

_LOOK_SECONDS = 0.02


class Pending(NamedTuple):
    """A request and who waits for it."""

    future: asyncio.Future[Any]
    request: Request


class Delivery(NamedTuple):
    """Requests that one event loop sent in one turn; None ends the writer."""

    loop: asyncio.AbstractEventLoop
    pending: Sequence[Pending]


class Outcome(NamedTuple):
    """What came of a request."""

    value: Any = None
    error: BaseException | None = None


class _Spoilt(Exception):
    """A request failed after it had written; the transaction it shared with others has to go."""


class Writer:
    """Runs requests durably, many to a transaction, and tells watchers afterwards.

    A request that fails never harms the others: the shared transaction is rolled back and each runs alone.
    The thread is a daemon and holds no reference to the store, so an unclosed store never keeps a process alive.
    """

    def __init__(self, path: Path, sql: dict[str, str], hub: Hub, clock: Clock) -> None:
        self._path = path
        self._url = f"sqlite:///{path}"
        self._queue: SimpleQueue[Delivery | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._gathering: dict[asyncio.AbstractEventLoop, list[Pending]] = {}
        self._stopped = False
        self._log = Writing(connect(path), sql, clock)
        self._watch = _Watch(self._log, hub)
        self._hub = hub
        hub.on_first = self.look
        self._thread = threading.Thread(target=self._run, name=f"bough-writer {path.name}", daemon=True)
        self._thread.start()

    async def submit(self, request: Callable[[Writing], T]) -> T:
        """Return what the request returns once it is durable.

        Requests that one loop makes in one turn travel together: the thread is woken once.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        gathering = self._gathering.get(loop)
        if gathering is None:
            gathering = self._gathering[loop] = []
            loop.call_soon(self._send, loop)
        gathering.append(Pending(future, request))
        return await future

    def stop(self) -> None:
        """Ask the thread to finish what it was given, and to end. Callable from any thread, more than once."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)

    def join(self) -> None:
        """Wait for the thread's end. Blocks."""
        self._thread.join()

    def look(self) -> None:
        """Begin to look for other processes' writes, now that someone watches."""
        with self._lock:
            if not self._stopped:
                self._queue.put(Delivery(asyncio.get_running_loop(), ()))

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        delivery = Delivery(loop, self._gathering.pop(loop))
        with self._lock:
            if not self._stopped:
                self._queue.put(delivery)
                return
        _settle([(pending.future, Outcome(error=faults.closed(self._url))) for pending in delivery.pending])

    def _run(self) -> None:
        try:
            while (deliveries := self._receive()) is not None:
                self._serve(deliveries)
        finally:
            self._log.db.close()

    def _receive(self) -> list[Delivery] | None:
        """Return everything that waits, at least one delivery; None when the writer shall end."""
        first = self._next()
        if first is None:
            return None
        found = [first]
        while not self._queue.empty():
            delivery = self._queue.get_nowait()
            if delivery is None:
                self._queue.put(None)
                break
            found.append(delivery)
        return found

    def _next(self) -> Delivery | None:
        while True:
            try:
                return self._queue.get(timeout=_LOOK_SECONDS if self._hub.watched() else None)
            except Empty:
                self._watch.look()

    def _serve(self, deliveries: Sequence[Delivery]) -> None:
        outcomes = iter(self._commit([pending.request for delivery in deliveries for pending in delivery.pending]))
        for delivery in deliveries:
            _deliver(delivery, [next(outcomes) for _ in delivery.pending])
        self._watch.look()

    def _commit(self, requests: Sequence[Request]) -> list[Outcome]:
        try:
            return self._together(requests)
        except _Spoilt as spoilt:
            if len(requests) == 1:
                return [Outcome(error=self._meaning(spoilt.__cause__))]
        return [outcome for request in requests for outcome in self._commit([request])]

    def _together(self, requests: Sequence[Request]) -> list[Outcome]:
        """Run requests in one transaction.

        Raises:
            _Spoilt: One failed after writing, or the transaction could not be committed; nothing is written.
        """
        if not requests:
            return []
        db = self._log.db
        self._log.news.clear()
        try:
            db.execute("begin immediate")
        except sqlite3.Error as error:
            return [Outcome(error=self._meaning(error)) for _ in requests]
        try:
            outcomes = [self._run_one(request) for request in requests]
            db.execute("commit")
        except BaseException as error:
            if db.in_transaction:
                db.execute("rollback")
            if isinstance(error, sqlite3.Error):
                raise _Spoilt from error
            raise
        for cid, first, draft in self._log.news:
            if self._hub.watches(cid):
                self._hub.publish(cid, batch_of(first, draft))
        return outcomes

    def _run_one(self, request: Request) -> Outcome:
        db, before, news = self._log.db, self._log.db.total_changes, len(self._log.news)
        try:
            return Outcome(request(self._log))
        except Exception as error:
            if db.total_changes != before or not db.in_transaction:
                raise _Spoilt from error
            del self._log.news[news:]
            return Outcome(error=self._meaning(error))

    def _meaning(self, error: BaseException | None) -> BaseException | None:
        return store_error(self._path, error) if isinstance(error, sqlite3.Error) else error


class _Watch:
    """Notices what other processes write to conversations that someone here watches."""

    def __init__(self, log: Writing, hub: Hub) -> None:
        self._log = log
        self._hub = hub
        self._version = -1
        self._heads: dict[UUID, int] = {}

    def look(self) -> None:
        """Tell watchers of conversations that another process changed. One pragma when none did."""
        watched = self._hub.watched()
        if not watched:
            return
        try:
            self._compare(watched)
        except sqlite3.Error:
            for cid in watched:
                self._hub.publish(cid, None)  # they read the store themselves and meet the error where it can be told

    def _compare(self, watched: Sequence[UUID]) -> None:
        (version,) = self._log.db.execute("pragma data_version").fetchone()
        if version == self._version and self._heads.keys() >= set(watched):
            return
        self._version = version
        heads = self._log.heads(watched)
        for cid in watched:
            if cid not in heads:
                self._hub.publish(cid, END)
            elif heads[cid] != self._heads.get(cid):
                self._hub.publish(cid, None)
        self._heads = heads


def _deliver(delivery: Delivery, outcomes: list[Outcome]) -> None:
    if not outcomes:
        return
    settled = [(pending.future, outcome) for pending, outcome in zip(delivery.pending, outcomes, strict=True)]
    try:
        delivery.loop.call_soon_threadsafe(_settle, settled)
    except RuntimeError:
        if not delivery.loop.is_closed():
            raise  # in a closed loop nobody waits any more; what was committed stays


def _settle(settled: Sequence[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for future, outcome in settled:
        if future.done():
            continue  # the caller was cancelled meanwhile
        if outcome.error is None:
            future.set_result(outcome.value)
        else:
            future.set_exception(outcome.error)
