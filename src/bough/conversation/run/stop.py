"""The reason for stopping a run, set before its cancellation, and blocking functions, which Python cannot stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Literal, TypeAlias, TypeVar

from bough.portal import CallScope, threads

_R = TypeVar("_R")

StopReason: TypeAlias = Literal["interrupt", "hand_back", "fenced"]
"""`interrupt`: a person ended the run; `hand_back`: another worker will continue it; `fenced`: another one has it."""

BLOCKING_SECONDS = 2.0
"""How long an interrupted call waits for its blocking function. Less than the time that a program has to exit."""


class StopNote:
    """The request to stop a run, shared by the run and its recorder.

    Attributes:
        reason: None means `interrupt`.
        on_hand_back: If set, the run ends before its next request, so that another worker can continue it. Called then.
    """

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        self.on_hand_back: Callable[[], None] | None = None

    def accept_hand_back(self) -> bool:
        """Return whether the run is to be handed back. If so, call `on_hand_back`."""
        if self.on_hand_back is None:
            return False
        self.on_hand_back()
        return True

    @property
    def leaves_calls_open(self) -> bool:
        """Whether running calls stay open for the process that continues the run, and are not closed as interrupted."""
        return self.reason in ("hand_back", "fenced")


def _call_safely(fn: Callable[..., _R], /, *args: Any, **kwargs: Any) -> _R:
    """Call a function, and raise `RuntimeError` for an exception that an asyncio future cannot carry.

    A future refuses `StopIteration`, so its awaiter would wait for ever. `GeneratorExit` would close the coroutine.
    """
    try:
        return fn(*args, **kwargs)
    except (StopIteration, GeneratorExit) as error:
        raise RuntimeError(f"the function raised {type(error).__name__}") from error


class BlockingCall(Executor):
    """Runs the blocking functions of one tool call in the process's threads, and tracks which still run."""

    def __init__(self) -> None:
        self._futures: list[Future[Any]] = []
        self._scope = CallScope()

    def submit(self, fn: Callable[..., _R], /, *args: Any, **kwargs: Any) -> Future[_R]:
        """Run `fn` in a thread."""
        future = threads().submit(self._scope.run, _call_safely, fn, *args, **kwargs)
        self._futures.append(future)
        return future

    def cancel(self) -> None:
        """Cancel the operations in bough's event loop for which the functions wait, such as `execute_sync`."""
        self._scope.cancel()

    @property
    def is_running(self) -> bool:
        """Whether a function still runs. A function that has started cannot be stopped."""
        return any(not future.done() for future in self._futures)

    async def wait(self, timeout_seconds: float) -> None:
        """Wait until no function runs, for at most `timeout_seconds`."""
        running = [asyncio.wrap_future(future) for future in self._futures if not future.done()]
        for future in running:
            # Retrieves the exception: asyncio would log it as never retrieved.
            future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        if running:
            await asyncio.wait(running, timeout=timeout_seconds)
