"""A thread that does in one go what several callers, in any event loop, ask for at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from bough.events.stores import faults

Request = TypeVar("Request")
Asked = TypeVar("Asked", contravariant=True)


class Answered(NamedTuple):
    """What came of a request: a value, or an error."""

    value: Any = None
    error: BaseException | None = None


class BatchWork(Protocol[Asked]):
    """What the thread does."""

    def commit(self, requests: Sequence[Asked]) -> list[Answered]:
        """Do all of them and return an outcome for each. What it raises, everyone who asked is told."""
        ...

    def idle_seconds(self) -> float | None:
        """How long to wait for requests before `look` is called; None to wait for ever."""
        ...

    def look(self) -> None:
        """Called after each batch and whenever nothing came for a while."""
        ...

    def close(self) -> None:
        """Called at the end, in the thread."""
        ...


class CallbackLoop(Protocol):
    """What of an event loop it takes to hand an answer to it."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object:
        """Call something in the loop's thread."""
        ...

    def is_closed(self) -> bool:
        """Whether it runs nothing any more."""
        ...


class _Direct:
    """Stands for an event loop where a thread waits for itself."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object:
        return callback(*args)

    def is_closed(self) -> bool:
        return False


_DIRECTLY = _Direct()


class _Delivery(NamedTuple):
    """Requests that one event loop made in one turn, and who waits for each."""

    loop: CallbackLoop
    futures: Sequence[asyncio.Future[Any] | Future[Any]]
    requests: list[Any]


class Batch(Generic[Request]):
    """Gathers requests and hands them to `work` in a thread of its own.

    Requests that one loop makes in one turn travel together, so that the thread is woken once for them. The thread is
    a daemon, so that a store nobody closed never keeps a process alive.
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
        """Return what came of the request, or raise its error."""
        loop = asyncio.get_running_loop()
        gathered = self._gathering.get(loop)
        if gathered is None:
            gathered = self._gathering[loop] = ([], [])
            loop.call_soon(self._send, loop)
        future = loop.create_future()
        gathered[0].append(future)
        gathered[1].append(request)
        return await future

    def submit_blocking(self, request: Request) -> Any:
        """Return what came of the request, or raise its error. Blocks; for threads without an event loop."""
        future: Future[Any] = Future()
        if not self._put(_Delivery(_DIRECTLY, [future], [request])):
            raise faults.make_closed(self._url)
        return future.result()

    def flush(self) -> None:
        """Send what the running loop asked for in this turn now, so that a `stop` comes after it."""
        loop = asyncio.get_running_loop()
        if loop in self._gathering:
            self._send(loop)

    def wake(self) -> None:
        """Make the thread ask for `idle_seconds` again. Callable in an event loop."""
        self._put(_Delivery(asyncio.get_running_loop(), [], []))

    def stop(self) -> None:
        """Ask the thread to finish what it was given, and to end. Callable from any thread, more than once."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._queue.put(None)

    def join(self) -> None:
        """Wait for the thread's end. Blocks."""
        self._thread.join()

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered = self._gathering.pop(loop, None)
        if gathered is not None and not self._put(_Delivery(loop, *gathered)):
            _settle(gathered[0], [Answered(error=faults.make_closed(self._url)) for _ in gathered[0]])

    def _put(self, delivery: _Delivery) -> bool:
        with self._lock:
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
        """Return everything that waits, at least one delivery; nothing when the thread shall end."""
        found: list[_Delivery] = []
        delivery = self._next()
        while delivery is not None:
            found.append(delivery)
            if self._queue.empty():
                return found
            delivery = self._queue.get_nowait()
        if found:
            self._queue.put(None)  # what was asked before the end is done first
        return found

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

    def _commit(self, requests: Sequence[Request]) -> list[Answered]:
        try:
            return self._work.commit(requests)
        except Exception as error:  # noqa: BLE001 the waiter is told; the thread has to continue
            return [Answered(error=error) for _ in requests]


def deliver(
    loop: CallbackLoop, futures: Sequence[asyncio.Future[Any] | Future[Any]], outcomes: Sequence[Answered]
) -> None:
    """Hand outcomes to those who wait for them in an event loop. Callable from any thread."""
    try:
        loop.call_soon_threadsafe(_settle, futures, outcomes)
    except RuntimeError:
        if not loop.is_closed():
            raise  # in a closed loop nobody waits any more; what was done stays done


def _settle(futures: Sequence[asyncio.Future[Any] | Future[Any]], outcomes: Sequence[Answered]) -> None:
    for future, outcome in zip(futures, outcomes, strict=True):
        if future.done():
            continue  # the caller was cancelled meanwhile
        if outcome.error is None:
            future.set_result(outcome.value)
        else:
            future.set_exception(outcome.error)
