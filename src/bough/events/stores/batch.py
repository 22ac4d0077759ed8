"""A thread that processes concurrent requests of any number of event loops in batches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from bough.events.stores import faults

Request = TypeVar("Request")
WorkRequest = TypeVar("WorkRequest", contravariant=True)


class BatchResult(NamedTuple):
    """The result of a request: a value or an error."""

    value: Any = None
    error: BaseException | None = None


class BatchWork(Protocol[WorkRequest]):
    """Processes the batches. All methods are called in the thread of `Batch`."""

    def commit(self, requests: Sequence[WorkRequest]) -> list[BatchResult]:
        """Execute the requests and return their results in order. An exception becomes the error of every request."""
        ...

    def idle_seconds(self) -> float | None:
        """Return how many seconds to wait for requests before calling `poll`; None waits without limit."""
        ...

    def poll(self) -> None:
        """Do periodic work. Called after each batch, and after `idle_seconds` without requests."""
        ...

    def close(self) -> None:
        """Release resources. Called when the thread ends."""
        ...


class CallbackLoop(Protocol):
    """The methods of an event loop that `deliver` uses."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object:
        """Schedule a callback in the loop's thread."""
        ...

    def is_closed(self) -> bool:
        """Whether the loop is closed."""
        ...


class _BlockingCaller:
    """Stands in for the event loop of a thread that blocks until its result is available."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object:
        return callback(*args)

    def is_closed(self) -> bool:
        return False


_BLOCKING_CALLER = _BlockingCaller()


class _Delivery(NamedTuple):
    """The requests that one event loop submitted in one iteration, and their futures in the same order."""

    loop: CallbackLoop
    futures: Sequence[asyncio.Future[Any] | Future[Any]]
    requests: list[Any]


class Batch(Generic[Request]):
    """Collects requests and passes them to `work` in a separate thread.

    Requests that a loop submits in one iteration are queued together, so that they wake the thread once. The thread is
    a daemon, so that a store that was not closed does not keep the process alive.

    Args:
        name: Name of the thread.
        url: URL of the store, for errors.
        work: Processes the batches.
    """

    def __init__(self, name: str, url: str, work: BatchWork[Request]) -> None:
        self._url = url
        self._work = work
        self._queue: SimpleQueue[_Delivery | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._collected: dict[asyncio.AbstractEventLoop, tuple[list[asyncio.Future[Any]], list[Request]]] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def submit(self, request: Request) -> Any:
        """Return the result of a request, or raise its error."""
        loop = asyncio.get_running_loop()
        collected = self._collected.get(loop)
        if collected is None:
            collected = self._collected[loop] = ([], [])
            loop.call_soon(self._send, loop)  # runs after this iteration, which may submit more requests
        future = loop.create_future()
        collected[0].append(future)
        collected[1].append(request)
        return await future

    def submit_blocking(self, request: Request) -> Any:
        """Return the result of a request, or raise its error. Blocks: call it in a thread without an event loop."""
        future: Future[Any] = Future()
        if not self._put(_Delivery(_BLOCKING_CALLER, [future], [request])):
            raise faults.store_closed(self._url)
        return future.result()

    def flush(self) -> None:
        """Queue the collected requests of the running loop now, so that a following `stop` does not refuse them."""
        loop = asyncio.get_running_loop()
        if loop in self._collected:
            self._send(loop)

    def wake(self) -> None:
        """Make the thread call `idle_seconds` again. Must be called in an event loop."""
        self._put(_Delivery(asyncio.get_running_loop(), [], []))

    def stop(self) -> None:
        """Make the thread end after the queued requests. Idempotent; callable from any thread."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)

    def join(self) -> None:
        """Wait for the thread to end. Blocks."""
        self._thread.join()

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        """Queue the collected requests of a loop, or fail them if the thread was stopped."""
        collected = self._collected.pop(loop, None)
        if collected is not None and not self._put(_Delivery(loop, *collected)):
            _set_results(collected[0], [BatchResult(error=faults.store_closed(self._url)) for _ in collected[0]])

    def _put(self, delivery: _Delivery) -> bool:
        """Queue a delivery and return True; return False if the thread was stopped."""
        with self._lock:  # `stop` takes it too: a delivery queued after its None would never be processed
            if not self._stopped:
                self._queue.put(delivery)
            return not self._stopped

    def _run(self) -> None:
        try:
            while deliveries := self._receive():
                self._process(deliveries)
        finally:
            self._work.close()

    def _receive(self) -> list[_Delivery]:
        """Return all queued deliveries, waiting for at least one; an empty list ends the thread."""
        deliveries: list[_Delivery] = []
        delivery = self._next_delivery()
        while delivery is not None:
            deliveries.append(delivery)
            if self._queue.empty():
                return deliveries
            delivery = self._queue.get_nowait()
        if deliveries:
            self._queue.put(None)  # put the end marker back: these deliveries are processed first
        return deliveries

    def _next_delivery(self) -> _Delivery | None:
        """Wait for a delivery and return it, polling while idle; None is the end marker."""
        while True:
            try:
                return self._queue.get(timeout=self._work.idle_seconds())
            except Empty:
                self._work.poll()

    def _process(self, deliveries: Sequence[_Delivery]) -> None:
        requests = [request for delivery in deliveries for request in delivery.requests]
        results = iter(self._commit(requests) if requests else ())
        for delivery in deliveries:
            deliver(delivery.loop, delivery.futures, [next(results) for _ in delivery.futures])
        self._work.poll()

    def _commit(self, requests: Sequence[Request]) -> list[BatchResult]:
        try:
            return self._work.commit(requests)
        except Exception as error:  # noqa: BLE001 the callers receive it; the thread must continue
            return [BatchResult(error=error) for _ in requests]


def deliver(
    loop: CallbackLoop, futures: Sequence[asyncio.Future[Any] | Future[Any]], results: Sequence[BatchResult]
) -> None:
    """Set the results of futures in their event loop. Callable from any thread."""
    try:
        loop.call_soon_threadsafe(_set_results, futures, results)
    except RuntimeError:
        if not loop.is_closed():
            raise  # in a closed loop, no caller waits for the result


def _set_results(futures: Sequence[asyncio.Future[Any] | Future[Any]], results: Sequence[BatchResult]) -> None:
    for future, result in zip(futures, results, strict=True):
        if future.done():
            continue  # the caller was cancelled
        if result.error is None:
            future.set_result(result.value)
        else:
            future.set_exception(result.error)
