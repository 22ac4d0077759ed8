"""One conversation's log in use: appends in order, folds what it appends, tells who listens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from bough.conversation.state import State
from bough.conversation.view import View
from bough.events.codec import encode
from bough.events.model import Event
from bough.events.record import StoredEvent
from bough.events.store import EventStore


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A piece of a response while it is being written; never an event.

    Attributes:
        kind: `text` or `thinking`.
    """

    text: str
    kind: str = "text"


Update = StoredEvent | Delta
"""What a listener gets: durable events, and pieces of text on their way."""


class Journal:
    """The log of one conversation with its fold (`state`) and its view.

    Events that others append (messages sent by another process) are folded in by `catch_up`, in the log's order.
    """

    def __init__(self, store: EventStore, cid: UUID) -> None:
        self.store = store
        self.cid = cid
        self.state = State()
        self.view = View()
        self.generation: int | None = None
        self.listeners: list[Callable[[Update], None]] = []
        self._lock = asyncio.Lock()

    async def catch_up(self) -> None:
        """Fold what is in the log and not yet here. O(new events)."""
        async with self._lock:
            await self._catch_up()

    async def append(self, *events: Event, expected_head: int | None = None) -> None:
        """Append all or none, durable on return, and fold them.

        Raises:
            Conflict: The lease was lost, or the head is not `expected_head`.
            StoreError: The store could not write.
        """
        async with self._lock:
            head = await self.store.append(self.cid, events, generation=self.generation, expected_head=expected_head)
            first = head - len(events)
            if first == self.state.head:
                for seq, event in enumerate(events, first):
                    self._fold(_stored(seq, event))
            else:
                await self._catch_up()

    async def forked(self, cid: UUID, at: int) -> Journal:
        """Return the journal of a fork cut at `at`; where that is the head, nothing is read again."""
        new = Journal(self.store, cid)
        if self.state.head == at:
            new.state, new.view = self.state.copy(), self.view.copy()
        await new.catch_up()
        return new

    def publish(self, update: Update) -> None:
        """Tell every listener; none of them can hold up the run."""
        for listener in tuple(self.listeners):
            listener(update)

    async def _catch_up(self) -> None:
        async for stored in self.store.read(self.cid, self.state.head):
            self._fold(stored)

    def _fold(self, stored: StoredEvent) -> None:
        self.state.apply(stored.seq, stored.event)
        self.view.apply(stored.seq, stored.event)
        self.publish(stored)


def _stored(seq: int, event: Event) -> StoredEvent:
    return StoredEvent(seq=seq, id=event.id, kind=event.kind, ts=event.ts, raw=encode(event))
