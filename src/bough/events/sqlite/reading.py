"""Reading a log over one SQLite connection: synchronous, run by a thread of the store."""

from __future__ import annotations

import builtins
import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from bough.errors import CorruptLog
from bough.events import faults
from bough.events.check import Census
from bough.events.cursor import decode_cursor, encode_cursor
from bough.events.draft import digest_of, dump, load, uuid_of
from bough.events.lineage import Range, clip, owner_of
from bough.events.names import LATEST, digits_of, only
from bough.events.record import ConversationFilter, ConversationRecord, Page, StoredEvent, moment

SEQ_BITS = 32
PAGE_ROWS = 1024
PAGE_BYTES = 4 << 20

Parts = list[Range[int]]


class Reading:
    """Questions to one connection.

    Args:
        db: In autocommit mode.
        sql: The named statements.
    """

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        self.db = db
        self.sql = sql

    def all(self, name: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """Return the rows of a named statement."""
        return self.db.execute(self.sql[name], parameters).fetchall()

    def one(self, name: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        """Return the first row of a named statement, or None."""
        return self.db.execute(self.sql[name], parameters).fetchone()

    def get(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation that is not deleted."""
        row = self.one("record", (cid.bytes,))
        if row is None or row[9]:
            raise faults.no_conversation(cid)
        return record_of(row)

    def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation, tombstone or not."""
        row = self.one("record", (cid.bytes,))
        if row is None:
            raise faults.no_conversation(cid)
        return record_of(row)

    def ancestry(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the conversations this one descends from, the oldest first."""
        self.get(cid)
        return [self.peek(UUID(bytes=id)) for (id,) in self.all("ancestry", (cid.bytes,))]

    def span(self, owner: UUID, lo: int, hi: int) -> builtins.list[StoredEvent]:
        """Return an owner's own events, each checked against its digest.

        Raises:
            CorruptLog: One is missing or damaged.
        """
        key = self.one("number_of", (owner.bytes,))[0] << SEQ_BITS
        rows = self.all("span", (key | lo, key | hi))
        whole = len(rows) == hi - lo and all(digest_of(*row[1:5]) == row[5] for row in rows)
        if not whole:
            raise missing(lo, hi)
        return StoredEvent.of_rows(row[:5] for row in rows)

    def census(self) -> Census:
        """Return the number of events and what SQLite's own check says."""
        damage = [row[0] for row in self.db.execute("pragma integrity_check(20)") if row[0] != "ok"]
        return Census(self.one("count_events")[0], tuple(damage))

    def resolve(self, name: str) -> UUID:
        """Return the conversation that a name stands for."""
        latest = name.strip() == LATEST
        rows = self.all("latest") if latest else self.all("named", {"digits": digits_of(name).upper()})
        return only(name, [UUID(bytes=row[0]) for row in rows])

    def parts(self, cid: UUID) -> tuple[Parts, int, dict[int, UUID]]:
        """Return the ranges of a log by number, its head, and the ids behind the numbers.

        Raises:
            NotFound: There is no such conversation, or it was deleted.
        """
        rows = self.all("lineage", (cid.bytes,))
        if not rows or rows[0][4]:
            raise faults.no_conversation(cid)
        ranges = [(number, lo, hi) for number, _, lo, hi, _ in reversed(rows) if lo < hi]
        return ranges, rows[0][3], {row[0]: UUID(bytes=row[1]) for row in rows}

    def lineage(self, cid: UUID) -> builtins.list[Range[UUID]]:
        """Return the ranges of a log by id."""
        parts, _, ids = self.parts(cid)
        return [(ids[number], lo, hi) for number, lo, hi in parts]

    def locate(self, event_id: UUID, cid: UUID | None) -> tuple[UUID, int]:
        """Return (owner, seq) of an event."""
        row = self.one("locate", (event_id.bytes,))
        if row is None:
            raise faults.no_event(event_id)
        number, seq, owner = row
        if cid is not None and owner_of(self.parts(cid)[0], seq) != number:
            raise faults.no_event(event_id, cid)
        return UUID(bytes=owner), seq

    def begin(self, cid: UUID, start: int, stop: int | None, reverse: bool) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the first page of a log between two places, and what is left to read in the direction of reading."""
        parts, head, _ = self.parts(cid)
        wanted = clip(parts, start, head if stop is None else stop)
        return self.page(wanted[::-1] if reverse else wanted, reverse)

    def tail(self, cid: UUID, n: int) -> builtins.list[StoredEvent]:
        """Return the last n events, oldest first."""
        parts, head, _ = self.parts(cid)
        wanted, found = clip(parts, head - n, head), list[StoredEvent]()
        while wanted:
            events, wanted = self.page(wanted, reverse=False)
            found += events
        return found

    def page(self, parts: Parts, reverse: bool) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the next page, bounded in rows and bytes, and the parts that are left.

        Raises:
            CorruptLog: An event is missing.
        """
        events, left, budget = list[StoredEvent](), list(reversed(parts)), PAGE_BYTES
        while left and len(events) < PAGE_ROWS and budget > 0:
            number, lo, hi = left.pop()
            rows, budget = self._rows((number, lo, hi), PAGE_ROWS - len(events), budget, reverse)
            if not _gapless(rows, hi - 1 if reverse else lo, reverse):
                raise missing(lo, hi)
            lo, hi = (lo, rows[-1][0]) if reverse else (rows[-1][0] + 1, hi)
            if lo < hi:
                left.append((number, lo, hi))
            events += StoredEvent.of_rows(rows)
        return events, left[::-1]

    def _rows(self, part: Range[int], most: int, budget: int, reverse: bool) -> tuple[builtins.list[Any], int]:
        number, lo, hi = part
        lo, hi = (max(lo, hi - most), hi) if reverse else (lo, min(hi, lo + most))
        key = number << SEQ_BITS
        cursor = self.db.execute(self.sql["page_reverse" if reverse else "page"], (key | lo, key | hi))
        rows, size = list[Any](), 1
        while budget > 0 and (more := cursor.fetchmany(size)):
            rows += more
            budget -= sum(len(row[4]) for row in more)
            size = min(size * 8, 512)
        return rows, budget

    def list(self, wanted: ConversationFilter, cursor: str | None, limit: int) -> Page:
        """Return a page of records. O(conversations in the store)."""
        updated, number = decode_cursor(cursor) or (None, None)
        rows = self.all(
            "records",
            {
                "include_deleted": wanted.include_deleted,
                "status": wanted.status,
                "owner": wanted.owner,
                "text": wanted.text and wanted.text.lower(),
                "agent": wanted.agent,
                "root": wanted.root and wanted.root.bytes,
                "tags": dump(wanted.tags),
                "updated": updated,
                "cid": number,
                "limit": limit + 1,
            },
        )
        more = len(rows) > limit
        last = rows[limit - 1] if more else None
        return Page(
            items=[record_of(row) for row in rows[:limit]], next_cursor=last and encode_cursor(last[11], last[18])
        )

    def heads(self, cids: Sequence[UUID]) -> dict[UUID, int]:
        """Return the heads of those conversations that exist."""
        rows = self.all("heads", (json.dumps([cid.hex for cid in cids]),))
        return {UUID(bytes=id): head for id, head in rows}

    def children(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the forks of a conversation, oldest first."""
        self.get(cid)
        return [record_of(self.one("record", row)) for row in self.all("children", (cid.bytes,))]


def record_of(row: Sequence[Any]) -> ConversationRecord:
    """Return the record in a row of `record` or `records`."""
    id, root, parent, base, head, forked_from, at, fork_event, generation, deleted, created, updated = row[:12]
    status, owner, title, tags, config, lineage = row[12:18]
    return ConversationRecord(
        id=UUID(bytes=id),
        root=UUID(bytes=root),
        parent=uuid_of(parent),
        base=base,
        head=head,
        forked_from=uuid_of(forked_from),
        forked_at=None if forked_from is None else at,
        fork_event=None if forked_from is None else uuid_of(fork_event),
        generation=generation,
        deleted=bool(deleted),
        status=status or "idle",
        owner=owner,
        title=title,
        tags=load(tags),
        config=load(config),
        lineage=load(lineage),
        created=moment(created),
        updated=moment(updated),
    )


def missing(lo: int, hi: int) -> CorruptLog:
    """Events that should be there are not."""
    return CorruptLog(
        f"events are missing between seq {lo} and {hi}",
        hint="`bough doctor` says what is readable; export that",
        details={"lo": lo, "hi": hi},
    )


def _gapless(rows: Sequence[Any], first: int, reverse: bool) -> bool:
    last = first - len(rows) + 1 if reverse else first + len(rows) - 1
    return bool(rows) and rows[0][0] == first and rows[-1][0] == last
