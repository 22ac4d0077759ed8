"""Changes over one Postgres connection, inside a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation

from bough.events.draft import Append, Draft, ImportPiece, clean_changes, dump, load, to_uuid
from bough.events.record import ConversationRecord, Cut, DeleteMode, microseconds
from bough.events.side_tables import SideTables
from bough.events.stores import faults
from bough.events.stores.postgres.connection import Db
from bough.events.stores.postgres.group import NumberedAppend, append_parameters, columns, make_refusal
from bough.events.stores.postgres.reading import PostgresReading
from bough.events.stores.relational.writing import AppendFollower, RelationalWriting
from bough.events.usage import ConversationUsage
from bough.types import Clock


class PostgresWriting(PostgresReading, RelationalWriting):
    """Changes over one Postgres connection.

    Args:
        channel: The channel for notifications to other processes.
        followers: Write rows to side tables for certain events.
    """

    def __init__(self, db: Db, sql: Mapping[str, str], clock: Clock, channel: str, followers: AppendFollower) -> None:
        super().__init__(db, sql, clock)
        self.channel = channel
        self.followers = followers
        self.notifications: list[tuple[UUID, int, Draft | None]] = []

    def run_script(self, script: str) -> None:
        """Run the statements of a migration."""
        self.db.execute(script.encode())

    def count_rows(self) -> Mapping[str, int]:
        """Return, for each table, minus the rows that this connection deleted and has not reported yet."""
        return {name: -deleted for name, deleted in self.run("deleted_rows")}

    def migrate_side_tables(self, package: SideTables) -> None:
        """Create or upgrade the tables of a package, one process at a time."""
        self.run("be_patient")
        self.run("lock_migration")
        super().migrate_side_tables(package)

    def append(self, append: Append) -> int:
        """Append all events or none, notify other processes, and return the new head."""
        parameters = append_parameters([[NumberedAppend(0, append)]], microseconds(self.clock.now()), self.channel)
        try:
            head, generation, ok, intact = self.run("append", **parameters)[0][:4]
        except UniqueViolation as error:
            raise faults.event_exists(append.cid) from error
        if not ok:
            raise make_refusal(append, head, generation, intact)
        if append.draft.rows:
            self.notifications.append((append.cid, head, append.draft))
            if self.followers.matches(append.draft):
                self.call_followers(append.cid, head, append.draft)
        return head + len(append.draft.rows)

    def flush(self) -> None:
        """Do nothing: `append` writes immediately."""

    def create(self, record: ConversationRecord, draft: Draft) -> ConversationRecord:
        """Insert a root and its first events."""
        record = replace(
            record, **clean_changes(record, draft.changes), base=0, head=len(draft.rows), usage=draft.usage
        )
        number = self.insert(record, parent=None, forked_from=None, root=None)
        self.insert_events(record.id, number, 0, draft)
        if self.followers.matches(draft):
            self.call_followers(record.id, 0, draft)
        return replace(record, number=number)

    def fork(self, cid: UUID, at: Cut | None, planned: ConversationRecord, draft: Draft) -> ConversationRecord:
        """Insert the row of a fork and its first own events, or return the same existing fork."""
        fields = clean_changes(planned, draft.changes)
        cut = self._resolve_cut(cid, at)
        json_fields = {key: dump(fields[key]) for key in ("tags", "config", "lineage")}
        text_fields = {key: fields[key] for key in ("status", "owner", "title")}
        try:
            row = self.one(
                "fork",
                source=cid, at=cut, id=planned.id, count=len(draft.rows), created=microseconds(planned.created),
                **text_fields, **json_fields, **columns(draft), **_usage_columns(draft.usage),
            )  # fmt: skip
        except UniqueViolation as error:
            raise faults.event_exists(planned.id) from error
        if row is None:
            return self._find_existing_fork(cid, at, planned.id, fields["lineage"])
        base, root, parent, event, number = row
        self.notifications.append((planned.id, base, draft))
        if self.followers.matches(draft):
            self.call_followers(planned.id, base, draft)
        places: dict[str, Any] = {"base": base, "head": base + len(draft.rows), "forked_at": base, "forked_from": cid}
        ids: dict[str, Any] = {"root": to_uuid(root), "parent": to_uuid(parent), "fork_event": to_uuid(event)}
        return replace(planned, **fields, **places, **ids, usage=draft.usage, number=number)

    def delete(self, cid: UUID, mode: DeleteMode) -> None:
        """Delete a conversation. Deletions in one tree are serialised."""
        self.run("be_patient")
        for (tree,) in self.run("tree_of", id=cid):
            self.run("lock_tree", tree=tree)
        self.run("lock_for_deletion", id=cid)
        super().delete(cid, mode)

    def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert the missing parts of an import, with the trees locked against deletions of their tombstones."""
        self.run("be_patient")
        for root in sorted({piece.record.root for piece in pieces}):  # in one order, or two imports could deadlock
            for row in self.run("row_of", id=root):
                self.run("lock_tree", tree=row[0])
        super().restore(pieces)

    def insert(
        self, record: ConversationRecord, *, parent: int | None, forked_from: int | None, root: int | None
    ) -> int:
        """Insert a conversation's row and return its number.

        Raises:
            Conflict: A conversation has the id already.
        """
        created, updated = microseconds(record.created), microseconds(record.updated)
        row = self.one(
            "insert_conversation",
            id=record.id, parent=parent, base=record.base, head=record.head, forked_from=forked_from, root=root,
            forked_at=None if record.forked_at == record.base else record.forked_at, generation=record.generation,
            deleted=record.deleted, created=created, updated=None if updated == created else updated,
            status=record.status, owner=record.owner, title=record.title, tags=dump(record.tags),
            config=dump(record.config), lineage=dump(record.lineage), project=record.project,
            imported=record.imported, **_usage_columns(record.usage),
        )  # fmt: skip
        if row is None:
            raise faults.id_taken(record.id)
        return row[0]

    def insert_events(self, cid: UUID, number: int, first: int, draft: Draft) -> None:
        """Insert events from seq `first` on."""
        if not draft.rows:
            return
        try:
            self.run("insert_events", cid=number, first=first, **columns(draft))
        except UniqueViolation as error:
            raise faults.event_exists(cid) from error
        self.notifications.append((cid, first, draft))

    def _mark_deleted(self, cid: UUID) -> None:
        self.run("lock_for_deletion", id=cid)
        super()._mark_deleted(cid)

    def _resolve_cut(self, cid: UUID, at: Cut | None) -> int | None:
        """Return the number of shared events; None for all. The caller checks that it is not beyond the head."""
        if isinstance(at, UUID):
            return self.locate(at, cid)[1] + 1
        if at is None or (isinstance(at, int) and not isinstance(at, bool) and abs(at) < 1 << 62):  # pyright: ignore
            return at
        raise faults.invalid_cut(at, self.get(cid).head)

    def _find_existing_fork(self, cid: UUID, at: Cut | None, id: UUID, origin: dict[str, Any]) -> ConversationRecord:
        """Raise the reason why no fork was inserted, or return the same existing fork."""
        source = self.lock_live_row(cid)
        cut = self._resolve_cut(cid, at)
        if cut is not None and not 0 <= cut <= source.head:
            raise faults.invalid_cut(at, source.head)
        self.read_ranges(cid)  # raises if an ancestor's row is damaged
        existing = self.lock_live_row(id)
        is_same = existing.forked_from == source.number and load(existing.origin) == origin
        existing_cut = existing.base if existing.forked_at is None else existing.forked_at
        if not is_same or cut not in (None, existing_cut):
            raise faults.id_taken(id)
        return self.get(id)


def _usage_columns(usage: ConversationUsage) -> dict[str, int]:
    return dict(zip(("requests", "inputs", "outputs", "costs"), usage.columns, strict=True))
