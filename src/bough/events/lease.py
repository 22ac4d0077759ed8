"""The right to run a conversation: one runner at a time, taken over at once when its process is gone."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID, uuid4

from bough.cancellation import finished
from bough.errors import BoughError, Conflict
from bough.events.record import Lease
from bough.events.store import EventStore

TTL_SECONDS = 15.0
"""How long a lease lasts without being renewed; it is renewed three times in that span."""


@asynccontextmanager
async def held_lease(store: EventStore, cid: UUID, *, ttl_seconds: float = TTL_SECONDS) -> AsyncGenerator[Lease]:
    """Hold the lease of a conversation, renewing it, and give it back at the end.

    When another has taken it, or it ran out because the store could not be reached, the block is cancelled at once, so
    that its tools end.

    Raises:
        Conflict: Another living process runs the conversation, or took it over meanwhile.
    """
    lease = await _acquire(store, cid, owner_name(), ttl_seconds)
    holder = asyncio.current_task()
    renewal = asyncio.create_task(_renew(store, lease, ttl_seconds), name=f"lease {cid}")
    lost = False

    def stop(_: object) -> None:
        nonlocal lost
        if holder is not None and not renewal.cancelled():
            lost = True
            holder.cancel()

    renewal.add_done_callback(stop)
    try:
        try:
            yield lease
        finally:
            await finished(_give_back(store, lease, renewal))
    except asyncio.CancelledError as error:
        if lost and holder is not None and holder.uncancel() == 0:
            raise Conflict("the run was taken over elsewhere", hint="open the conversation again") from error
        raise


def owner_name() -> str:
    """Return a name no other runner has: host, process, when the process started, and a random part."""
    pid = os.getpid()
    return f"{socket.gethostname()}/{pid}/{_started(pid) or 0}/{uuid4().hex[:8]}"


def is_gone(owner: str) -> bool:
    """Whether the owner's process certainly no longer exists: it was on this machine, and its pid is free or reused."""
    host, _, rest = owner.partition("/")
    pid, _, rest = rest.partition("/")
    started = rest.partition("/")[0]
    if host != socket.gethostname() or not pid.isdigit() or not Path("/proc/self/stat").exists():
        return False
    return str(_started(int(pid)) or "gone") != started


async def _acquire(store: EventStore, cid: UUID, owner: str, ttl_seconds: float) -> Lease:
    try:
        return await store.acquire(cid, owner, ttl_seconds)
    except Conflict as conflict:
        holder = str(conflict.details.get("owner", ""))
        if not is_gone(holder):
            raise Conflict(
                "the conversation is being run elsewhere",
                hint="wait until that run is over, or fork the conversation",
                details=conflict.details,
            ) from conflict
        # Renewing in the dead owner's name raises the generation, which fences off whatever it left behind.
        return await store.acquire(cid, holder, ttl_seconds)


async def _renew(store: EventStore, lease: Lease, ttl_seconds: float) -> None:
    """Renew the lease again and again; return when it is lost."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + ttl_seconds
    while loop.time() < ends:
        await asyncio.sleep(ttl_seconds / 3)
        asked = loop.time()
        try:
            await store.renew(lease, ttl_seconds)
        except Conflict:
            return
        except BoughError:
            continue  # the store may be back before the lease ends
        ends = asked + ttl_seconds


async def _give_back(store: EventStore, lease: Lease, renewal: asyncio.Task[None]) -> None:
    if not renewal.done():
        renewal.cancel()
    await asyncio.gather(renewal, return_exceptions=True)
    with suppress(BoughError):  # it runs out by itself; what ended the run is what counts
        await store.release(lease)


def _started(pid: int) -> int | None:
    """Clock ticks after boot at which the process started; None where there is none or no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
