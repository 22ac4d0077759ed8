"""One event loop a process for every name that is called without `await`, and how it ends with the program.

The loop runs in a daemon thread, so that a program which closes nothing still ends. What is open then is closed by a
handler that runs before Python closes its thread pools: at plain `atexit` time a store or a sandbox could no longer
use a thread to let go of what it holds.

Source: design notes, "How a program ends".
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
"""How long the end of a program may take, all in all."""

INTERRUPT_SECONDS = 15.0
"""How long Ctrl-C waits for what it interrupted; a second one does not wait."""

_RELEASE_SECONDS = 1.0
"""The part of `END_SECONDS` that is left to whatever did not close in time and is cancelled."""


class Closable(Protocol):
    """Something that holds what must be given back."""

    async def aclose(self) -> None:
        """Give it back; twice is fine."""
        ...


class DaemonThreads(ThreadPoolExecutor):
    """Threads for blocking work that do not keep a program from ending, as those of Python's own pools do.

    A subclass of Python's pool because an event loop takes no other as its default one; of that only the name is used.
    A thread that has nothing to do for ten seconds ends. There is no bound on their number: one that blocks for ever
    must not keep others waiting.
    """

    _IDLE_SECONDS = 10.0

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._guard = threading.Condition()
        self._free = 0
        self._running = 0
        self._numbers = itertools.count()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Run `fn` in a thread that is free, or in a new one."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._guard:
            self._jobs.put(work)
            if self._free:
                self._free -= 1
                return future
            number = next(self._numbers)
        threading.Thread(target=self._serve, name=f"bough-thread-{number}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: idle threads end on their own, and the program's end waits for none."""

    def wait_idle(self, timeout_seconds: float) -> int:
        """Wait until nothing runs in them, and return how many calls still do after that time."""
        with self._guard:
            self._guard.wait_for(lambda: not self._running, max(0.0, timeout_seconds))
            return self._running

    def _serve(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._IDLE_SECONDS)
            except queue.Empty:
                with self._guard:
                    if self._free == 0:  # a job was promised to this thread in this very moment
                        continue
                    self._free -= 1
                    return
            with self._guard:
                self._running += 1
            job()
            del job
            with self._guard:
                self._running -= 1
                self._free += 1
                self._guard.notify_all()


class _Call:
    """One coroutine on its way through the loop; `done` is set when it has ended, cancelled or not."""

    def __init__(self, function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any) -> None:
        self.done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._make = lambda: function(*args, **kwargs)
        self.task: asyncio.Task[Any] | None = None
        self._is_cancelled = False

    def start(self) -> None:
        if self._is_cancelled:
            self.done.set_exception(asyncio.CancelledError())
            return
        self.task = asyncio.get_running_loop().create_task(self._run())
        self.task.add_done_callback(self._finish)

    def cancel(self) -> None:
        # Noted, because the loop may be told to cancel before it is told to start.
        self._is_cancelled = True
        if self.task is not None:
            self.task.cancel()

    async def _run(self) -> Any:
        return await self._make()

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.done.set_exception(asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())


class CallScope:
    """The calls into the loop that one blocking function makes. Cancelling it ends them; the function may go on.

    Without it, what a tool waits for would outlive the tool's interruption: a process in a sandbox, for example.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._calls: dict[_Call, Portal] = {}
        self._is_cancelled = False

    def run(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call `fn` in this thread, and return its result; the calls that it makes from this thread are the scope's."""
        _process.thread.scope = self
        try:
            return fn(*args, **kwargs)
        finally:
            _process.thread.scope = None

    def cancel(self) -> None:
        """Cancel the call in progress and all later ones, from any thread. Does not wait."""
        with self._guard:
            self._is_cancelled = True
            calls = list(self._calls.items())
        for call, portal in calls:
            portal.cancel(call)

    @contextmanager
    def hold(self, call: _Call, portal: Portal) -> Generator[None]:
        """Have the call cancelled with the scope while the block runs.

        Raises:
            asyncio.CancelledError: The scope was cancelled before.
        """
        with self._guard:
            # Under the lock: a call that begins while the scope is cancelled is either refused or in the list.
            if self._is_cancelled:
                raise asyncio.CancelledError
            self._calls[call] = portal
        try:
            yield
        finally:
            with self._guard:
                del self._calls[call]


