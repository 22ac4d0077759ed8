"""The run of one conversation object: at most one at a time, awaited by its caller or in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic

from bough.cancellation import is_cancelled
from bough.conversation.result import RunResult, T
from bough.conversation.run.run import Runner
from bough.errors import BoughError, Conflict

_background_runs: set[asyncio.Task[Any]] = set()
"""Strong references to tasks that nobody awaits: the event loop has only weak ones."""


class CurrentRun(Generic[T]):
    """The run of one conversation object, and the result of its latest one.

    Args:
        name: The name of the asyncio tasks of its runs.

    Attributes:
        result: The result of the latest run, also of one that raised; None before the first one and during a run.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._runner: Runner | None = None
        self._task: asyncio.Task[RunResult[T]] | None = None
        self._ended: asyncio.Event | None = None
        self.result: RunResult[T] | None = None

    @property
    def is_active(self) -> bool:
        """Whether a run has begun and not ended."""
        return self._task is not None

    def begin(self, runner: Runner) -> None:
        """Begin a run. `wait` or `start` must be called next.

        Raises:
            Conflict: A run is active.
        """
        if self.is_active:
            raise Conflict("the conversation is already running", hint="wait for that run, or interrupt it")
        self.result = None  # a run that raises must not leave the result of the previous one
        self._runner, self._task = runner, asyncio.create_task(runner.run(), name=self._name)
        self._ended = asyncio.Event()

    async def wait(self) -> RunResult[T]:
        """Wait for the run and return its result. Cancelling this cancels the run.

        Raises: see `Runner.run`.
        """
        task, runner = self._task, self._runner
        assert task is not None and runner is not None, "call begin first"  # noqa: S101 - an error of this package
        try:
            self.result = await task
        except asyncio.CancelledError:
            self.result = runner.result()
            if not runner.was_interrupted or is_cancelled():
                raise
        except BoughError:
            self.result = runner.result()
            raise
        finally:
            task.cancel()
            self._task = self._runner = None
            if self._ended is not None:
                self._ended.set()
        return self.result

    async def start(self, on_end: Callable[[], Awaitable[None]] | None = None) -> None:
        """Let the run continue in the background. Returns when it has the lease, or has ended without taking one.

        If a run that has the lease fails, the error is recorded in its log. An error that is not a `BoughError` is also
        reported to the event loop.

        Args:
            on_end: Called when the run has ended, and when it could not start.

        Raises:
            Conflict: The conversation is being run elsewhere.
            BoughError: The run could not start.
        """
        assert self._runner is not None, "call begin first"  # noqa: S101 - an error of this package
        has_lease = self._runner.has_lease
        task = asyncio.create_task(self._wait_and_end(on_end), name=f"background {self._name}")
        _background_runs.add(task)
        task.add_done_callback(_background_runs.discard)
        lease_task = asyncio.create_task(has_lease.wait())
        try:
            await asyncio.wait({task, lease_task}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.interrupt()  # the caller does not know that the run has begun
            raise
        finally:
            lease_task.cancel()
            task.add_done_callback(_report)
        if not has_lease.is_set():
            await task

    async def _wait_and_end(self, on_end: Callable[[], Awaitable[None]] | None) -> None:
        try:
            await self.wait()
        finally:
            if on_end is not None:
                await on_end()

    @asynccontextmanager
    async def join_after(self) -> AsyncGenerator[None]:
        """After the block, wait until the run that was active at its start has its result."""
        ended = self._ended
        yield
        if ended is not None:
            await ended.wait()

    def stop(self) -> None:
        """Interrupt the run without waiting: no tool starts after this."""
        if self._runner is not None:
            self._runner.stop("interrupt")

    async def interrupt(self) -> None:
        """Interrupt the run, and return when it has ended."""
        if (task := self._task) is not None:
            self.stop()
            task.cancel()  # before its task starts, a runner has no reference to it, so `stop` cannot cancel it
            await asyncio.wait({task})  # not gather: a tool of this run may call `interrupt`


def _report(task: asyncio.Task[Any]) -> None:
    """Report an error that is not in the log. Also marks the error as retrieved, which the event loop checks."""
    if task.cancelled() or (error := task.exception()) is None or isinstance(error, BoughError):
        return
    context = {"message": f"{task.get_name()} failed", "exception": error, "task": task}
    task.get_loop().call_exception_handler(context)
