"""Work that is finished even when the waiter for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T], *, cancel: bool = False) -> T:
    """Await `work` to its end; a cancellation that comes meanwhile is raised after it, however often it comes.

    What is being written when a run is cancelled is either in the log or not, and the caller knows which.

    Args:
        cancel: Pass the first cancellation on to the work, and wait until it has cleaned up.

    Raises:
        asyncio.CancelledError: The caller was cancelled; an error of the work is its cause.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError as cancellation:
        if task.cancelled():
            raise
        if cancel:
            task.cancel()
        await _wait_until_done(task)
        # The error is retrieved here even if nobody looks at the cause: asyncio reports errors that nothing retrieved.
        error = None if task.cancelled() else task.exception()
        raise cancellation from error


async def acquire(acquiring: Awaitable[T], release: Callable[[T], Awaitable[object]]) -> T:
    """Await the acquisition of a resource; if the caller is cancelled meanwhile, release it before that is raised.

    Args:
        release: Handles its own errors: one that it raises would take the place of the cancellation.

    Raises:
        asyncio.CancelledError: The caller was cancelled; nothing is held.
    """
    task = asyncio.ensure_future(acquiring)
    try:
        return await finish(task)
    except asyncio.CancelledError:
        if not task.cancelled() and task.exception() is None:
            await finish(release(task.result()))
        raise


async def _wait_until_done(task: asyncio.Future[Any]) -> None:
    """Wait for `task` and ignore every cancellation meanwhile."""
    import anyio

    # A cancelled anyio scope cancels the waiting task again in every iteration of the event loop; the shield prevents
    # that. It does not stop `Task.cancel()`, so the `while` is needed too.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                continue


def is_cancelled() -> bool:
    """Whether the running task was asked to stop; a cancellation that it meets otherwise is somebody else's."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
