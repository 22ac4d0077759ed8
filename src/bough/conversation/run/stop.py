"""Why a run is being stopped, said before it is cancelled; and what of it Python cannot stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Literal, TypeAlias, TypeVar

from bough.portal import threads

_R = TypeVar("_R")

StopReason: TypeAlias = Literal["interrupt", "hand_back", "fenced"]
"""`interrupt`: a person wants it to end; `hand_back`: another worker continues; `fenced`: another one does already."""

BLOCKING_SECONDS = 2.0
"""How long a function that blocks is waited for when its call is cut off; less than the end of a program may take."""


class StopNote:
    """Shared by a run and what records it.

    Attributes:
        reason: None where nobody said one: the same as `interrupt`.
        on_hand_back: Set: the run ends before its next request, so that another worker continues; called when it does.
    """

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        self.on_hand_back: Callable[[], None] | None = None

    def hands_back(self) -> bool:
        """Whether the run ends here because it is to be handed back; whoever asked for that is told."""
        if self.on_hand_back is None:
            return False
        self.on_hand_back()
        return True

    @property
    def leaves_calls_open(self) -> bool:
        """Whether calls under way stay open for the process that continues, instead of being closed as interrupted."""
        return self.reason in ("hand_back", "fenced")


def _call(fn: Callable[..., _R], /, *args: Any, **kwargs: Any) -> _R:
    """Call a function; what asyncio cannot hand over to who awaits it is raised as another error.

    A future refuses `StopIteration`, so that its awaiter would wait for ever; `GeneratorExit` closes a coroutine.
    """
    try:
        return fn(*args, **kwargs)
    except (StopIteration, GeneratorExit) as error:
        raise RuntimeError(f"the function raised {type(error).__name__}") from error


class BlockingCall(Executor):
    """Runs what blocks in one tool call in the process's threads, and knows whether some of it still runs."""

    def __init__(self) -> None:
        self._futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., _R], /, *args: Any, **kwargs: Any) -> Future[_R]:
        """Run `fn` in a thread."""
        future = threads().submit(_call, fn, *args, **kwargs)
        self._futures.append(future)
        return future

    @property
    def is_running(self) -> bool:
        """Whether something of it still runs: a function that has begun cannot be stopped."""
        return any(not future.done() for future in self._futures)

    async def wait(self, timeout_seconds: float) -> None:
        """Return when nothing of it runs any more, or after that time."""
        waiting = [asyncio.wrap_future(future) for future in self._futures if not future.done()]
        for future in waiting:
            # Retrieves the exception: asyncio would log it as never retrieved.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_seconds)
