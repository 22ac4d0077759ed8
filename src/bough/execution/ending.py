"""Runs that are cancelled once, however often their caller is: what ends a process tree is never interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def ended_whole(run: Coroutine[Any, Any, _T]) -> _T:
    """Return what `run` returns; when the caller is cancelled, cancel it once and wait until it is through.

    Cancel scopes of anyio cancel a task in every turn of the event loop until it is done; people press Ctrl-C twice.
    """
    task = asyncio.ensure_future(run)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        await _over(task)
        raise


async def _over(task: asyncio.Future[Any]) -> None:
    """Wait for `task`, and for nothing else; its error, if cleaning up had one, is the context of the cancellation."""
    import anyio

    with anyio.CancelScope(shield=True):  # spares the event loop a cancellation in each of its turns
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                continue
    if not task.cancelled() and (error := task.exception()) is not None:
        raise asyncio.CancelledError from error
