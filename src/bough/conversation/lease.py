"""The right to run a conversation: one runner at a time, taken over at once when its process is gone."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

from bough.errors import BoughError, Conflict
from bough.events.record import Lease
from bough.events.store import EventStore

TTL_SECONDS = 15.0
"""How long a lease lasts without being renewed; it is renewed three times in that span."""


@asynccontextmanager
async def held_lease(store: EventStore, cid: UUID) -> AsyncGenerator[Lease]:
    """Hold the lease of a conversation, renewing it, and give it back at the end.

    When it cannot be renewed the run goes on until its next append, which the store refuses if another has taken over.

    Raises:
        Conflict: Another living process runs the conversation.
    """
    lease = await _acquire(store, cid, owner_name())
    renewal = asyncio.create_task(_renew(store, lease), name=f"lease {cid}")
    try:
        yield lease
    finally:
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)
        await store.release(lease)


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


async def _acquire(store: EventStore, cid: UUID, owner: str) -> Lease:
    try:
        return await store.acquire(cid, owner, TTL_SECONDS)
    except Conflict as conflict:
        holder = str(conflict.details.get("owner", ""))
        if not is_gone(holder):
            raise Conflict(
                "the conversation is being run elsewhere",
                hint="wait until that run is over, or fork the conversation",
                details=conflict.details,
            ) from conflict
        # Renewing in the dead owner's name raises the generation, which fences off whatever it left behind.
        return await store.acquire(cid, holder, TTL_SECONDS)


async def _renew(store: EventStore, lease: Lease) -> None:
    while True:
        await asyncio.sleep(TTL_SECONDS / 3)
        try:
            await store.renew(lease, TTL_SECONDS)
        except Conflict:
            return
        except BoughError:
            continue  # the store may be back before the lease ends; an append fails loudly if it is not


def _started(pid: int) -> int | None:
    """Clock ticks after boot at which the process started; None where there is none or no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
