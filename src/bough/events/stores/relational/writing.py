"""Changes of a log in tables, except the frequent ones (create, append, fork), which each database has its own way of.

Each method is one request inside a transaction. It either raises before it writes, or writes everything.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from bough.errors import InvalidInput
from bough.events.draft import Append, Draft, EventRow, ImportPiece, clean_changes, dump
from bough.events.record import ConversationRecord, Cut, DeleteMode, Lease, microseconds
from bough.events.side_tables import SideTables
from bough.events.stores import faults
from bough.events.stores.hub import END, Batch
from bough.events.stores.relational.reading import RelationalReading
from bough.types import Clock

_IN_USE = {"running", "waiting_for_confirmation"}
_MICROSECOND = timedelta(microseconds=1)
_PAGE = 500


class AppendFollower(Protocol):
    """Writes rows to side tables in the transaction that appends events."""

    def matches(self, draft: Draft) -> bool:
        """Whether any of the events has followers."""
        ...

    def follow(self, log: RelationalWriting, cid: UUID, first: int, draft: Draft) -> None:
        """Write the rows for events that were appended at `first`."""
        ...


class Row(NamedTuple):
    """The columns of a conversation that writes need."""

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
    """Changes over one connection, inside a transaction that the caller begins and ends.

    Attributes:
        news: What to publish to watchers after the commit: conversation, first seq, events. An empty draft makes
            watchers read the store, None means that the conversation was deleted.
        followers: Write rows to side tables for certain events.
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
        """Write the appends that `append` has only queued.

        Raises:
            Conflict: An event id is stored already.
        """

    @abstractmethod
    def create(self, record: ConversationRecord, draft: Draft) -> ConversationRecord:
        """Insert a root and its first events."""

    @abstractmethod
    def fork(self, cid: UUID, at: Cut | None, planned: ConversationRecord, draft: Draft) -> ConversationRecord:
        """Insert the row of a fork and its first own events, or return the same existing fork."""

    @abstractmethod
    def insert(
        self, record: ConversationRecord, *, parent: int | None, forked_from: int | None, root: int | None
    ) -> int:
        """Insert a conversation's row and return its number."""

    @abstractmethod
    def insert_events(self, cid: UUID, number: int, first: int, draft: Draft) -> None:
        """Insert events from seq `first`.

        Raises:
            Conflict: An event id is stored already.
        """

    def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take the lease and raise the generation."""
        row = self.require_live_row(cid)  # locks the row: of two owners one sees the other's lease
        clock_time, boot = self.lease_time()
        for holder, expires in self.run("lease", cid=row.cid, boot=boot):
            if holder != owner and expires > clock_time:
                raise faults.make_leased(cid, holder, (expires - clock_time) / 1e6)
        # Also for the owner that holds it: its earlier run, if it still writes, is fenced by the new generation.
        self.change("raise_generation", cid=row.cid)
        lease = Lease(conversation=cid, owner=owner, generation=row.generation + 1, expires=self.clock.now())
        return self._lease(row.cid, lease, ttl)

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease that no other owner has taken, expired or not."""
        row = self.require_live_row(lease.conversation)
        current = self.one("lease", cid=row.cid, boot="")
        if current is None or current[0] != lease.owner or row.generation != lease.generation:
            raise faults.make_fenced(lease.conversation, lease.generation, row.generation)
        return self._lease(row.cid, lease, ttl)

    def release(self, lease: Lease) -> None:
        """Release a lease, unless another owner has it."""
        self.run("drop_lease", id=lease.conversation, generation=lease.generation, owner=lease.owner)

    def delete(self, cid: UUID, mode: DeleteMode) -> None:
        """Delete a conversation and the events that no live conversation shares."""
        row = self.require_live_row(cid)
        if mode == "cascade":
            for (fork,) in self.run("forks_of", cid=row.cid):
                self._mark_deleted(UUID(bytes=fork))
        elif mode == "erase":
            self._erase(row)
        elif mode != "tombstone":
            raise InvalidInput(f"no way to delete named {mode!r}", hint="tombstone, erase or cascade")
        self._mark_deleted(cid)

    def prune(self, cid: UUID, before: int, *, dry_run: bool) -> int | None:
        """Delete a conversation that is not in use and unchanged since `before`; return its bytes, or None if kept."""
        row = self.require_live_row(cid)  # locked first: the checks below stay true until the deletion
        record = self.get(cid)
        clock_time, boot = self.lease_time()
        is_leased = any(expires > clock_time for _, expires in self.run("lease", cid=row.cid, boot=boot))
        if is_leased or record.status in _IN_USE or microseconds(record.updated) >= before:
            return None
        size: int = self.one("size", cid=row.cid, lo=row.base, hi=row.head)[0]
        if not dry_run:
            self.delete(cid, "tombstone")
        return size

    def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert the missing parts of an import, with one page of events in memory."""
        for piece in pieces:
            row = self.row(piece.record.id)
            number = self._restore(piece) if row is None else self._resume(row, piece)
            published, rows = len(self.news), piece.events.rows
            for start in range(0, len(rows), _PAGE):
                page = Draft(tuple(rows[start : start + _PAGE]), {})
                self.insert_events(piece.record.id, number, piece.first + start, page)
                del self.news[published:]  # else all events of the import stay in memory until the commit
            self.news.append((piece.record.id, piece.first, Draft((), {})))

    def row(self, cid: UUID) -> Row | None:
        """Return a conversation's row, tombstone or not, locked until the transaction ends.

        Raises:
            CorruptLog: The row is damaged. Changing it would give it a valid digest and hide the damage.
        """
        rows = self.query_rows(self.sql["row_of"], {"id": cid})
        if not rows:
            return None
        row = Row(*rows[0])
        if not row.intact:
            raise faults.bad_row(cid)
        return row

    def change(self, name: str, **parameters: Any) -> None:
        """Run a named statement that changes one intact row of a conversation, and update the row's digest.

        Args:
            parameters: Include `cid`, the number of the conversation.
        """
        self.run(name, **parameters)
        self.run("seal", cid=parameters["cid"])

    def require_live_row(self, cid: UUID) -> Row:
        """Return the row of a conversation that is not deleted."""
        row = self.row(cid)
        if row is None or row.deleted:
            raise faults.no_conversation(cid)
        return row

    def migrate_side_tables(self, package: SideTables) -> None:
        """Create or upgrade the tables of a package.

        Raises:
            StoreError: The tables come from a newer version of the package.
        """
        for step in package.steps_after(self.side_tables_version(package), self.dialect):
            self.run_script(step.sql)
            self.run("set_beside_version", package=package.name, version=step.version)

    def follow(self, cid: UUID, first: int, draft: Draft) -> None:
        """Let packages write rows to side tables for events that were appended at `first`, and that they match."""
        self.flush()  # followers read the log, so the queued events must be in it
        self.followers.follow(self, cid, first, draft)

    def apply(self, number: int, changes: Mapping[str, Any]) -> None:
        """Write a draft's changes to the record."""
        if "status" in changes:
            self.run("set_status", status=changes["status"], cid=number)
        if "title" in changes:
            self.run("set_title", title=changes["title"], cid=number)
        if "tags" in changes:
            self.run("set_tags", tags=dump(changes["tags"]), cid=number)
        self.run("seal", cid=number)

    def _lease(self, number: int, lease: Lease, ttl: float) -> Lease:
        clock_time, boot = self.lease_time()
        span = timedelta(seconds=ttl)
        self.run("set_lease", cid=number, owner=lease.owner, expires=clock_time + span // _MICROSECOND, boot=boot)
        return replace(lease, expires=self.clock.now() + span)

    def _restore(self, piece: ImportPiece) -> int:
        record = piece.record
        head = piece.first + len(piece.events.rows)
        relatives = (record.parent, record.forked_from, record.root)
        parent, source, root = (self.row(id) if id else None for id in relatives)
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
        row = self.require_live_row(cid)
        self.change("bury", cid=row.cid)
        self.run("forget_lease", cid=row.cid)
        self.news.append((cid, 0, None))
        self._collect(row.cid)

    def _collect(self, number: int) -> None:
        """Delete the events of a tombstone that nothing shares, and then those of its ancestors' tombstones."""
        waiting: list[int | None] = [number]
        while waiting:
            tombstone = waiting.pop()
            if tombstone is not None:
                waiting += self._collect_one(tombstone)

    def _collect_one(self, number: int) -> tuple[int | None, ...]:
        row = self.one("tombstone_row", cid=number)
        if row is None or not row[4]:
            return ()
        parent, base, head, forked_from, _, furthest, is_referenced = row
        keep = base if furthest is None else furthest
        self.run("drop_events", cid=number, lo=keep, hi=head)
        if furthest is None and not is_referenced:
            self.run("drop_conversation", cid=number)
            return parent, forked_from
        self.change("trim", head=keep, parent=None if furthest is None else parent, cid=number)
        return (parent,) if furthest is None else ()

    def _erase(self, row: Row) -> None:
        """Replace the payloads of a conversation's own events by stubs, whoever shares them."""
        from bough.events.codec import stub

        place = row.base
        while rows := self.run("payloads", cid=row.cid, lo=place, hi=row.head):
            for seq, id, kind, ts, data in rows:
                scrubbed = EventRow.of(id, kind, ts, stub(kind, data))
                self.run("set_payload", data=scrubbed.data, digest=scrubbed.digest, cid=row.cid, seq=seq)
            place = rows[-1][0] + 1
        self.change("set_erased", erased=self.now(), cid=row.cid)


def make_batch(first: int, draft: Draft | None) -> Batch:
    """Return the batch to publish: the appended events, None to read the store, or `END` for a deletion."""
    return END if draft is None else draft.make_stored(first) or None
