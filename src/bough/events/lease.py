"""The lease of a conversation: one process runs it at a time, and another takes over at once if that one has died."""

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
        lease: A lease that the caller acquired, renews and releases. It is yielded unchanged.

    Raises:
        Conflict: Another live process runs the conversation, or took over its lease during the block.
    """
    if lease is not None:
        yield lease
        return
    # If the caller is cancelled while the lease is granted, `acquire` releases it: it would block the next run.
    lease = await acquire(_acquire(store, cid, owner(), ttl_seconds), lambda granted: _release(store, granted))
    holder = asyncio.current_task()
    was_lost = False

    def cancel_holder() -> None:
        nonlocal was_lost
        if holder is not None:
            was_lost = True
            holder.cancel()

    renewed = store.keep_lease(lease, ttl_seconds, cancel_holder)
    try:
        try:
            yield lease
        finally:
            renewed.stop()  # before the release: a renewal after it would fail and cancel the caller
            await finish(_release(store, lease))
    except asyncio.CancelledError as error:
        # A cancellation from outside must propagate; only the one from `cancel_holder` becomes a Conflict.
        if was_lost and holder is not None and holder.uncancel() == 0:
            raise Conflict("another process took over this run", hint="open the conversation again") from error
        raise


async def _acquire(store: EventStore, cid: UUID, name: str, ttl_seconds: float) -> Lease:
    """Acquire the lease for the owner `name`, also from an owner whose process has died."""
    try:
        return await store.acquire(cid, name, ttl_seconds)
    except Conflict as conflict:
        holder = str(conflict.details.get("owner", ""))
        if not is_gone(holder):
            raise Conflict(
                "the conversation is already running",
                hint="wait until that run has ended, or fork the conversation",
                details=conflict.details,
            ) from conflict
        # First acquire it for the dead owner, for 0 seconds: this raises the generation and ends the old lease. Then
        # acquire it for this owner, because a lease of a dead owner looks free to every other process.
        await store.acquire(cid, holder, 0)
        return await store.acquire(cid, name, ttl_seconds)


async def _release(store: EventStore, lease: Lease) -> None:
    with suppress(BoughError):  # it expires anyway, and an error here would hide the one that ended the run
        await store.release(lease)
