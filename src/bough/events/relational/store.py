"""The asynchronous face of a log that is kept in tables: who asks, in which thread, is up to each store."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from bough.errors import CorruptLog
from bough.events.base import BaseEventStore
from bough.events.check import Census
from bough.events.draft import Append, Piece, draft, fresh
from bough.events.lineage import Range
from bough.events.record import ConversationFilter, ConversationRecord, Lease, Page, StoredEvent
from bough.events.relational.reading import RelationalReading
from bough.events.relational.writing import RelationalWriting
from bough.events.store import Cut, DeleteMode
from bough.types import Clock, JsonObject, new_id

if TYPE_CHECKING:
    from bough.events.model import Event

T = TypeVar("T")


class RelationalEventStore(BaseEventStore):
    """Every method of the protocol as a question to `RelationalReading` or a change by `RelationalWriting`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    @abstractmethod
    async def _append(self, append: Append) -> int:
        """Append durably, together with whatever else is appended at the same time; return the new head."""

    @abstractmethod
    async def _read(self, question: Callable[[RelationalReading], T], *, small: bool = False) -> T:
        """Return the answer to a question.

        Args:
            small: The answer is mostly a few rows, found by their keys.
        """

    @abstractmethod
    async def _write(self, change: Callable[[RelationalWriting], T], *, alone: bool = False) -> T:
        """Make a change durably and tell watchers.

        Args:
            alone: It is one statement, which needs no transaction around it.
        """

    async def create(
        self, record: ConversationRecord | None = None, *, events: Sequence[Event] = ()
    ) -> ConversationRecord:
        """Create a root conversation. See `EventStore.create`."""
        root, drafted = record or fresh(new_id(), self._clock.now()), draft(events)
        return await self._write(lambda log: log.create(root, drafted))

    async def get(self, cid: UUID) -> ConversationRecord:
        """Return the record. See `EventStore.get`."""
        return await self._read(lambda log: log.get(cid), small=True)

    async def resolve(self, name: str) -> UUID:
        """Return the conversation a name stands for. See `EventStore.resolve`."""
        return await self._read(lambda log: log.resolve(name))

    async def append(
        self,
        cid: UUID,
        events: Sequence[Event],
        *,
        generation: int | None = None,
        expected_head: int | None = None,
    ) -> int:
        """Append all or none, durably. See `EventStore.append`."""
        return await self._append(Append(cid, draft(events), generation, expected_head))

    async def read(
        self, cid: UUID, start: int = 0, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[StoredEvent]:
        """Iterate events, a page at a time. See `EventStore.read`."""
        events, left = await self._read_log(cid, lambda log: log.begin(cid, start, stop, reverse))
        while events:
            for stored in events:
                yield stored
            if not left:
                return
            events, left = await self._read_log(cid, lambda log, left=left: log.page(left, reverse))

    async def tail(self, cid: UUID, n: int) -> builtins.list[StoredEvent]:
        """Return the last n events. See `EventStore.tail`."""
        return await self._read_log(cid, lambda log: log.tail(cid, n))

    async def locate(self, event_id: UUID, *, cid: UUID | None = None) -> tuple[UUID, int]:
        """Return (owner, seq). See `EventStore.locate`."""
        return await self._read(lambda log: log.locate(event_id, cid), small=True)

    async def fork(
        self,
        cid: UUID,
        *,
        at: Cut | None = None,
        id: UUID | None = None,
        events: Sequence[Event] = (),
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        config: JsonObject | None = None,
        owner: str | None = None,
        lineage: JsonObject | None = None,
    ) -> ConversationRecord:
        """Fork by writing one row. See `EventStore.fork`."""
        now, id = self._clock.now(), id or new_id()
        wanted = ConversationRecord(
            id=id, root=id, title=title, tags=dict(tags or {}), config=config or {}, owner=owner,
            lineage=lineage or {}, created=now, updated=now,
        )  # fmt: skip
        drafted = draft(events)
        return await self._write(lambda log: log.fork(cid, at, wanted, drafted), alone=True)

    async def list(self, filter: ConversationFilter | None = None, cursor: str | None = None, limit: int = 50) -> Page:
        """Return a page of conversations. O(conversations in the store). See `EventStore.list`."""
        return await self._read(lambda log: log.list(filter or ConversationFilter(), cursor, limit))

    async def children(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the forks. See `EventStore.children`."""
        return await self._read(lambda log: log.children(cid))

    async def lineage(self, cid: UUID) -> builtins.list[Range[UUID]]:
        """Return the ranges of the log. See `EventStore.lineage`."""
        return await self._read(lambda log: log.lineage(cid), small=True)

    async def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take the lease. See `EventStore.acquire`."""
        return await self._write(lambda log: log.acquire(cid, owner, ttl))

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease. See `EventStore.renew`."""
        return await self._write(lambda log: log.renew(lease, ttl))

    async def release(self, lease: Lease) -> None:
        """Give the lease back. See `EventStore.release`."""
        await self._write(lambda log: log.release(lease))

    async def delete(self, cid: UUID, mode: DeleteMode = "tombstone") -> None:
        """Delete a conversation. See `EventStore.delete`."""
        await self._write(lambda log: log.delete(cid, mode))

    async def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record, tombstone or not. See `EventStore.peek`."""
        return await self._read(lambda log: log.peek(cid), small=True)

    async def ancestry(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return what a conversation descends from. See `EventStore.ancestry`."""
        return await self._read(lambda log: log.ancestry(cid))

    async def span(self, owner: UUID, lo: int, hi: int) -> builtins.list[StoredEvent]:
        """Return own events. See `EventStore.span`."""
        return await self._read(lambda log: log.span(owner, lo, hi))

    async def restore(self, pieces: Sequence[Piece]) -> None:
        """Insert what an import found missing. See `EventStore.restore`."""
        await self._write(lambda log: log.restore(pieces))

    async def census(self) -> Census:
        """Count the events and let the database check itself. See `EventStore.census`."""
        return await self._read(lambda log: log.census())

    async def _read_log(self, cid: UUID, question: Callable[[RelationalReading], T]) -> T:
        """Read events; if some are missing because the conversation was deleted meanwhile, say that instead."""
        try:
            return await self._read(question, small=True)
        except CorruptLog:
            await self.get(cid)
            raise
