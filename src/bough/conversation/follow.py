"""Follows a conversation: yields events as they are appended, and pieces of text of runs on this event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from uuid import UUID

from bough.conversation.log.listeners import Delta, Update, UpdateChannel, local_followers
from bough.errors import InvalidInput, NotFound
from bough.events.lease import TTL_SECONDS, is_gone
from bough.events.model import StateChanged, TaskChanged
from bough.events.record import StoredEvent
from bough.events.store import EventStore

_FIRST_CHECK_SECONDS = 0.1
"""After this time without an update, the lease is checked. Each further wait is twice as long, up to a lease's time."""

LIVE_TASK_STATES = ("pending", "running")

HANDED_BACK = "handed back"
"""The reason of the status `paused` if another worker continues the run."""


def check_position(after: int) -> int:
    """Return `after`, the seq after which a conversation is followed.

    Raises:
        InvalidInput: It is not a whole number from -1 on.
    """
    if not isinstance(after, int) or isinstance(after, bool) or after < -1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(f"after={after!r} is not a position", hint="give the seq of the last event you have, or -1")
    return after


def ends_run(stored: StoredEvent) -> bool:
    """Whether an event ends a run, or a task that has not run, and no other worker continues it."""
    if stored.kind not in ("StateChanged", "TaskChanged"):
        return False  # without decoding the event
    match stored.event:
        case StateChanged(changes=changes, reason=reason):
            return changes.get("status", "running") != "running" and reason != HANDED_BACK
        case TaskChanged(state=state):
            return state not in LIVE_TASK_STATES
        case _:
            return False


async def follow(store: EventStore, cid: UUID, after: int) -> AsyncGenerator[Update]:
    """Yield the events after seq `after` and the pieces of text in between, until the present run has ended.

    Ends at the head of the log if there is no run. The run of a dead process has ended when its lease has expired, or
    when the process is known to be dead.

    Raises:
        NotFound: The conversation does not exist, or was deleted before the first event was read.
    """
    updates = UpdateChannel()
    # Joined before any event is read, so that no piece of text after these events is missed.
    with local_followers.join(store.url, cid, updates.put):
        # Before the head is read: if a run ends in between, its last event is before that head.
        is_running = await _is_running(store, cid)
        head = (await store.get(cid)).head
        position, patience_seconds = after + 1, _FIRST_CHECK_SECONDS
        pieces: list[Delta] = []
        pump = asyncio.create_task(_copy_events(store.subscribe(cid, after), updates), name=f"follow {cid}")
        try:
            while is_running or position < head:
                try:
                    async with asyncio.timeout(patience_seconds):
                        update = await updates.take()
                except TimeoutError:
                    patience_seconds = min(2 * patience_seconds, TTL_SECONDS)
                    try:
                        is_running = await _is_running(store, cid)
                        head = (await store.get(cid)).head
                    except NotFound:
                        break
                    continue
                if update is None:
                    break
                if isinstance(update, Delta):
                    pieces.append(update)
                else:
                    yield update
                    position = update.seq + 1
                    is_running = is_running and not (position > head and ends_run(update))
                # A piece is published at once, but earlier events only when they are durable: so the piece waits here.
                while pieces and pieces[0].head <= position:
                    yield pieces.pop(0)
        finally:
            pump.cancel()
            await asyncio.wait({pump})
        if pump.done() and not pump.cancelled() and (error := pump.exception()) is not None:
            raise error


async def _is_running(store: EventStore, cid: UUID) -> bool:
    owner = await store.lease_owner(cid)
    return owner is not None and not is_gone(owner)


async def _copy_events(events: AsyncIterator[StoredEvent], updates: UpdateChannel) -> None:
    try:
        async for stored in events:
            updates.put(stored)
    finally:
        updates.put(None)
