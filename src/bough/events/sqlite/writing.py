"""Changing a log over one SQLite connection: each method is one request inside the writer's transaction.

A method either refuses before it writes, or writes everything it means to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from bough.errors import InvalidInput
from bough.events import faults
from bough.events.draft import Draft, EventRow, Piece, cleaned, dump, load
from bough.events.hub import END, Batch
from bough.events.lineage import owner_of
from bough.events.record import ConversationRecord, Lease, microseconds, moment
from bough.events.sqlite.reading import SEQ_BITS, Reading
from bough.events.store import Cut, DeleteMode
from bough.types import Clock


class Row(NamedTuple):
    """What a write has to know about a conversation."""

    cid: int
    parent: int | None
    base: int
    head: int
    forked_from: int | None
    forked_at: int | None
    root: int | None
    generation: int
    deleted: int
    lineage: str | None


class Writing(Reading):
    """Changes through one connection, inside a transaction that the caller begins and ends.

    Attributes:
        news: What the transaction will have to tell watchers once it is durable.
    """

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str], clock: Clock) -> None:
        super().__init__(db, sql)
        self.clock = clock
        self.news: list[tuple[UUID, int, Draft | None]] = []

    def create(self, record: ConversationRecord, draft: Draft) -> ConversationRecord:
        """Insert a root and its first events."""
        if self._row(record.id):
            raise faults.taken(record.id)
        fields = cleaned(record, draft.changes)
        record = replace(record, **fields, base=0, head=len(draft.rows))
        number = self._insert(record, parent=None, forked_from=None, root=None)
        self._insert_events(record.id, number, 0, draft)
        return record

    def append(self, cid: UUID, draft: Draft, generation: int | None, expected_head: int | None) -> int:
        """Append to a conversation and return its new head."""
        row = self._living(cid)
        if generation is not None and generation != row.generation:
            raise faults.fenced(cid, generation, row.generation)
        if expected_head is not None and expected_head != row.head:
            raise faults.moved_on(cid, expected_head, row.head)
        if draft.rows:
            self._insert_events(cid, row.cid, row.head, draft)
            self.all("advance", (row.head + len(draft.rows), self._now(), row.cid))
            self._apply(row.cid, draft.changes)
        return row.head + len(draft.rows)

    def fork(self, cid: UUID, at: Cut | None, wanted: ConversationRecord, draft: Draft) -> ConversationRecord:
        """Insert the row of a fork and its first own events; return the fork that exists if it is the same one."""
        source = self._living(cid)
        fields = cleaned(wanted, draft.changes)
        if there := self._row(wanted.id):
            return self._same_fork(there, source, at, wanted.id, fields["lineage"], cid)
        base, parent = self._cut(cid, source, at)
        record = replace(wanted, **fields, base=base, head=base + len(draft.rows))
        number = self._insert(record, parent=parent, forked_from=source.cid, root=source.root or source.cid)
        self._insert_events(record.id, number, base, draft)
        return self.get(record.id)

    def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take the lease and raise the generation."""
        row, now = self._living(cid), self._now()
        for holder, expires in self.all("lease", (row.cid,)):
            if holder != owner and expires > now:
                raise faults.leased(cid, holder, (expires - now) / 1e6)
        (generation,) = self.one("raise_generation", (row.cid,))
        return self._lease(
            row.cid, Lease(conversation=cid, owner=owner, generation=generation, expires=moment(now)), ttl
        )

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease that is still held, expired or not."""
        row = self._living(lease.conversation)
        held = self.one("lease", (row.cid,))
        if held is None or held[0] != lease.owner or row.generation != lease.generation:
            raise faults.fenced(lease.conversation, lease.generation, row.generation)
        return self._lease(row.cid, lease, ttl)

    def release(self, lease: Lease) -> None:
        """Give a lease back, unless someone else has it."""
        self.all("drop_lease", (lease.conversation.bytes, lease.generation, lease.owner))

    def delete(self, cid: UUID, mode: DeleteMode) -> None:
        """Bury a conversation and remove what no living one reaches."""
        row = self._living(cid)
        if mode == "cascade":
            for (fork,) in self.all("forks_of", (row.cid,)):
                self._bury(UUID(bytes=fork))
        elif mode == "erase":
            self._erase(row)
        elif mode != "tombstone":
            raise InvalidInput(f"no way to delete is called {mode!r}", hint="tombstone, erase or cascade")
        self._bury(cid)

    def restore(self, pieces: Sequence[Piece]) -> None:
        """Insert what an import found missing."""
        for piece in pieces:
            row = self._row(piece.record.id)
            number = self._restore(piece) if row is None else self._resume(row, piece)
            self._insert_events(piece.record.id, number, piece.first, piece.events)

    def _restore(self, piece: Piece) -> int:
        record = piece.record
        head = piece.first + len(piece.events.rows)
        parent, source, root = (
            self._row(id) if id else None for id in (record.parent, record.forked_from, record.root)
        )
        if record.parent and not (parent and parent.base < record.base <= parent.head):
            raise faults.changed_meanwhile(record.id)
        fields = cleaned(record, {}) | {"owner": None, "head": head, "generation": 0}
        numbers = {"parent": parent and parent.cid, "forked_from": source and source.cid, "root": root and root.cid}
        return self._insert(replace(record, **fields), **numbers)

    def _resume(self, row: Row, piece: Piece) -> int:
        record, head = piece.record, piece.first + len(piece.events.rows)
        if row.head != piece.first:
            raise faults.changed_meanwhile(record.id)
        parent = self._row(record.parent) if record.parent else None
        self.all("trim", (head, parent and parent.cid, row.cid))
        if not record.deleted:
            words = (dump(record.config), dump(record.lineage)) if row.deleted else (None, None)
            self.all("revive", (microseconds(record.updated), *words, row.cid))
            self._apply(row.cid, {"status": record.status, "title": record.title, "tags": record.tags})
        return row.cid

    def _lease(self, number: int, lease: Lease, ttl: float) -> Lease:
        expires = self.clock.now() + timedelta(seconds=ttl)
        self.all("set_lease", (number, lease.owner, microseconds(expires)))
        return replace(lease, expires=expires)

    def _row(self, cid: UUID) -> Row | None:
        row = self.one("row_of", (cid.bytes,))
        return row and Row(*row)

    def _living(self, cid: UUID) -> Row:
        row = self._row(cid)
        if row is None or row.deleted:
            raise faults.no_conversation(cid)
        return row

    def _now(self) -> int:
        return microseconds(self.clock.now())

    def _insert(
        self, record: ConversationRecord, *, parent: int | None, forked_from: int | None, root: int | None
    ) -> int:
        created, updated = microseconds(record.created), microseconds(record.updated)
        at = None if record.forked_at == record.base else record.forked_at
        places = (record.id.bytes, parent, record.base, record.head, forked_from, at, root, record.generation)
        words = (record.owner, record.title, dump(record.tags), dump(record.config), dump(record.lineage))
        status = None if record.status == "idle" else record.status
        times = (record.deleted, created, None if updated == created else updated)
        cursor = self.db.execute(self.sql["insert_conversation"], (*places, *times, status, *words))
        return cursor.lastrowid or 0

    def _insert_events(self, cid: UUID, number: int, first: int, draft: Draft) -> None:
        key = number << SEQ_BITS | first
        rows = [(key + i, *row) for i, row in enumerate(draft.rows)]
        try:
            self.db.executemany(self.sql["insert_event"], rows)
        except sqlite3.IntegrityError as error:
            raise faults.event_exists(cid) from error
        self.news.append((cid, first, draft))

    def _apply(self, number: int, changes: Mapping[str, Any]) -> None:
        if "status" in changes:
            self.all("set_status", (changes["status"], number))
        if "title" in changes:
            self.all("set_title", (changes["title"], number))
        if "tags" in changes:
            self.all("set_tags", (dump(changes["tags"]), number))

    def _cut(self, cid: UUID, source: Row, at: Cut | None) -> tuple[int, int | None]:
        """Return how many events a fork shares, and who owns the last of them."""
        if isinstance(at, UUID):
            at = self.locate(at, cid)[1] + 1
        base = source.head if at is None else at
        if not isinstance(base, int) or isinstance(base, bool) or not 0 <= base <= source.head:  # pyright: ignore
            raise faults.bad_cut(at, source.head)
        if source.base < base:
            return base, source.cid
        return base, owner_of(self.parts(cid)[0], base - 1)

    def _same_fork(
        self, there: Row, source: Row, at: Cut | None, id: UUID, lineage: dict[str, Any], cid: UUID
    ) -> ConversationRecord:
        same = not there.deleted and there.forked_from == source.cid and load(there.lineage) == lineage
        cut = there.base if there.forked_at is None else there.forked_at
        if not same or (at is not None and self._cut(cid, source, at)[0] != cut):
            raise faults.taken(id)
        return self.get(id)

    def _bury(self, cid: UUID) -> None:
        row = self._living(cid)
        self.all("bury", (row.cid,))
        self.all("forget_lease", (row.cid,))
        self.news.append((cid, 0, None))
        self._collect(row.cid)

    def _collect(self, number: int | None) -> None:
        """Remove what nothing reaches any more of a tombstone, and of the tombstones above it."""
        waiting = [number]
        while waiting:
            grave = waiting.pop()
            if grave is not None:
                waiting += self._collect_one(grave)

    def _collect_one(self, number: int) -> tuple[int | None, ...]:
        row = self.one("grave", (number,))
        if row is None or not row[4]:
            return ()
        parent, base, head, forked_from, _, furthest, named = row
        keep = base if furthest is None else furthest
        self.all("drop_events", (number << SEQ_BITS | keep, number << SEQ_BITS | head))
        if furthest is None and not named:
            self.all("drop_conversation", (number,))
            return parent, forked_from
        self.all("trim", (keep, parent if furthest is not None else None, number))
        return () if furthest is not None else (parent,)

    def _erase(self, row: Row) -> None:
        """Scrub the payloads of a conversation's own events, whoever shares them."""
        from bough.events.codec import stub

        key, end = row.cid << SEQ_BITS | row.base, row.cid << SEQ_BITS | row.head
        while rows := self.all("payloads", (key, end, 256)):
            for k, id, kind, ts, data in rows:
                scrubbed = EventRow.of(id, kind, ts, stub(kind, data))
                self.all("set_payload", (scrubbed.data, scrubbed.digest, k))
            key = rows[-1][0] + 1


def batch_of(first: int, draft: Draft | None) -> Batch:
    """Return what watchers are told: the appended events, or that the conversation is gone."""
    return END if draft is None else draft.stored(first)
