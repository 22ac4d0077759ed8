"""A thread that combines concurrent requests from any number of event loops into batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from bough.events.stores import faults

Request = TypeVar("Request")
Requested = TypeVar("Requested", contravariant=True)


class BatchResult(NamedTuple):
    """The result of a request: a value or an error."""

    value: Any = None
    error: BaseException | None = None


class BatchWork(Protocol[Requested]):
    """The work of the thread."""

    def commit(self, requests: Sequence[Requested]) -> list[BatchResult]:
        """Execute the requests and return a result for each. An exception is raised to every caller."""
        ...

    def idle_seconds(self) -> float | None:
        """Return how long to wait for requests before calling `look`; None waits for ever."""
        ...

    def look(self) -> None:
        """Called after each batch and after each idle period."""
        ...

    def close(self) -> None:
        """Called at the end, in the thread."""
        ...


class CallbackLoop(Protocol):
    """The part of an event loop that delivering results needs."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object:
        """Call something in the loop's thread."""
        ...

    def is_closed(self) -> bool:
        """Whether the loop is closed."""
        ...


class _Direct:
    """Replaces the event loop for a thread that blocks until its result is there."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object:
        return callback(*args)

    def is_closed(self) -> bool:
        return False


_DIRECTLY = _Direct()


class _Delivery(NamedTuple):
    """The requests that one event loop made in one iteration, and their futures."""

    loop: CallbackLoop
    futures: Sequence[asyncio.Future[Any] | Future[Any]]
    requests: list[Any]


class Batch(Generic[Request]):
    """Collects requests and passes them to `work` in a separate thread.

    Requests that a loop makes in one iteration are sent together, so that they wake the thread once. The thread is a
    daemon, so that a store that was not closed does not keep the process alive.
    """

    def __init__(self, name: str, url: str, work: BatchWork[Request]) -> None:
        self._url = url
        self._work = work
        self._queue: SimpleQueue[_Delivery | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._gathering: dict[asyncio.AbstractEventLoop, tuple[list[asyncio.Future[Any]], list[Request]]] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def submit(self, request: Request) -> Any:
        """Return the result of a request, or raise its error."""
        loop = asyncio.get_running_loop()
        gathered = self._gathering.get(loop)
        if gathered is None:
            gathered = self._gathering[loop] = ([], [])
            loop.call_soon(self._send, loop)  # at the end of this iteration, when all its requests are collected
        future = loop.create_future()
        gathered[0].append(future)
        gathered[1].append(request)
        return await future

    def submit_blocking(self, request: Request) -> Any:
        """Return the result of a request, or raise its error. Blocks; for threads without an event loop."""
        future: Future[Any] = Future()
        if not self._put(_Delivery(_DIRECTLY, [future], [request])):
            raise faults.make_closed(self._url)
        return future.result()

    def flush(self) -> None:
        """Send the running loop's collected requests now, so that a following `stop` does not refuse them."""
        loop = asyncio.get_running_loop()
        if loop in self._gathering:
            self._send(loop)

    def wake(self) -> None:
        """Make the thread call `idle_seconds` again. Call it in an event loop."""
        self._put(_Delivery(asyncio.get_running_loop(), [], []))

    def stop(self) -> None:
        """Make the thread finish its requests and end. Idempotent; callable from any thread."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)

    def join(self) -> None:
        """Wait for the thread to end. Blocks."""
        self._thread.join()

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered = self._gathering.pop(loop, None)
        if gathered is not None and not self._put(_Delivery(loop, *gathered)):
            _set_results(gathered[0], [BatchResult(error=faults.make_closed(self._url)) for _ in gathered[0]])

    def _put(self, delivery: _Delivery) -> bool:
        with self._lock:  # with `stop`: a delivery queued behind its None would never be answered
            if not self._stopped:
                self._queue.put(delivery)
            return not self._stopped

    def _run(self) -> None:
        try:
            while deliveries := self._receive():
                self._serve(deliveries)
        finally:
            self._work.close()

    def _receive(self) -> list[_Delivery]:
        """Return all queued deliveries, waiting for at least one; an empty list ends the thread."""
        deliveries: list[_Delivery] = []
        delivery = self._next()
        while delivery is not None:
            deliveries.append(delivery)
            if self._queue.empty():
                return deliveries
            delivery = self._queue.get_nowait()
        if deliveries:
            self._queue.put(None)  # the end again, for the next call: these deliveries are served first
        return deliveries

    def _next(self) -> _Delivery | None:
        while True:
            try:
                return self._queue.get(timeout=self._work.idle_seconds())
            except Empty:
                self._work.look()

    def _serve(self, deliveries: Sequence[_Delivery]) -> None:
        requests = [request for delivery in deliveries for request in delivery.requests]
        outcomes = iter(self._commit(requests) if requests else ())
        for delivery in deliveries:
            deliver(delivery.loop, delivery.futures, [next(outcomes) for _ in delivery.futures])
        self._work.look()

    def _commit(self, requests: Sequence[Request]) -> list[BatchResult]:
        try:
            return self._work.commit(requests)
        except Exception as error:  # noqa: BLE001 the callers get it; the thread must continue
            return [BatchResult(error=error) for _ in requests]


def deliver(
    loop: CallbackLoop, futures: Sequence[asyncio.Future[Any] | Future[Any]], outcomes: Sequence[BatchResult]
) -> None:
    """Set the results of futures in their event loop. Callable from any thread."""
    try:
        loop.call_soon_threadsafe(_set_results, futures, outcomes)
    except RuntimeError:
        if not loop.is_closed():
            raise  # in a closed loop no caller waits; the work itself is done and stays


def _set_results(futures: Sequence[asyncio.Future[Any] | Future[Any]], outcomes: Sequence[BatchResult]) -> None:
    for future, outcome in zip(futures, outcomes, strict=True):
        if future.done():
            continue  # the caller was cancelled
        if outcome.error is None:
            future.set_result(outcome.value)
        else:
            future.set_exception(outcome.error)