class Portal:
    """The event loop of this process's synchronous names. Made by `portal`; safe to use from any thread.

    Args:
        threads: Where blocking work of the loop is done.
    """

    def __init__(self, threads: DaemonThreads) -> None:
        self._threads = threads
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._main: asyncio.Task[Any] | None = None
        self._ending = False
        self._calls: set[_Call] = set()
        self._held: dict[int, tuple[Closable, str]] = {}
        self._weakly_held: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._thread = threading.Thread(target=self._serve, name="bough-loop", daemon=True)
        self._thread.start()
        _at_exit(self._end)

    def call(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Await `function(*args, **kwargs)` on the loop and return its result. Blocks.

        Ctrl-C cancels it, waits until it has ended (a second one does not wait), and is raised then.

        Raises:
            asyncio.CancelledError: It was cancelled, for example because the tool call that waits for it was
                interrupted.
            Unavailable: Called on the loop's own thread, where it would wait for itself; or in a process that was
                forked from the one the loop belongs to; or the program is ending.
        """
        self._check_callable()
        call = _Call(function, args, kwargs)
        scope: CallScope | None = getattr(_process.thread, "scope", None)
        with nullcontext() if scope is None else scope.hold(call, self):
            return self._wait_for(call)

    def cancel(self, call: _Call) -> None:
        """Cancel a call, from any thread. Does not wait."""
        with suppress(Unavailable):  # the program is ending, which cancels it as well
            self._soon(call.cancel)

    def _wait_for(self, call: _Call) -> Any:
        self._calls.add(call)
        try:
            self._soon(call.start)
            return call.done.result()
        except asyncio.CancelledError:
            if self._ending:
                raise _ending() from None
            raise
        except BaseException:
            if not call.done.done():  # raised here, by a signal, and not there
                self._soon(call.cancel)
                concurrent.futures.wait([call.done], timeout=INTERRUPT_SECONDS)
            raise
        finally:
            self._calls.discard(call)

    def iterate(self, iterator: AsyncIterator[T]) -> Iterator[T]:
        """Iterate an asynchronous iterator from here. Left early, it is closed before the caller continues."""
        end: Any = object()
        try:
            while (item := self.call(anext, iterator, end)) is not end:
                yield item
        finally:
            if hasattr(iterator, "aclose"):
                self._close(cast("Closable", iterator))

    def hold(self, thing: Closable, name: str) -> None:
        """Close `thing` at the program's end unless it is released before; `name` is for what cannot be closed."""
        self._held[id(thing)] = thing, name

    def hold_weakly(self, thing: Closable) -> None:
        """Close `thing` at the program's end if it still exists then."""
        self._weakly_held.add(thing)

    def release(self, thing: Closable) -> bool:
        """Forget `thing`, which is being closed, and return whether it was held, by this process."""
        return os.getpid() == self._pid and self._held.pop(id(thing), None) is not None

    def abandon(self, thing: Closable) -> bool:
        """Close `thing`, which nobody can use any more, without waiting; return whether it was still open."""
        if not self.release(thing):
            return False
        with suppress(Unavailable):
            self._soon(_Call(thing.aclose, (), {}).start)
        return True

    def _check_callable(self) -> None:
        if os.getpid() != self._pid:
            raise Unavailable("opened before this process was forked", hint="open it again in this process")
        if threading.current_thread() is self._thread:
            raise Unavailable(
                "a name that blocks was called on bough's own event loop, which would wait for itself",
                hint="use AsyncConversation and `await` there, or make the tool a plain function",
            )
        if self._ending:
            raise _ending()

    def _soon(self, act: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(act)
        except RuntimeError as error:  # the loop is closed
            raise _ending() from error

    def _close(self, iterator: Closable) -> None:
        """Close the iterator; garbage collection may ask for it anywhere, also where nothing may wait."""
        if os.getpid() != self._pid:
            return
        with suppress(Unavailable):
            if threading.current_thread() is self._thread:
                self._soon(_Call(iterator.aclose, (), {}).start)
            else:
                self.call(iterator.aclose)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(self._threads)
        try:
            # Until a main task is complete, and not for ever: anyio's worker threads end with the main task.
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()

    async def _live(self) -> None:
        self._main = asyncio.current_task()
        await self._stop.wait()

    # The program's end.

    def _end(self) -> None:
        """Close what is open, say what could not be closed, and end the loop; at most `END_SECONDS`."""
        if os.getpid() != self._pid or self._loop.is_closed():
            return
        self._ending = True
        deadline = time.monotonic() + END_SECONDS
        closing = _Call(self._close_all, (deadline - _RELEASE_SECONDS,), {})
        messages = ["left what was open, as Ctrl-C asked, or because the event loop is blocked"]
        with suppress(KeyboardInterrupt, Unavailable):
            self._soon(closing.start)
            concurrent.futures.wait([closing.done], timeout=deadline - time.monotonic())
            if closing.done.done():
                messages = closing.done.result()
                if running := self._threads.wait_idle(deadline - time.monotonic()):
                    messages.append(f"left {running} blocking call{'s' if running > 1 else ''} running in threads")
            self._soon(self._stop.set)
            self._thread.join(max(0.1, deadline - time.monotonic()))
        for line in messages:
            _say(line)

    async def _close_all(self, deadline: float) -> list[str]:
        """Close everything side by side, cancel what is late and the tasks that are left; return what went wrong."""
        to_close = [*self._held.values(), *((thing, type(thing).__name__) for thing in self._weakly_held)]
        self._held.clear()
        closing = {asyncio.create_task(thing.aclose()): name for thing, name in to_close}
        if closing:
            await asyncio.wait(closing, timeout=max(0.0, deadline - time.monotonic()))
        # A run that was interrupted has a result, for the thread that waits for it.
        calls = [task for call in self._calls if (task := call.task) is not None and not task.done()]
        if calls:
            await asyncio.wait(calls, timeout=max(0.0, deadline - time.monotonic()))
        late = [task for task in asyncio.all_tasks() if task not in (asyncio.current_task(), self._main)]
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_RELEASE_SECONDS / 2)
        await self._loop.shutdown_asyncgens()
        return [message for task, name in closing.items() if (message := _say_how(task, name, late))]


def _say_how(task: asyncio.Task[None], name: str, late: Collection[asyncio.Task[Any]]) -> str:
    """Return what there is to say of how `name` was closed; empty where all is well."""
    if task in late:
        return f"left {name}, which did not close in {END_SECONDS - _RELEASE_SECONDS:g} s"
    if task.cancelled() or (error := task.exception()) is None:
        return ""
    return f"{name} did not close well: {error}"


class _Process:
    """What this process has one of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads: DaemonThreads | None = None
        self.portal: Portal | None = None
        self.thread = threading.local()

    def forget(self) -> None:
        """Begin anew, in a process that was forked: threads and loops stay with the other."""
        self.__init__()


_process = _Process()
os.register_at_fork(after_in_child=_process.forget)


def portal() -> Portal:
    """Return the event loop of this process's synchronous names, started at the first call."""
    pool = threads()
    with _process.lock:
        if _process.portal is None:
            _process.portal = Portal(pool)
        return _process.portal


def threads() -> DaemonThreads:
    """Return the process's threads for blocking calls that may never return: tools, above all."""
    with _process.lock:
        if _process.threads is None:
            _process.threads = DaemonThreads()
        return _process.threads


def _at_exit(handler: Callable[[], None]) -> None:
    """Have `handler` called before the thread pools close; that is at `atexit` where Python offers nothing earlier.

    Such handlers run last in, first out, and the pools' one is registered when `concurrent.futures.thread` is imported.
    """
    register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
    try:
        register(handler)
    except RuntimeError as error:  # the interpreter is on its way out already
        raise _ending() from error


def _ending() -> Unavailable:
    return Unavailable("the program is ending", hint="do this before the program's last line")


def _say(line: str) -> None:
    """Write a line to stderr, if there still is one."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"bough: {line}\n")
        sys.stderr.flush()
