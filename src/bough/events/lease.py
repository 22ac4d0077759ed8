"""The right to run a conversation: one runner at a time, taken over at once when its process is gone."""

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
"""How long a lease lasts without being renewed; it is renewed three times in that span."""


@asynccontextmanager
async def hold_lease(
    store: EventStore, cid: UUID, *, ttl_seconds: float = TTL_SECONDS, lease: Lease | None = None
) -> AsyncGenerator[Lease]:
    """Hold the lease of a conversation, renewing it off the event loop, and give it back at the end.

    When another has taken it, or it ran out because the store could not be reached, the block is cancelled at once, so
    that its tools end.

    Args:
        lease: One that the caller has taken, keeps and gives back; it is handed on as it is.

    Raises:
        Conflict: Another living process runs the conversation, or took it over meanwhile.
    """
    if lease is not None:
        yield lease
        return
    lease = await acquire(_take(store, cid, owner(), ttl_seconds), lambda taken: _give_back(store, taken))
    holder = asyncio.current_task()
    lost = False

    def stop() -> None:
        nonlocal lost
        if holder is not None:
            lost = True
            holder.cancel()

    keeping = store.keep(lease, ttl_seconds, stop)
    try:
        try:
            yield lease
        finally:
            keeping.stop()
            await finish(_give_back(store, lease))
    except asyncio.CancelledError as error:
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
        # In the dead owner's name it is ended, which fences off whatever it left behind; held it must be in this one:
        # a lease in a dead owner's name looks free to every other process.
        await store.acquire(cid, holder, 0)
        return await store.acquire(cid, name, ttl_seconds)


async def _give_back(store: EventStore, lease: Lease) -> None:
    with suppress(BoughError):  # it runs out by itself; what ended the run is what counts
        await store.release(lease)
