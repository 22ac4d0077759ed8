"""Changes to a log that is kept in tables, other than the frequent ones (create, append, fork).

Each method is one request inside a transaction. It either refuses before it writes, or writes everything it means to.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from bough.errors import InvalidInput
from bough.events.beside import Beside
from bough.events.draft import Append, Draft, EventRow, ImportPiece, clean_changes, dump
from bough.events.record import ConversationRecord, Cut, DeleteMode, Lease, microseconds
from bough.events.stores import faults
from bough.events.stores.hub import END, Batch
from bough.events.stores.relational.reading import RelationalReading
from bough.types import Clock

_IN_USE = {"running", "waiting_for_confirmation"}
_MICROSECOND = timedelta(microseconds=1)
_PAGE = 500


class AppendFollower(Protocol):
    """What follows events in the transaction that appends them."""

    def wants(self, draft: Draft) -> bool:
        """Whether any of the events is followed."""
        ...

    def follow(self, log: RelationalWriting, cid: UUID, first: int, draft: Draft) -> None:
        """Write what follows events that were appended at `first`."""
        ...


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
    intact: int


class RelationalWriting(RelationalReading):
    """Changes through one connection, inside a transaction that the caller begins and ends.

    Attributes:
        news: What the transaction will have to tell watchers once it is durable: conversation, first seq, events;
            an empty draft means that they have to look, None that the conversation is gone.
        followers: What writes rows beside certain events.
    """

    clock: Clock
    news: list[tuple[UUID, int, Draft | None]]
    followers: AppendFollower

    @abstractmethod
    def run_script(self, script: str) -> None:
        """Run the statements of a migration."""

    @abstractmethod
    def append(self, append: Append) -> int:
        """Append all events or none and return the new head."""

    @abstractmethod
    def flush(self) -> None:
        """Write what `append` has taken and not written yet.

        Raises:
            Conflict: The id of an event is stored already.
        """

    @abstractmethod
    def create(self, record: ConversationRecord, draft: Draft) -> ConversationRecord:
        """Insert a root and its first events."""

    @abstractmethod
    def fork(self, cid: UUID, at: Cut | None, wanted: ConversationRecord, draft: Draft) -> ConversationRecord:
        """Insert the row of a fork and its first own events; return the fork that exists if it is the same one."""

    @abstractmethod
    def insert(
        self, record: ConversationRecord, *, parent: int | None, forked_from: int | None, root: int | None
    ) -> int:
        """Insert a conversation's row and return its number."""

    @abstractmethod
    def insert_events(self, cid: UUID, number: int, first: int, draft: Draft) -> None:
        """Insert events from a seq on.

        Raises:
            Conflict: One of their ids is stored already.
        """

    def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take the lease and raise the generation."""
        row = self.living(cid)
        now, boot = self.lease_time()
        for holder, expires in self.run("lease", cid=row.cid, boot=boot):
            if holder != owner and expires > now:
                raise faults.make_leased(cid, holder, (expires - now) / 1e6)
        self.change("raise_generation", cid=row.cid)
        taken = Lease(conversation=cid, owner=owner, generation=row.generation + 1, expires=self.clock.now())
        return self._lease(row.cid, taken, ttl)

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease that is still held, expired or not."""
        row = self.living(lease.conversation)
        held = self.one("lease", cid=row.cid, boot="")
        if held is None or held[0] != lease.owner or row.generation != lease.generation:
            raise faults.make_fenced(lease.conversation, lease.generation, row.generation)
        return self._lease(row.cid, lease, ttl)

    def release(self, lease: Lease) -> None:
        """Give a lease back, unless someone else has it."""
        self.run("drop_lease", id=lease.conversation, generation=lease.generation, owner=lease.owner)

    def delete(self, cid: UUID, mode: DeleteMode) -> None:
        """Bury a conversation and remove what no living one reaches."""
        row = self.living(cid)
        if mode == "cascade":
            for (fork,) in self.run("forks_of", cid=row.cid):
                self._mark_deleted(UUID(bytes=fork))
        elif mode == "erase":
            self._erase(row)
        elif mode != "tombstone":
            raise InvalidInput(f"no way to delete named {mode!r}", hint="tombstone, erase or cascade")
        self._mark_deleted(cid)

    def prune(self, cid: UUID, before: int, *, dry_run: bool) -> int | None:
        """Bury a conversation that has not changed since `before` and is not in use; return its bytes, else None."""
        row = self.living(cid)
        record = self.get(cid)
        now, boot = self.lease_time()
        is_leased = any(expires > now for _, expires in self.run("lease", cid=row.cid, boot=boot))
        if is_leased or record.status in _IN_USE or microseconds(record.updated) >= before:
            return None
        size: int = self.one("size", cid=row.cid, lo=row.base, hi=row.head)[0]
        if not dry_run:
            self.delete(cid, "tombstone")
        return size

    def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert what an import found missing, a page of events in memory."""
        for piece in pieces:
            row = self.row(piece.record.id)
            number = self._restore(piece) if row is None else self._resume(row, piece)
            told, rows = len(self.news), piece.events.rows
            for start in range(0, len(rows), _PAGE):
                page = Draft(tuple(rows[start : start + _PAGE]), {})
                self.insert_events(piece.record.id, number, piece.first + start, page)
                del self.news[told:]  # it would hold all events until the commit
            self.news.append((piece.record.id, piece.first, Draft((), {})))

    @abstractmethod
    def lease_time(self) -> tuple[int, str]:
        """Return the time by which leases end, in microseconds, and what names the clock that told it."""

    def row(self, cid: UUID) -> Row | None:
        """Return a conversation's row, tombstone or not, kept from changing until the transaction ends.

        Raises:
            CorruptLog: It is not what was written; whatever changed it would give it new digests.
        """
        rows = self.query_rows(self.sql["row_of"], {"id": cid})
        if not rows:
            return None
        row = Row(*rows[0])
        if not row.intact:
            raise faults.bad_row(cid)
        return row

    def change(self, name: str, **parameters: Any) -> None:
        """Run a named statement that changes one conversation's row, found intact before, and seal it anew.

        Args:
            parameters: Among them `cid`, its number.
        """
        self.run(name, **parameters)
        self.run("seal", cid=parameters["cid"])

    def living(self, cid: UUID) -> Row:
        """Return the row of a conversation that is not deleted."""
        row = self.row(cid)
        if row is None or row.deleted:
            raise faults.no_conversation(cid)
        return row

    def migrate_beside(self, beside: Beside) -> None:
        """Bring the tables of a package up to date.

        Raises:
            StoreError: They come from a newer version of the package.
        """
        for step in beside.steps_after(self.beside_version(beside), self.dialect):
            self.run_script(step.sql)
            self.run("set_beside_version", package=beside.name, version=step.version)

    def follow(self, cid: UUID, first: int, draft: Draft) -> None:
        """Let packages write rows beside events that were appended at `first`."""
        if self.followers.wants(draft):
            self.flush()
            self.followers.follow(self, cid, first, draft)

    def apply(self, number: int, changes: Mapping[str, Any]) -> None:
        """Write a draft's projection into the record."""
        if "status" in changes:
            self.run("set_status", status=changes["status"], cid=number)
        if "title" in changes:
            self.run("set_title", title=changes["title"], cid=number)
        if "tags" in changes:
            self.run("set_tags", tags=dump(changes["tags"]), cid=number)
        self.run("seal", cid=number)

    def _lease(self, number: int, lease: Lease, ttl: float) -> Lease:
        now, boot = self.lease_time()
        span = timedelta(seconds=ttl)
        self.run("set_lease", cid=number, owner=lease.owner, expires=now + span // _MICROSECOND, boot=boot)
        return replace(lease, expires=self.clock.now() + span)

    def _restore(self, piece: ImportPiece) -> int:
        record = piece.record
        head = piece.first + len(piece.events.rows)
        named = (record.parent, record.forked_from, record.root)
        parent, source, root = (self.row(id) if id else None for id in named)
        if record.parent and not (parent and parent.base < record.base <= parent.head):
            raise faults.make_changed_meanwhile(record.id)
        fields = clean_changes(record, {}) | {"head": head, "generation": 0, "imported": head, "project": None}
        numbers = {"parent": parent and parent.cid, "forked_from": source and source.cid, "root": root and root.cid}
        return self.insert(replace(record, **fields), **numbers)

    def _resume(self, row: Row, piece: ImportPiece) -> int:
        record, head = piece.record, piece.first + len(piece.events.rows)
        if row.head != piece.first:
            raise faults.make_changed_meanwhile(record.id)
        parent = self.row(record.parent) if record.parent else None
        self.change("trim", head=head, parent=parent and parent.cid, cid=row.cid)
        self.change("set_imported", imported=head, cid=row.cid)
        if not record.deleted:
            config, lineage = (dump(record.config), dump(record.lineage)) if row.deleted else (None, None)
            updated = microseconds(record.updated)
            self.change("revive", updated=updated, config=config, lineage=lineage, cid=row.cid)
            self.apply(row.cid, {"status": record.status, "title": record.title, "tags": record.tags})
        return row.cid

    def _mark_deleted(self, cid: UUID) -> None:
        row = self.living(cid)
        self.change("bury", cid=row.cid)
        self.run("forget_lease", cid=row.cid)
        self.news.append((cid, 0, None))
        self._collect(row.cid)

    def _collect(self, number: int) -> None:
        """Remove what nothing reaches any more of a tombstone, and of the tombstones above it."""
        waiting: list[int | None] = [number]
        while waiting:
            tombstone = waiting.pop()
            if tombstone is not None:
                waiting += self._collect_one(tombstone)

    def _collect_one(self, number: int) -> tuple[int | None, ...]:
        row = self.one("tombstone_row", cid=number)
        if row is None or not row[4]:
            return ()
        parent, base, head, forked_from, _, furthest, named = row
        keep = base if furthest is None else furthest
        self.run("drop_events", cid=number, lo=keep, hi=head)
        if furthest is None and not named:
            self.run("drop_conversation", cid=number)
            return parent, forked_from
        self.change("trim", head=keep, parent=None if furthest is None else parent, cid=number)
        return (parent,) if furthest is None else ()

    def _erase(self, row: Row) -> None:
        """Scrub the payloads of a conversation's own events, whoever shares them."""
        from bough.events.codec import stub

        place = row.base
        while rows := self.run("payloads", cid=row.cid, lo=place, hi=row.head):
            for seq, id, kind, ts, data in rows:
                scrubbed = EventRow.of(id, kind, ts, stub(kind, data))
                self.run("set_payload", data=scrubbed.data, digest=scrubbed.digest, cid=row.cid, seq=seq)
            place = rows[-1][0] + 1
        self.change("set_erased", erased=self.now(), cid=row.cid)


def batch_of(first: int, draft: Draft | None) -> Batch:
    """Return what watchers are told: the appended events, that there are some, or that the conversation is gone."""
    return END if draft is None else draft.make_stored(first) or None
