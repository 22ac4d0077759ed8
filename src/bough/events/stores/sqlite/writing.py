"""Changes over one SQLite connection, inside the writer's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import UUID

from bough.events.draft import Append, Draft, clean_changes, dump
from bough.events.queries import split_statements
from bough.events.record import ConversationRecord, Cut, find_owner, microseconds
from bough.events.stores import faults
from bough.events.stores.relational.writing import AppendFollower, ConversationRow, RelationalWriting
from bough.events.stores.sqlite.reading import SEQ_BITS, SqliteReading
from bough.events.usage import NO_USAGE, ConversationUsage, add_counts
from bough.types import Clock


@dataclass(slots=True)
class _LogEnd:
    """The position after the last event of a log, including queued appends.

    Attributes:
        has_appends: Whether appends to the log are queued.
        usage: What the queued events have used.
    """

    number: int
    head: int
    generation: int
    has_appends: bool = False
    usage: ConversationUsage = NO_USAGE


class _Source(NamedTuple):
    """The columns of the source that a fork needs."""

    number: int
    base: int
    head: int
    root: int
    root_id: UUID


class SqliteWriting(SqliteReading, RelationalWriting):
    """Changes over one SQLite connection. Deleted and overwritten data is zeroed in the file.

    Attributes:
        scrubbed: Whether payloads were erased, so that the write-ahead log must be truncated after the transaction.
    """

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str], clock: Clock, followers: AppendFollower) -> None:
        super().__init__(db, sql, clock)
        self.followers = followers
        self.notifications: list[tuple[UUID, int, Draft | None]] = []
        self.scrubbed = False
        self._log_ends: dict[UUID, _LogEnd] = {}
        self._queued_rows: list[Any] = []
        db.execute("pragma secure_delete = on")

    def run_script(self, script: str) -> None:
        """Run the statements of a migration."""
        for statement in split_statements(script):
            self.db.execute(statement)

    def create(self, record: ConversationRecord, draft: Draft) -> ConversationRecord:
        """Insert a root and its first events."""
        if self.lock_row(record.id):
            raise faults.id_taken(record.id)
        record = replace(
            record, **clean_changes(record, draft.changes), base=0, head=len(draft.rows), usage=draft.usage
        )
        number = self.insert(record, parent=None, forked_from=None, root=None)
        self.insert_events(record.id, number, 0, draft)
        if self.followers.matches(draft):
            self.call_followers(record.id, 0, draft)
        return replace(record, number=number)

    def append(self, append: Append) -> int:
        """Queue an append and return the new head. `flush` writes the events and the head.

        Many appends then cost two statements in all, and a refused append has written nothing.
        """
        cid, draft, generation, expected_head = append
        log_end = self._log_ends.get(cid) or self._read_end(cid)
        if generation is not None and generation != log_end.generation:
            raise faults.generation_conflict(cid, generation, log_end.generation)
        first = log_end.head  # including queued appends of this transaction, which the row does not show yet
        if expected_head is not None and expected_head != first:
            raise faults.head_conflict(cid, expected_head, first)
        # After all checks: a refused append must have written nothing, or its whole transaction is rolled back.
        if draft.changes:
            self.apply_changes(log_end.number, draft.changes)
        if draft.rows:
            self._queue_events(cid, log_end, draft)
            if self.followers.matches(draft):
                self.call_followers(cid, first, draft)
        return first + len(draft.rows)

    def flush(self) -> None:
        """Write the queued appends. Must run before anything else reads the log, and before the commit.

        Raises:
            Conflict: An event id is stored already. None of the queued appends may be committed.
        """
        if not self._log_ends:
            return
        written_at = self.now()
        # Only conversations with appended events: updating another one would change its position in lists.
        heads = [
            (log_end.head, written_at, log_end.number, *log_end.usage.columns)
            for log_end in self._log_ends.values()
            if log_end.has_appends
        ]
        cid, rows = next(iter(self._log_ends)), self._queued_rows
        # Before writing: if the queue was not empty after an error, the appends would be written twice.
        self.drop_queued()
        try:
            self.db.executemany(self.sql["insert_event"], rows)
        except sqlite3.IntegrityError as error:
            raise faults.event_exists(cid) from error
        self.db.executemany(self.sql["advance"], heads)

    def drop_queued(self) -> None:
        """Drop the queued appends."""
        self._log_ends, self._queued_rows = {}, []

    def _read_end(self, cid: UUID) -> _LogEnd:
        row = self.db.execute(self.sql["place"], {"id": cid.bytes}).fetchone()
        if row is None:
            raise faults.no_conversation(cid)
        number, head, generation, is_intact = row
        if not is_intact:
            raise faults.row_damage(cid)
        log_end = self._log_ends[cid] = _LogEnd(number, head, generation)
        return log_end

    def _queue_events(self, cid: UUID, log_end: _LogEnd, draft: Draft) -> None:
        first = log_end.head
        key = log_end.number << SEQ_BITS | first
        self._queued_rows += [(key + i, *row) for i, row in enumerate(draft.rows)]
        self.notifications.append((cid, first, draft))
        log_end.head = first + len(draft.rows)
        log_end.has_appends = True
        log_end.usage += draft.usage

    def fork(self, cid: UUID, at: Cut | None, planned: ConversationRecord, draft: Draft) -> ConversationRecord:
        """Insert the row of a fork and its first own events, or return the same existing fork."""
        source, fields = self._read_source(cid), clean_changes(planned, draft.changes)
        base, owner, parent = self._resolve_cut(cid, source, at)
        positions = {"base": base, "head": base + len(draft.rows), "forked_at": base, "root": source.root_id}
        ids = {"parent": parent, "forked_from": cid, "fork_event": self._read_event_id(base, owner)}
        record = replace(planned, **fields, **positions, **ids, usage=draft.usage)
        try:
            number = self.insert(record, parent=owner, forked_from=source.number, root=source.root)
        except sqlite3.IntegrityError:
            if self.lock_row(record.id) is None:
                raise  # not the id: another constraint of the table failed
            return self._find_existing_fork(record, at)
        self.insert_events(record.id, number, base, draft)
        if self.followers.matches(draft):
            self.call_followers(record.id, base, draft)
        return replace(record, number=number)

    def insert(
        self, record: ConversationRecord, *, parent: int | None, forked_from: int | None, root: int | None
    ) -> int:
        """Insert a conversation's row and return its number."""
        created, updated = microseconds(record.created), microseconds(record.updated)
        fork_seq = None if record.forked_at == record.base else record.forked_at
        source = None if forked_from == parent else forked_from
        columns = (record.id.bytes, parent, record.base, record.head, source, fork_seq, root, record.generation)
        times = (record.deleted, created, None if updated == created else updated)
        status = None if record.status == "idle" else record.status
        texts = (record.owner, record.title, dump(record.tags), dump(record.config), dump(record.lineage))
        texts += (record.project, record.imported)
        usage = record.usage
        counts = None if usage is NO_USAGE else add_counts(None, *usage.columns[:3])
        cursor = self.db.execute(
            self.sql["insert_conversation"], (*columns, *times, status, *texts, counts, usage.cost_nanos)
        )
        return cursor.lastrowid or 0

    def insert_events(self, cid: UUID, number: int, first: int, draft: Draft) -> None:
        """Insert events from seq `first`."""
        key = number << SEQ_BITS | first
        rows: list[Any] = [(key + i, *row) for i, row in enumerate(draft.rows)]
        try:
            self.db.executemany(self.sql["insert_event"], rows)
        except sqlite3.IntegrityError as error:
            raise faults.event_exists(cid) from error
        self.notifications.append((cid, first, draft))

    def count_rows(self) -> Mapping[str, int]:
        """Return the number of rows of the tables `blob`, `snapshot` and `task`, those that exist. O(rows)."""
        return {name: self.db.execute(count).fetchone()[0] for name, count in self.run("count_statements")}

    def _erase(self, row: ConversationRow) -> tuple[int, int]:
        self.scrubbed = True
        return super()._erase(row)

    def _read_source(self, cid: UUID) -> _Source:
        row = self.db.execute(self.sql["source"], {"id": cid.bytes}).fetchone()
        if row is None:
            raise faults.no_conversation(cid)
        number, base, head, root, root_id, is_intact = row
        if not is_intact:
            raise faults.row_damage(cid)
        return _Source(number, base, head, root, UUID(bytes=root_id))

    def _resolve_cut(self, cid: UUID, source: _Source, at: Cut | None) -> tuple[int, int | None, UUID | None]:
        """Return how many events a fork shares, and the number and id of the conversation that owns the last one."""
        if isinstance(at, UUID):
            at = self.locate(at, cid)[1] + 1
        base = source.head if at is None else at
        if not isinstance(base, int) or isinstance(base, bool) or not 0 <= base <= source.head:  # pyright: ignore
            raise faults.invalid_cut(at, source.head)
        if source.base < base:
            return base, source.number, cid
        ranges, _, ids = self.read_ranges(cid)
        owner = find_owner(ranges, base - 1)
        return base, owner, None if owner is None else ids[owner]

    def _read_event_id(self, seq: int, owner: int | None) -> UUID | None:
        """Return the id of the event at `seq - 1`.

        Args:
            owner: Number of the conversation that owns the event; None if there is no event.
        """
        if owner is None:
            return None
        row = self.db.execute(self.sql["event_id"], (owner << SEQ_BITS | seq - 1,)).fetchone()
        return row and UUID(bytes=row[0])

    def _find_existing_fork(self, planned: ConversationRecord, at: Cut | None) -> ConversationRecord:
        """Return the existing fork with the id, or raise `Conflict` if it differs from the planned one."""
        existing = self.peek(planned.id)
        has_same_source = not existing.deleted and existing.forked_from == planned.forked_from
        has_same_cut = at is None or existing.forked_at == planned.forked_at
        if not has_same_source or not has_same_cut or existing.lineage != planned.lineage:
            raise faults.id_taken(planned.id)
        return existing
