"""The event store in one SQLite file: the asynchronous face of reading and writing."""

from __future__ import annotations

import asyncio
import builtins
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from bough.errors import CorruptLog
from bough.events import faults
from bough.events.base import BaseEventStore
from bough.events.batch import Batch
from bough.events.check import Census
from bough.events.draft import Piece, draft, fresh
from bough.events.lineage import Range
from bough.events.queries import queries
from bough.events.record import ConversationFilter, ConversationRecord, Lease, Page, StoredEvent
from bough.events.sqlite.commit import GroupCommit, Request
from bough.events.sqlite.connection import open_file
from bough.events.sqlite.readers import Readers
from bough.events.sqlite.reading import SqliteReading
from bough.events.sqlite.writing import SqliteWriting
from bough.events.store import Cut, DeleteMode
from bough.types import Clock, JsonObject, SystemClock, new_id

if TYPE_CHECKING:
    from bough.events.model import Event

T = TypeVar("T")


class SqliteEventStore(BaseEventStore):
    """Conversations in one file, for any number of processes on one machine. Source: `EventStore`.

    Writes go through one thread with group commit, reads through a few connections of their own, so that neither
    blocks the event loop or the other. It may be used from several event loops at once.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__()
        self.path = path
        self.url = f"sqlite:///{path}"
        self._clock = clock
        self._sql = queries("sqlite")
        work = GroupCommit(path, self._sql, self._hub, clock)
        self._writer: Batch[Request] = Batch(f"bough-writer {path.name}", self.url, work)
        self._hub.on_first = self._writer.wake
        self._readers = Readers(path, self._sql)
        weakref.finalize(self, self._writer.stop)
        weakref.finalize(self, self._readers.stop)

    @classmethod
    async def open(cls, path: Path, *, clock: Clock | None = None) -> SqliteEventStore:
        """Return the store in a file, made or brought up to date first.

        Raises:
            StoreError: The file cannot be opened, is no bough store, or comes from a newer bough.
        """
        return await asyncio.to_thread(cls._open, path, clock or SystemClock())

    @classmethod
    def _open(cls, path: Path, clock: Clock) -> SqliteEventStore:
        open_file(path)
        return cls(path, clock)

    async def create(
        self, record: ConversationRecord | None = None, *, events: Sequence[Event] = ()
    ) -> ConversationRecord:
        """Create a root conversation. See `EventStore.create`."""
        root, drafted = record or fresh(new_id(), self._clock.now()), draft(events)
        return await self._write(lambda log: log.create(root, drafted))

    async def get(self, cid: UUID) -> ConversationRecord:
        """Return the record. See `EventStore.get`."""
        return await self._read(lambda log: log.get(cid))

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
        drafted = draft(events)
        return await self._write(lambda log: log.append(cid, drafted, generation, expected_head))

    async def read(
        self, cid: UUID, start: int = 0, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[StoredEvent]:
        """Iterate events, a page at a time. See `EventStore.read`."""
        events, left = await self._read_log(cid, lambda log: log.begin(cid, start, stop, reverse))
        while events:
            for stored in events:
                yield stored
            events, left = (
                await self._read_log(cid, lambda log, left=left: log.page(left, reverse)) if left else ([], [])
            )

    async def tail(self, cid: UUID, n: int) -> builtins.list[StoredEvent]:
        """Return the last n events. See `EventStore.tail`."""
        return await self._read_log(cid, lambda log: log.tail(cid, n))

    async def locate(self, event_id: UUID, *, cid: UUID | None = None) -> tuple[UUID, int]:
        """Return (owner, seq). See `EventStore.locate`."""
        return await self._read(lambda log: log.locate(event_id, cid))

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
        return await self._write(lambda log: log.fork(cid, at, wanted, drafted))

    async def list(self, filter: ConversationFilter | None = None, cursor: str | None = None, limit: int = 50) -> Page:
        """Return a page of conversations. O(conversations in the store). See `EventStore.list`."""
        return await self._read(lambda log: log.list(filter or ConversationFilter(), cursor, limit))

    async def children(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the forks. See `EventStore.children`."""
        return await self._read(lambda log: log.children(cid))

    async def lineage(self, cid: UUID) -> builtins.list[Range[UUID]]:
        """Return the ranges of the log. See `EventStore.lineage`."""
        return await self._read(lambda log: log.lineage(cid))

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
        return await self._read(lambda log: log.peek(cid))

    async def ancestry(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return what a conversation descends from. See `EventStore.ancestry`."""
        return await self._read(lambda log: log.ancestry(cid))

    async def span(self, owner: UUID, lo: int, hi: int) -> builtins.list[StoredEvent]:
        """Return own events with their digests checked. See `EventStore.span`."""
        return await self._read(lambda log: log.span(owner, lo, hi))

    async def restore(self, pieces: Sequence[Piece]) -> None:
        """Insert what an import found missing. See `EventStore.restore`."""
        await self._write(lambda log: log.restore(pieces))

    async def census(self) -> Census:
        """Count the events and run SQLite's own check. See `EventStore.census`."""
        return await self._read(lambda log: log.census())

    async def aclose(self) -> None:
        """Finish what is being written and close; subscribers end. See `EventStore.aclose`."""
        if self._closed:
            return
        self._closed = True
        self._hub.close()
        self._writer.flush()
        self._writer.stop()
        self._readers.stop()
        await asyncio.to_thread(self._writer.join)
        await asyncio.to_thread(self._readers.join)

    async def _write(self, request: Callable[[SqliteWriting], T]) -> T:
        if self._closed:
            raise faults.closed(self.url)
        return await self._writer.submit(request)

    async def _read(self, question: Callable[[SqliteReading], T]) -> T:
        if self._closed:
            raise faults.closed(self.url)
        return await self._readers.ask(question)

    async def _read_log(self, cid: UUID, question: Callable[[SqliteReading], T]) -> T:
        """Read events; if some are missing because the conversation was deleted meanwhile, say that instead."""
        try:
            return await self._read(question)
        except CorruptLog:
            await self.get(cid)
            raise
