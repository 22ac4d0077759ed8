"""The process's event loop for the blocking API, and its shutdown at the end of the program.

The loop runs in a daemon thread, so that a program that closes nothing still ends. Open objects are then closed by an
exit handler that runs before Python closes its thread pools. A plain `atexit` handler runs too late, because stores
and sandboxes need threads to close.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import itertools
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Iterator
from concurrent.futures.thread import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Protocol, TypeVar, cast

from bough.errors import Unavailable

T = TypeVar("T")

END_SECONDS = 5.0
"""Maximum duration of the shutdown at the end of the program."""

INTERRUPT_SECONDS = 15.0
"""Maximum time that Ctrl-C waits for the interrupted call; a second Ctrl-C does not wait."""

_RELEASE_SECONDS = 1.0
"""The part of `END_SECONDS` that is reserved for cancelling tasks that did not end in time."""


class Closable(Protocol):
    """An object with resources that must be released."""

    async def aclose(self) -> None:
        """Release the resources; a second call does nothing."""
        ...


class DaemonThreads(ThreadPoolExecutor):
    """A thread pool for blocking work. Unlike Python's own pools, it does not delay the end of the program.

    It is a `ThreadPoolExecutor` only because an event loop accepts no other default executor. A thread ends after ten
    idle seconds. The number of threads is not limited, so that a call that blocks forever delays no other call.
    """

    _IDLE_SECONDS = 10.0

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._condition = threading.Condition()
        self._idle_count = 0
        self._running_count = 0
        self._numbers = itertools.count()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Run `fn` in an idle thread, or in a new one if none is idle."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised by `Future.result`
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._condition:
            self._jobs.put(work)
            if self._idle_count:
                self._idle_count -= 1
                return future
            number = next(self._numbers)
        threading.Thread(target=self._serve, name=f"bough-thread-{number}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: idle threads end after ten seconds, and the program does not wait for threads."""

    def wait_idle(self, timeout_seconds: float) -> int:
        """Wait until no call is running; return the number of calls that still run after the timeout."""
        with self._condition:
            self._condition.wait_for(lambda: not self._running_count, max(0.0, timeout_seconds))
            return self._running_count

    def _serve(self) -> None:
        """Run jobs in the current thread until none has arrived for `_IDLE_SECONDS`."""
        while True:
            try:
                job = self._jobs.get(timeout=self._IDLE_SECONDS)
            except queue.Empty:
                with self._condition:
                    if self._idle_count == 0:  # `submit` has just reserved this thread for a new job
                        continue
                    self._idle_count -= 1
                    return
            with self._condition:
                self._running_count += 1
            job()
            del job  # an idle thread must not keep the objects of its last job alive
            with self._condition:
                self._running_count -= 1
                self._idle_count += 1
                self._condition.notify_all()


class _Call:
    """A coroutine that runs on the loop; `done` gets its result or exception when it has ended."""

    def __init__(self, function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any) -> None:
        self.done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._make_coroutine = lambda: function(*args, **kwargs)
        self.task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def start(self) -> None:
        if self._is_cancelled:
            self.done.set_exception(asyncio.CancelledError())
            return
        self.task = asyncio.get_running_loop().create_task(self._run())
        self.task.add_done_callback(self._finish)

    def cancel(self) -> None:
        # Recorded, because `cancel` may run on the loop before `start`.
        self._is_cancelled = True
        if self.task is not None:
            self.task.cancel()

    async def _run(self) -> Any:
        return await self._make_coroutine()

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.done.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())


class CallScope:
    """The calls into the loop that one blocking function makes. Cancelling the scope cancels these calls.

    The function itself may continue, and can still close the resources that it opened (`Portal.close`).

    Without a scope, the work that an interrupted tool waits for, such as a sandboxed process, would continue.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._calls: dict[_Call, Portal] = {}
        self._is_cancelled = False

    def run(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call `fn` in this thread and return its result. Calls into the loop that `fn` makes belong to this scope."""
        _process.thread.scope = self
        try:
            return fn(*args, **kwargs)
        finally:
            _process.thread.scope = None

    def cancel(self) -> None:
        """Cancel the call in progress, and refuse later ones except `Portal.close`. Thread-safe; does not wait."""
        with self._guard:
            self._is_cancelled = True
            calls = list(self._calls.items())
        for call, portal in calls:
            portal.cancel(call)

    @contextmanager
    def register(self, call: _Call, portal: Portal) -> Generator[None]:
        """Register a call for the duration of the block, so that cancelling the scope cancels it.

        Raises:
            asyncio.CancelledError: The scope was cancelled before.
        """
        with self._guard:
            # Under the lock, so that a call that starts during `cancel` is either refused or cancelled.
            if self._is_cancelled:
                raise asyncio.CancelledError
            self._calls[call] = portal
        try:
            yield
        finally:
            with self._guard:
                del self._calls[call]


