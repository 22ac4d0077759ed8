"""Work that is finished even when whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def completed(work: Awaitable[T]) -> T:
    """Await `work` to its end; a cancellation that comes meanwhile is raised after it, however often it comes.

    What is being written when a run is cancelled is either in the log or not, and the caller knows which.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:  # noqa: BLE001 - raised below, by the task's result
            break
    if cancelled is not None:
        task.exception()  # looked at, so that nobody is told of it twice
        raise cancelled
    return task.result()


def is_cancelled() -> bool:
    """Whether the running task was asked to stop; a cancellation that it meets otherwise is somebody else's."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
