"""Changes of a log in tables, except the frequent ones (create, append, fork), which each database has its own way of.

Each method is one request inside a transaction. It either raises before it writes, or writes everything.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, cast
from uuid import UUID

from bough.errors import InvalidInput
from bough.events.draft import Append, Draft, EventRow, ImportPiece, clean_changes, dump
from bough.events.erasure.receipt import ERASURES, NOT_COMPACTED, NOT_COVERED, ErasureReceipt, Tenant
from bough.events.record import ConversationRecord, Cut, DeleteMode, Lease, microseconds, moment
from bough.events.side_tables import SideTables
from bough.events.stores import faults
from bough.events.stores.hub import END, Batch
from bough.events.stores.relational.reading import RelationalReading
from bough.events.usage import NO_USAGE, ConversationUsage, sum_payloads
from bough.types import Clock

_IN_USE = {"running", "waiting_for_confirmation"}
_MICROSECOND = timedelta(microseconds=1)
_PAGE = 500


class AppendFollower(Protocol):
    """Writes rows to side tables in the transaction that appends events."""

    def matches(self, draft: Draft) -> bool:
        """Whether `write_rows` has anything to write for these events."""
        ...

    def write_rows(self, log: RelationalWriting, cid: UUID, first: int, draft: Draft) -> None:
        """Write the rows for events that were appended from seq `first` on."""
        ...


class ConversationRow(NamedTuple):
    """The columns of a conversation that changes need. Conversations are referred to by number.

    Attributes:
        origin: The JSON text of the column `lineage`: where a fork came from.
        is_intact: Whether the row matches its checksum.
    """

    number: int
    parent: int | None
    base: int
    head: int
    forked_from: int | None
    forked_at: int | None
    root: int | None
    generation: int
    deleted: int
    origin: str | None
    is_intact: int


class RelationalWriting(RelationalReading):
    """Changes over one connection, inside a transaction that the caller begins and ends.

    Attributes:
        notifications: What to publish to watchers after the commit: conversation, first seq, events. An empty draft
            makes watchers read the store; None means that the conversation was deleted.
        followers: Write rows to side tables for certain events.
    """

    clock: Clock
    notifications: list[tuple[UUID, int, Draft | None]]
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

    @abstractmethod
    def count_rows(self) -> Mapping[str, int]:
        """Return a number for each table, which every deleted row lowers by 1. Includes side tables."""

    def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Grant the lease to an owner and raise the generation."""
        row = self.lock_live_row(cid)  # locks the row: of two concurrent owners, the second sees the lease of the first
        clock_time, boot = self.lease_time()
        for holder, expires in self.run("lease", cid=row.number, boot=boot):
            if holder != owner and expires > clock_time:
                raise faults.lease_conflict(cid, holder, (expires - clock_time) / 1e6)
        # Also if the same owner already has the lease: an earlier run of it may still write, with the old generation.
        self.update_conversation("raise_generation", cid=row.number)
        lease = Lease(conversation=cid, owner=owner, generation=row.generation + 1, expires=self.clock.now())
        return self._set_lease(row.number, lease, ttl)

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease, even an expired one, unless another owner has taken it."""
        row = self.lock_live_row(lease.conversation)
        current = self.one("lease", cid=row.number, boot="")
        if current is None or current[0] != lease.owner or row.generation != lease.generation:
            raise faults.generation_conflict(lease.conversation, lease.generation, row.generation)
        return self._set_lease(row.number, lease, ttl)

    def release(self, lease: Lease) -> None:
        """Release a lease, unless another owner has it."""
        self.run("drop_lease", id=lease.conversation, generation=lease.generation, owner=lease.owner)

    def delete(self, cid: UUID, mode: DeleteMode) -> None:
        """Delete a conversation, and those of its events that no live conversation shares."""
        row = self.lock_live_row(cid)
        if mode == "cascade":
            for (fork,) in self.run("forks_of", cid=row.number):
                self._mark_deleted(UUID(bytes=fork))
        elif mode == "erase":
            self._erase(row)
        elif mode != "tombstone":
            raise InvalidInput(f"unknown delete mode {mode!r}", hint="use tombstone, erase or cascade")
        self._mark_deleted(cid)

    def erase(
        self, cid: UUID, others: Collection[UUID], statements: Mapping[str, str], tenant: Tenant | None
    ) -> ErasureReceipt:
        """Erase a conversation or the remains of a deleted one, and return the receipt, before any compaction.

        Args:
            others: See `EventStore.erase`.
            statements: Those of `ERASURES`.
            tenant: See `EventStore.erase`.
        """
        row = self.lock_row(cid)
        stored = self.query(statements[f"{ERASURES.name}.read"], {"id": cid})
        earlier = ErasureReceipt.load(stored[0][0]) if stored else None
        owner = self._find_owner(cid, row, earlier)
        if (row is None and earlier is None) or (tenant is not None and tenant != owner):
            raise faults.no_remains(cid)
        if row is None:
            return cast("ErasureReceipt", earlier)
        rows = {cid: row} | self._lock_others(cid, others, tenant)
        readers = {UUID(bytes=id) for member in rows.values() for (id,) in self.run("readers", cid=member.number)}
        # Before the stubs: their update fires the triggers that delete rows of side tables.
        counts_before = self.count_rows()
        erased = [self._erase(member) for member in rows.values()]
        events, size = (sum(numbers) for numbers in zip(*erased, strict=True))
        # A tombstone may have content again: an import can revive it after an erasure.
        if row.deleted and events == 0 and earlier is not None:
            return earlier
        for id, member in rows.items():
            if not member.deleted:
                self._mark_deleted(id)
        counts_after, all_remains = self.count_rows(), [self.lock_row(id) for id in rows]
        blobs, kept_states, tasks = (
            counts_before.get(name, 0) - counts_after.get(name, 0) for name in ("blob", "snapshot", "task")
        )
        receipt = ErasureReceipt(
            id=cid,
            erased_at=moment(self.now()),
            events=events,
            bytes=size,
            blobs=blobs,
            kept_states=kept_states,
            tasks=tasks,
            shared_events=sum(remains.head - remains.base for remains in all_remains if remains is not None),
            forks=tuple(sorted(readers - rows.keys())),
            conversations=tuple(id for id in rows if id != cid),
            not_covered=(f"{NOT_COMPACTED}: it was not rewritten; erase it again to repeat that", *NOT_COVERED),
            owner=None if owner is None else owner.owner,
        )
        for id in rows:
            self.query(statements[f"{ERASURES.name}.put"], {"id": id, "receipt": receipt.dump()})
        return receipt

    def _lock_others(self, cid: UUID, others: Collection[UUID], tenant: Tenant | None) -> dict[UUID, ConversationRow]:
        """Return the rows of conversations that are erased with `cid`, without deleted ones."""
        rows: dict[UUID, ConversationRow] = {}
        for id in others:
            row = None if id == cid else self.lock_row(id)
            if row is None or row.deleted:
                continue
            if tenant is not None and self.get(id).owner != tenant.owner:
                raise faults.no_remains(id)
            rows[id] = row
        return rows

    def _find_owner(self, cid: UUID, row: ConversationRow | None, earlier: ErasureReceipt | None) -> Tenant | None:
        """Return to whom a conversation or its remains belong; None if that is no longer known.

        A row in use decides: after an erasure, another tenant may use the id. A tombstone has lost its owner, but its
        living forks have the same one.
        """
        if row is not None:
            names = [cid] if not row.deleted else [UUID(bytes=id) for (id,) in self.run("forks_of", cid=row.number)]
            if names:
                return Tenant(self.get(names[0]).owner)
        return None if earlier is None else Tenant(earlier.owner)

    def save_receipt(self, receipt: ErasureReceipt, statements: Mapping[str, str]) -> None:
        """Replace a receipt under the ids of all its conversations, unless one of them has a newer receipt."""
        for id in (receipt.id, *receipt.conversations):
            [(text,)] = self.query(statements[f"{ERASURES.name}.read"], {"id": id})
            if ErasureReceipt.load(text).erased_at == receipt.erased_at:
                self.query(statements[f"{ERASURES.name}.put"], {"id": id, "receipt": receipt.dump()})

    def prune(self, cid: UUID, before: int, *, dry_run: bool) -> int | None:
        """Delete a conversation that is not in use and has not changed since `before`.

        Returns:
            The payload bytes of its own events; None if the conversation is kept.
        """
        row = self.lock_live_row(cid)  # locks the row, so that the checks below hold until the deletion
        record = self.get(cid)
        clock_time, boot = self.lease_time()
        is_leased = any(expires > clock_time for _, expires in self.run("lease", cid=row.number, boot=boot))
        if is_leased or record.status in _IN_USE or microseconds(record.updated) >= before:
            return None
        size: int = self.one("size", cid=row.number, lo=row.base, hi=row.head)[0]
        if not dry_run:
            self.delete(cid, "tombstone")
        return size

    def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert the missing parts of an import, with one page of events in memory."""
        for piece in pieces:
            row = self.lock_row(piece.record.id)
            number = self._insert_imported(piece) if row is None else self._extend_imported(row, piece)
            notification_count, rows = len(self.notifications), piece.events.rows
            usage = self._recount(row) if row is not None and row.deleted else NO_USAGE
            for start in range(0, len(rows), _PAGE):
                page = Draft(tuple(rows[start : start + _PAGE]), {})
                usage += sum_payloads((event.kind, event.data) for event in page.rows)
                self.insert_events(piece.record.id, number, piece.first + start, page)
                # Otherwise all imported events would stay in memory until the commit.
                del self.notifications[notification_count:]
            if usage != NO_USAGE and not self.peek(piece.record.id).deleted:
                names = ("requests", "inputs", "outputs", "costs")
                amounts = dict(zip(names, usage.columns, strict=True))
                self.update_conversation("add_usage", cid=number, **amounts)
            self.notifications.append((piece.record.id, piece.first, Draft((), {})))

    def lock_row(self, cid: UUID) -> ConversationRow | None:
        """Return a conversation's row, tombstone or not, locked until the transaction ends.

        Raises:
            CorruptLog: The row is damaged. Changing the row would give it a valid checksum and hide the damage.
        """
        rows = self.query_rows(self.sql["row_of"], {"id": cid})
        if not rows:
            return None
        row = ConversationRow(*rows[0])
        if not row.is_intact:
            raise faults.row_damage(cid)
        return row

    def update_conversation(self, name: str, **parameters: Any) -> None:
        """Run a named statement that changes the row of a conversation, and update the row's checksum.

        Args:
            parameters: Include `cid`, the number of the conversation.
        """
        self.run(name, **parameters)
        self.run("seal", cid=parameters["cid"])

    def lock_live_row(self, cid: UUID) -> ConversationRow:
        """Return the row of a conversation that is not deleted."""
        row = self.lock_row(cid)
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

    def call_followers(self, cid: UUID, first: int, draft: Draft) -> None:
        """Write the side-table rows for events that were appended from seq `first` on."""
        self.flush()  # followers read the log, which must contain the queued events
        self.followers.write_rows(self, cid, first, draft)

    def apply_changes(self, number: int, changes: Mapping[str, Any]) -> None:
        """Write the changes of a draft to the columns of a conversation."""
        if "status" in changes:
            self.run("set_status", status=changes["status"], cid=number)
        if "title" in changes:
            self.run("set_title", title=changes["title"], cid=number)
        if "tags" in changes:
            self.run("set_tags", tags=dump(changes["tags"]), cid=number)
        self.run("seal", cid=number)

    def _set_lease(self, number: int, lease: Lease, ttl: float) -> Lease:
        clock_time, boot = self.lease_time()
        span = timedelta(seconds=ttl)
        self.run("set_lease", cid=number, owner=lease.owner, expires=clock_time + span // _MICROSECOND, boot=boot)
        return replace(lease, expires=self.clock.now() + span)

    def _insert_imported(self, piece: ImportPiece) -> int:
        """Insert the row of an imported conversation that the store does not have, and return its number."""
        record = piece.record
        head = piece.first + len(piece.events.rows)
        related_ids = (record.parent, record.forked_from, record.root)
        parent, source, root = (self.lock_row(id) if id else None for id in related_ids)
        if record.parent and not (parent and parent.base < record.base <= parent.head):
            raise faults.import_conflict(record.id)
        fields = clean_changes(record, {}) | {"head": head, "generation": 0, "imported": head, "project": None}
        fields["usage"] = NO_USAGE  # `restore` adds that of the events
        numbers = {
            "parent": parent and parent.number,
            "forked_from": source and source.number,
            "root": root and root.number,
        }
        return self.insert(replace(record, **fields), **numbers)

    def _extend_imported(self, row: ConversationRow, piece: ImportPiece) -> int:
        """Update the row of a stored conversation to which an import appends events, and return its number."""
        record, head = piece.record, piece.first + len(piece.events.rows)
        if row.head != piece.first:
            raise faults.import_conflict(record.id)
        parent = self.lock_row(record.parent) if record.parent else None
        self.update_conversation("trim", head=head, parent=parent and parent.number, cid=row.number)
        self.update_conversation("set_imported", imported=head, cid=row.number)
        if not record.deleted:
            config, origin = (dump(record.config), dump(record.lineage)) if row.deleted else (None, None)
            updated = microseconds(record.updated)
            self.update_conversation("revive", updated=updated, config=config, lineage=origin, cid=row.number)
            self.apply_changes(row.number, {"status": record.status, "title": record.title, "tags": record.tags})
        return row.number

    def _recount(self, row: ConversationRow) -> ConversationUsage:
        """Return the usage of the events that remain of a tombstone."""
        usage, next_seq = NO_USAGE, row.base
        while rows := self.run("payloads", cid=row.number, lo=next_seq, hi=row.head):
            usage += sum_payloads((kind, data) for _, _, kind, _, data in rows)
            next_seq = rows[-1][0] + 1
        return usage

    def _mark_deleted(self, cid: UUID) -> None:
        """Turn a conversation into a tombstone, and delete the events that nothing shares."""
        row = self.lock_live_row(cid)
        self.update_conversation("bury", cid=row.number)
        self.run("forget_lease", cid=row.number)
        self.notifications.append((cid, 0, None))
        self._collect_garbage(row.number)

    def _collect_garbage(self, number: int) -> None:
        """Delete the events of a tombstone that nothing shares, then those of the tombstones that it referred to."""
        pending: list[int | None] = [number]
        while pending:
            tombstone = pending.pop()
            if tombstone is not None:
                pending += self._collect_tombstone(tombstone)

    def _collect_tombstone(self, number: int) -> tuple[int | None, ...]:
        """Trim or drop one tombstone, and return the conversations that it no longer refers to."""
        row = self.one("tombstone_row", cid=number)
        if row is None:
            return ()
        parent, base, head, forked_from, is_deleted, furthest_cut, is_referenced = row
        if not is_deleted:
            return ()
        kept_until = base if furthest_cut is None else furthest_cut
        self.run("drop_events", cid=number, lo=kept_until, hi=head)
        if furthest_cut is None and not is_referenced:
            self.run("drop_conversation", cid=number)
            return parent, forked_from
        self.update_conversation("trim", head=kept_until, parent=None if furthest_cut is None else parent, cid=number)
        return (parent,) if furthest_cut is None else ()

    def _erase(self, row: ConversationRow) -> tuple[int, int]:
        """Replace the payloads of a conversation's own events by stubs, in every fork that shares them.

        Returns:
            The number of events that had content, and the bytes of their payloads.
        """
        from bough.events.codec import stub

        next_seq, events, size = row.base, 0, 0
        while rows := self.run("payloads", cid=row.number, lo=next_seq, hi=row.head):
            for seq, id, kind, ts, data in rows:
                scrubbed = EventRow.of(id, kind, ts, stub(kind, data))
                if scrubbed.data == data:
                    continue
                events, size = events + 1, size + len(data)
                self.run("set_payload", data=scrubbed.data, digest=scrubbed.checksum, cid=row.number, seq=seq)
            next_seq = rows[-1][0] + 1
        self.update_conversation("set_erased", erased=self.now(), cid=row.number)
        return events, size


def make_batch(first: int, draft: Draft | None) -> Batch:
    """Return the batch to publish for a notification.

    Args:
        first: Seq of the first event.
        draft: The appended events; an empty draft makes watchers read the store, None means a deletion.
    """
    if draft is None:
        return END
    return draft.make_stored(first) or None