class Portal:
    """The event loop for this process's blocking API, created by `portal`. Safe to use from any thread.

    Args:
        threads: The default executor of the loop.
    """

    def __init__(self, threads: DaemonThreads) -> None:
        self._threads = threads
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._main: asyncio.Task[Any] | None = None
        self._is_ending = False
        self._calls: set[_Call] = set()
        self._registered: dict[int, tuple[Closable, str]] = {}
        self._weakly_registered: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._thread = threading.Thread(target=self._run_loop, name="bough-loop", daemon=True)
        self._thread.start()
        _at_exit(self._shut_down)

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Await `function(*args, **kwargs)` on the loop and return its result. Blocks.

        Ctrl-C cancels the call, waits until it has ended, and is then raised. A second Ctrl-C does not wait.

        Raises:
            asyncio.CancelledError: The call was cancelled, for example because the tool call that waits for it was
                interrupted.
            Unavailable: The caller runs on the loop's own thread, where the call would wait for itself, or in a forked
                process; or the program is ending.
        """
        self._require_usable()
        call = _Call(function, args, kwargs)
        scope: CallScope | None = getattr(_process.thread, "scope", None)
        with nullcontext() if scope is None else scope.register(call, self):
            return self._wait_for(call)

    def close(self, resource: Closable) -> None:
        """Await `resource.aclose()` on the loop, as `call` does, but also in a tool call that was interrupted."""
        self._require_usable()
        # Outside of the scope, because a cancelled scope refuses calls, and the tool's resources would stay open.
        self._wait_for(_Call(resource.aclose, (), {}))

    def cancel(self, call: _Call) -> None:
        """Cancel a call, from any thread. Does not wait."""
        with suppress(Unavailable):  # the program is ending, which cancels it as well
            self._schedule(call.cancel)

    def _wait_for(self, call: _Call) -> Any:
        self._calls.add(call)
        try:
            self._schedule(call.start)
            return call.done.result()
        except asyncio.CancelledError:
            if self._is_ending:
                raise _ending_error() from None
            raise
        except BaseException:
            if not call.done.done():  # raised in this thread by a signal, not by the call
                self._schedule(call.cancel)
                concurrent.futures.wait([call.done], timeout=INTERRUPT_SECONDS)
            raise
        finally:
            self._calls.discard(call)

    def iterate(self, iterator: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an asynchronous iterator.

        If the caller stops early, the iterator is closed before the caller continues.
        """
        exhausted: Any = object()
        try:
            while (item := self.call(anext, iterator, exhausted)) is not exhausted:
                yield item
        finally:
            if hasattr(iterator, "aclose"):
                self._close_iterator(cast("Closable", iterator))

    def hold(self, resource: Closable, name: str) -> None:
        """Close `resource` at the end of the program unless it is released earlier. `name` is its name in messages."""
        self._registered[id(resource)] = resource, name

    def hold_weakly(self, resource: Closable) -> None:
        """Close `resource` at the end of the program if it still exists; do not keep it alive."""
        self._weakly_registered.add(resource)

    def release(self, resource: Closable) -> bool:
        """Stop holding `resource`, because its owner closes it; return whether this process held it."""
        return os.getpid() == self._pid and self._registered.pop(id(resource), None) is not None

    def abandon(self, resource: Closable) -> bool:
        """Close `resource` without waiting, because its owner was deleted; return whether it was still open."""
        if not self.release(resource):
            return False
        with suppress(Unavailable):
            self._schedule(_Call(resource.aclose, (), {}).start)
        return True

    def _require_usable(self) -> None:
        if os.getpid() != self._pid:
            raise Unavailable("opened before this process was forked", hint="open it again in this process")
        if threading.current_thread() is self._thread:
            raise Unavailable(
                "a blocking method was called on bough's own event loop, which would then wait for itself",
                hint="use AsyncConversation and `await` there, or make the tool a plain function",
            )
        if self._is_ending:
            raise _ending_error()

    def _schedule(self, callback: Callable[[], object]) -> None:
        """Run `callback` on the loop, from any thread.

        Raises:
            Unavailable: The loop is closed.
        """
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError as error:  # the loop is closed
            raise _ending_error() from error

    def _close_iterator(self, iterator: Closable) -> None:
        """Close the iterator. Garbage collection calls this on any thread; on the loop's own, it must not wait."""
        if os.getpid() != self._pid:
            return
        with suppress(Unavailable):
            if threading.current_thread() is self._thread:
                self._schedule(_Call(iterator.aclose, (), {}).start)
            else:
                self.close(iterator)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(self._threads)
        try:
            # Not `run_forever`, because anyio's worker threads end when the main task of the loop ends.
            self._loop.run_until_complete(self._wait_for_stop())
        finally:
            self._loop.close()

    async def _wait_for_stop(self) -> None:
        self._main = asyncio.current_task()
        await self._stop.wait()

    def _shut_down(self) -> None:
        """Close all held objects, report what could not be closed, and stop the loop; at most `END_SECONDS`."""
        if os.getpid() != self._pid or self._loop.is_closed():
            return
        self._is_ending = True
        deadline = time.monotonic() + END_SECONDS
        closing = _Call(self._close_all, (deadline - _RELEASE_SECONDS,), {})
        messages = ["open objects were not closed: Ctrl-C was pressed, or the event loop is blocked"]
        with suppress(KeyboardInterrupt, Unavailable):
            self._schedule(closing.start)
            concurrent.futures.wait([closing.done], timeout=deadline - time.monotonic())
            if closing.done.done():
                messages = closing.done.result()
                if running := self._threads.wait_idle(deadline - time.monotonic()):
                    messages.append(f"left {running} blocking call{'s' if running > 1 else ''} running in threads")
            self._schedule(self._stop.set)
            self._thread.join(max(0.1, deadline - time.monotonic()))
        for line in messages:
            _print_to_stderr(line)

    async def _close_all(self, deadline: float) -> list[str]:
        """Close all registered objects at once; cancel tasks still running at the deadline. Returns error messages."""
        unnamed = [(resource, type(resource).__name__) for resource in self._weakly_registered]
        to_close = [*self._registered.values(), *unnamed]
        self._registered.clear()
        closing = {asyncio.create_task(resource.aclose()): name for resource, name in to_close}
        if closing:
            await asyncio.wait(closing, timeout=max(0.0, deadline - time.monotonic()))
        # Closing a conversation interrupts its run; the thread that waits for the run still gets its result.
        calls = [task for call in self._calls if (task := call.task) is not None and not task.done()]
        if calls:
            await asyncio.wait(calls, timeout=max(0.0, deadline - time.monotonic()))
        unfinished = [task for task in asyncio.all_tasks() if task not in (asyncio.current_task(), self._main)]
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=_RELEASE_SECONDS / 2)
        await self._loop.shutdown_asyncgens()
        return [message for task, name in closing.items() if (message := _describe_failure(task, name, unfinished))]


