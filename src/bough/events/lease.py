"""The right to run a conversation: one runner at a time, taken over at once if its process has died."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from uuid import UUID

from bough.cancellation import acquire, finish
from bough.errors import BoughError, Conflict
from bough.events.owner import is_gone, owner
from bough.events.record import Lease
from bough.events.store import EventStore

__all__ = ["TTL_SECONDS", "hold_lease", "is_gone", "owner"]

TTL_SECONDS = 15.0
"""How long a lease lasts without renewal. It is renewed three times in this period."""


@asynccontextmanager
async def hold_lease(
    store: EventStore, cid: UUID, *, ttl_seconds: float = TTL_SECONDS, lease: Lease | None = None
) -> AsyncGenerator[Lease]:
    """Hold the lease of a conversation inside a block, renewed by a thread, and release it at the end.

    If another process takes the lease, or it expires because the store is unreachable, the block is cancelled at once,
    so that its tools stop.

    Args:
        lease: A lease that the caller has taken, renews and releases; it is yielded unchanged.

    Raises:
        Conflict: Another live process runs the conversation, or took it over during the block.
    """
    if lease is not None:
        yield lease
        return
    # `acquire` releases a lease that was granted while the caller was cancelled; left, it would block the next run.
    lease = await acquire(_take(store, cid, owner(), ttl_seconds), lambda granted: _give_back(store, granted))
    holder = asyncio.current_task()
    lost = False

    def stop() -> None:
        nonlocal lost
        if holder is not None:
            lost = True
            holder.cancel()

    renewed = store.keep_lease(lease, ttl_seconds, stop)
    try:
        try:
            yield lease
        finally:
            renewed.stop()  # before the release, which would make the next renewal fail and cancel the caller
            await finish(_give_back(store, lease))
    except asyncio.CancelledError as error:
        # A cancellation from outside, counted as well, has to go on as one; only the renewal's own becomes a Conflict.
        if lost and holder is not None and holder.uncancel() == 0:
            raise Conflict("another process took over this run", hint="open the conversation again") from error
        raise


async def _take(store: EventStore, cid: UUID, name: str, ttl_seconds: float) -> Lease:
    try:
        return await store.acquire(cid, name, ttl_seconds)
    except Conflict as conflict:
        holder = str(conflict.details.get("owner", ""))
        if not is_gone(holder):
            raise Conflict(
                "another process is running the conversation",
                hint="wait until that run is over, or fork the conversation",
                details=conflict.details,
            ) from conflict
        # First take it in the dead owner's name for 0 seconds, which fences whatever that owner left running. Then take
        # it in this owner's name: a lease in a dead owner's name looks free to every other process.
        await store.acquire(cid, holder, 0)
        return await store.acquire(cid, name, ttl_seconds)


async def _give_back(store: EventStore, lease: Lease) -> None:
    with suppress(BoughError):  # it expires anyway, and an error here would hide the one that ended the run
        await store.release(lease)
