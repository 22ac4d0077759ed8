"""One conversation's log in use: appends in order, folds what it appends, tells who listens."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from bough.conversation.completion import completed
from bough.conversation.state import State
from bough.conversation.view import View
from bough.errors import CorruptLog
from bough.events.codec import encode
from bough.events.model import Event
from bough.events.record import StoredEvent
from bough.events.store import EventStore
from bough.guard import MaskStream, Secrets


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

    def __init__(self, store: EventStore, cid: UUID, *, secrets: Secrets | None = None) -> None:
        self.secrets = secrets or Secrets()
        self._streams: dict[str, MaskStream] = {}
        self.store = store
        self.cid = cid
        self.state = State()
        self.view = View()
        self.generation: int | None = None
        self.listeners: list[Callable[[Update], None]] = []
        self._lock = asyncio.Lock()
        self._noted: list[Event] = []

    async def catch_up(self) -> None:
        """Fold what is in the log and not yet here. O(new events)."""
        async with self._lock:
            await self._catch_up()

    async def append(self, *events: Event, expected_head: int | None = None) -> None:
        """Append all or none, durable on return, and fold them. Values of secrets are masked before.

        What was begun is finished: a cancellation that comes meanwhile is raised when the events are in the log.

        Raises:
            Conflict: The lease was lost, or the head is not `expected_head`.
            StoreError: The store could not write.
        """
        noted, self._noted = self._noted, []
        await completed(self._append(self._masked((*noted, *events)), expected_head))

    def note(self, *events: Event) -> None:
        """Have events appended before the next ones that are, with them. For records that nothing depends on."""
        self._noted += events

    def leased(self, generation: int) -> Journal:
        """Return this journal as its runner uses it: what it appends is refused once another has taken over.

        State, view and listeners are the same ones.
        """
        new = copy.copy(self)
        new.generation, new._streams, new._noted = generation, {}, []
        return new

    async def cut(self, at: int) -> Journal:
        """Return a journal that has folded the first `at` events; where that is the head, nothing is read again."""
        new = Journal(self.store, self.cid, secrets=self.secrets)
        if self.state.head == at:
            new.state, new.view = self.state.copy(), self.view.copy()
        else:
            await new._catch_up(at)
        return new

    async def forked(self, cid: UUID) -> Journal:
        """Return this fold as that of a fork which was cut here, with the fork's own events."""
        self.cid = cid
        await self.catch_up()
        return self

    def stream(self, delta: Delta) -> None:
        """Publish a piece of a response, values of secrets masked even where they are cut in two."""
        if self.secrets.names:
            stream = self._streams.setdefault(delta.kind, self.secrets.masker().text_stream())
            delta = replace(delta, text=stream.feed(delta.text))
        if delta.text:
            self.publish(delta)

    def end_stream(self) -> None:
        """Publish what a masked stream still holds back."""
        for kind, stream in self._streams.items():
            if rest := stream.close():
                self.publish(Delta(text=rest, kind=kind))
        self._streams = {}

    def publish(self, update: Update) -> None:
        """Tell every listener; none of them can hold up the run. One that raises is reported and not told again."""
        for listener in tuple(self.listeners):
            try:
                listener(update)
            except Exception as error:  # noqa: BLE001 - the listeners' boundary: the event is in the log already
                self.listeners.remove(listener)
                told = {"message": f"a listener of conversation {self.cid} failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)

    async def _append(self, events: tuple[Event, ...], expected_head: int | None) -> None:
        async with self._lock:
            head = await self.store.append(self.cid, events, generation=self.generation, expected_head=expected_head)
            first = head - len(events)
            if first == self.state.head:
                for seq, event in enumerate(events, first):
                    self._fold(_stored(seq, event))
            else:
                await self._catch_up()

    async def _catch_up(self, stop: int | None = None) -> None:
        async for stored in self.store.read(self.cid, self.state.head, stop):
            self._fold(stored)

    def _masked(self, events: tuple[Event, ...]) -> tuple[Event, ...]:
        if not self.secrets.names:
            return events
        masker = self.secrets.masker()
        return tuple(type(event).model_validate(masker.json(event.model_dump(mode="json"))) for event in events)

    def _fold(self, stored: StoredEvent) -> None:
        try:
            self.state.apply(stored.seq, stored.event)
            self.view.apply(stored.seq, stored.event)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptLog(
                f"event {stored.id} (seq {stored.seq}, {stored.kind}) does not say what its kind says: {error!r}",
                hint=f"`bough doctor` checks the whole store; a fork at {stored.seq} goes on without it",
            ) from error
        self.publish(stored)


def _stored(seq: int, event: Event) -> StoredEvent:
    return StoredEvent(seq=seq, id=event.id, kind=event.kind, ts=event.ts, raw=encode(event))