def _describe_failure(task: asyncio.Task[None], name: str, unfinished: Collection[asyncio.Task[Any]]) -> str:
    """Return why `name` was not closed; empty if it was."""
    if task in unfinished:
        return f"left {name}, which did not close in {END_SECONDS - _RELEASE_SECONDS:g} s"
    if task.cancelled() or (error := task.exception()) is None:
        return ""
    return f"{name} could not be closed: {error}"


class _Process:
    """The thread pool and the portal of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads: DaemonThreads | None = None
        self.portal: Portal | None = None
        self.thread = threading.local()

    def forget(self) -> None:
        """Reset in a forked process, because threads and event loops remain in the parent process."""
        self.__init__()


_process = _Process()
os.register_at_fork(after_in_child=_process.forget)


def portal() -> Portal:
    """Return the event loop for this process's blocking API; the first call starts it."""
    pool = threads()
    with _process.lock:
        if _process.portal is None:
            _process.portal = Portal(pool)
        return _process.portal


def threads() -> DaemonThreads:
    """Return this process's thread pool for blocking calls that may never return, such as tools."""
    with _process.lock:
        if _process.threads is None:
            _process.threads = DaemonThreads()
        return _process.threads


def _at_exit(handler: Callable[[], None]) -> None:
    """Register `handler` to run before the thread pools close, or with `atexit` if Python has no earlier hook.

    The last registered handler runs first. The handler of the pools is registered when `concurrent.futures.thread` is
    imported.
    """
    register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
    try:
        register(handler)
    except RuntimeError as error:  # the interpreter is already shutting down
        raise _ending_error() from error


def _ending_error() -> Unavailable:
    return Unavailable("the program is ending", hint="do this before the program's last line")


def _print_to_stderr(line: str) -> None:
    """Write a line to stderr; do nothing if stderr is closed."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"bough: {line}\n")
        sys.stderr.flush()
