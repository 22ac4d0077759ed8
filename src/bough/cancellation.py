"""Await work that must be finished even if the caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T], *, cancel: bool = False) -> T:
    """Await `work` until it ends, and raise a cancellation of the caller only then, however often it is cancelled.

    So a caller that is cancelled during a write knows whether the write succeeded.

    Args:
        cancel: Pass the first cancellation on to the work, and wait until the work has cleaned up.

    Raises:
        asyncio.CancelledError: The caller was cancelled; if the work failed, its error is the cause.
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
        # Always retrieved, because asyncio logs exceptions that were never retrieved.
        error = None if task.cancelled() else task.exception()
        raise cancellation from error


async def acquire(acquiring: Awaitable[T], release: Callable[[T], Awaitable[object]]) -> T:
    """Return an acquired resource. If the caller is cancelled meanwhile, release the resource before raising.

    Args:
        release: Must handle its own errors; an error that it raises would replace the cancellation.

    Raises:
        asyncio.CancelledError: The caller was cancelled; the resource is not held.
    """
    task = asyncio.ensure_future(acquiring)
    try:
        return await finish(task)
    except asyncio.CancelledError:
        if not task.cancelled() and task.exception() is None:
            await finish(release(task.result()))
        raise


async def _wait_until_done(task: asyncio.Future[Any]) -> None:
    """Wait for `task`, and ignore cancellations meanwhile."""
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
    """Return whether the running task was cancelled; if not, a `CancelledError` in it comes from another task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
