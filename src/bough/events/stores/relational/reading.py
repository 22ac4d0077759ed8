"""Questions to a log that is kept in tables: synchronous, run by a thread of the store."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from math import inf
from typing import Any, ClassVar, NamedTuple
from uuid import UUID
from zlib import crc32

from bough.errors import CorruptLog, InvalidInput
from bough.events.beside import Beside
from bough.events.draft import dump, load, to_uuid
from bough.events.integrity import Census, report_damaged_row
from bough.events.lineage import Range, clip, find_owner
from bough.events.record import (
    ConversationFilter,
    ConversationRecord,
    Order,
    Page,
    StoredEvent,
    event_of,
    microseconds,
    moment,
)
from bough.events.stores import faults
from bough.events.stores.cursor import decode_cursor, encode_cursor
from bough.events.stores.names import LATEST, only, parse_digits

PAGE_ROWS = 4096
PAGE_BYTES = 4 << 20
FIRST_ROWS = 16
"""How many events are read first backwards; whoever reads backwards mostly looks for something near the end."""

Parts = list[Range[int]]

_CREATED, _UPDATED, _NUMBER, _INTACT = 10, 11, 18, 21
"""Places in a row that has the columns of a whole record."""


class RelationalReading(ABC):
    """Questions to one connection. Conversations have numbers inside, ids outside.

    Attributes:
        dialect: The folder with its statements.
        db: The driver's connection.
        sql: The named statements.
    """

    dialect: ClassVar[str]
    coalesce: ClassVar[str] = "coalesce"
    db: Any
    sql: Mapping[str, str]

    @abstractmethod
    def query(self, statement: str, parameters: Mapping[str, Any]) -> builtins.list[Any]:
        """Return the rows of a statement. Ids go in as UUID and come out as 16 bytes."""

    def query_rows(self, statement: str, parameters: Mapping[str, Any]) -> builtins.list[Any]:
        """Return the rows of a statement that reads conversations, damaged ones too."""
        return self.query(statement, parameters)

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Any]:
        """Return a context in which every statement sees the same state of the database, and none writes."""

    @abstractmethod
    def now(self) -> int:
        """Return the time by the store's clock, in microseconds since 1970."""

    @abstractmethod
    def is_not_unique(self, error: BaseException) -> bool:
        """Whether an error of the database means that a row which must be unique already exists."""

    def run(self, name: str, **parameters: Any) -> builtins.list[Any]:
        """Return the rows of a named statement. Ids go in as UUID and come out as 16 bytes."""
        return self.query(self.sql[name], parameters)

    @abstractmethod
    def page(self, parts: Parts, reverse: bool, rows: int = PAGE_ROWS) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the next page, bounded in rows and bytes, and the parts that are left.

        Args:
            parts: Ranges in the direction of reading.
            reverse: From the newest to the oldest.
            rows: At most so many.

        Raises:
            CorruptLog: An event is missing.
        """

    @abstractmethod
    def census(self) -> Census:
        """Return how many events there are, and what the database's own check finds."""

    def one(self, name: str, **parameters: Any) -> Any:
        """Return the first row of a named statement, or None."""
        rows = self.run(name, **parameters)
        return rows[0] if rows else None

    def get(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation that is not deleted."""
        record = self.peek(cid)
        if record.deleted:
            raise faults.no_conversation(cid)
        return record

    def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation, tombstone or not.

        Raises:
            CorruptLog: Its row is not what was written.
        """
        rows = self.query_rows(self.sql["record"], {"id": cid})
        if not rows:
            raise faults.no_conversation(cid)
        return record_of(rows[0])

    def count_imported(self, cid: UUID) -> int:
        """Return before which seq a log has events that came by import; 0 where none did."""
        count = self.one("count_imported", id=cid)[0]
        if count is None:
            raise faults.no_conversation(cid)
        return count

    def ancestry(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the conversations this one descends from, the oldest first."""
        self.get(cid)
        return [self.peek(UUID(bytes=id)) for (id,) in self.run("ancestry", id=cid)]

    def resolve(self, name: str) -> UUID:
        """Return the conversation that a name stands for."""
        latest = name.strip() == LATEST
        rows = self.run("latest") if latest else self.run("named", digits=parse_digits(name))
        return only(name, [UUID(bytes=row[0]) for row in rows])

    def generations(self, cid: UUID) -> builtins.list[Any]:
        """Return (number, id, lo, hi, deleted, intact) of a conversation and of what it shares with, newest first."""
        return self.run("lineage", id=cid)

    def number(self, cid: UUID) -> int:
        """Return the number of a conversation, tombstone or not."""
        row = self.one("number", id=cid)
        if row is None:
            raise faults.no_conversation(cid)
        return row[0]

    def beside_version(self, beside: Beside) -> int:
        """Return the version of a package's tables, 0 where there are none."""
        row = self.one("beside_version", package=beside.name)
        return 0 if row is None else row[0]

    def parts(self, cid: UUID) -> tuple[Parts, int, dict[int, UUID]]:
        """Return the ranges of a log by number, its head, and the ids behind the numbers.

        Raises:
            NotFound: There is no such conversation, or it was deleted.
            CorruptLog: A row is not what was written: where it says that events are cannot be trusted.
        """
        rows = self.generations(cid)
        if not rows or rows[0][4]:
            raise faults.no_conversation(cid)
        for row in rows:
            if not row[5]:
                raise faults.bad_row(_read_id(row[1]))
        if rows[-1][2] > 0:
            raise missing(0, rows[-1][2])  # the row that owns the first events is gone
        ranges = [(row[0], row[2], row[3]) for row in reversed(rows) if row[2] < row[3]]
        return ranges, rows[0][3], {row[0]: UUID(bytes=row[1]) for row in rows}

    def lineage(self, cid: UUID) -> builtins.list[Range[UUID]]:
        """Return the ranges of a log by id."""
        parts, _, ids = self.parts(cid)
        return [(ids[number], lo, hi) for number, lo, hi in parts]

    def locate(self, event_id: UUID, cid: UUID | None) -> tuple[UUID, int]:
        """Return (owner, seq) of an event."""
        row = self.one("locate", id=event_id)
        if row is None:
            raise faults.no_event(event_id)
        number, seq, owner = row
        if cid is not None and find_owner(self.parts(cid)[0], seq) != number:
            raise faults.no_event(event_id, cid)
        return UUID(bytes=owner), seq

    def between(self, cid: UUID, start: int, stop: int | None, reverse: bool = False) -> Parts:
        """Return the ranges of a log between two places, in the direction of reading."""
        parts, head, _ = self.parts(cid)
        wanted = clip(parts, start, head if stop is None else stop)
        return wanted[::-1] if reverse else wanted

    def begin(
        self, cid: UUID, start: int, stop: int | None, reverse: bool, rows: int = PAGE_ROWS
    ) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the first page of a log between two places, and what is left to read in the direction of reading."""
        return self.page(self.between(cid, start, stop, reverse), reverse, rows)

    def tail(self, cid: UUID, n: int) -> builtins.list[StoredEvent]:
        """Return the last n events, oldest first."""
        parts, head, _ = self.parts(cid)
        wanted, found = clip(parts, head - n, head), list[StoredEvent]()
        while wanted:
            events, wanted = self.page(wanted, reverse=False)
            found += events
        return found

    def span(self, owner: UUID, lo: int, hi: int) -> builtins.list[StoredEvent]:
        """Return an owner's own events, each checked against its digest.

        Raises:
            CorruptLog: One is missing or damaged.
        """
        events = events_of(self.run("span", id=owner, lo=lo, hi=hi), lo)
        if len(events) != hi - lo:
            raise missing(lo + len(events), hi)
        return events

    def heads(self, cids: Sequence[UUID]) -> dict[UUID, int]:
        """Return the heads of those conversations that exist."""
        rows = self.run("heads", ids=",".join(cid.hex for cid in cids))
        return {UUID(bytes=id): head for id, head in rows}

    def children(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the forks of a conversation, oldest first."""
        self.get(cid)
        return [self.peek(UUID(bytes=id)) for (id,) in self.run("children", id=cid)]

    def list(self, wanted: ConversationFilter, cursor: str | None, limit: int, order: Order) -> Page:
        """Return a page of records. O(conversations of the owner asked for, or of the store)."""
        time, number = decode_cursor(cursor) or (None, None)
        place = {"place_time": time, "place_cid": number, "limit": limit + 1}
        rows = self.query_rows(self._records(wanted, order), self._parameters(wanted) | place)
        items = [record_of(row) for row in rows[:limit] if row[_INTACT]]
        damaged = [report_damaged_row(_read_id(row[0])) for row in rows[:limit] if not row[_INTACT]]
        if len(rows) <= limit or limit <= 0:
            return Page(items=items, damaged=damaged)
        last = rows[limit - 1]
        time = last[_CREATED] if order.startswith("created") else last[_UPDATED]
        return Page(items=items, next_cursor=encode_cursor(time, last[_NUMBER]), damaged=damaged)

    def count(self, wanted: ConversationFilter) -> int:
        """Return how many records match."""
        statement = self.sql["count"].format(matching=self._matching(wanted))
        return self.query(statement, self._parameters(wanted))[0][0]

    def scan(self, after: int, limit: int) -> builtins.list[ConversationRecord]:
        """Return records by number, tombstones too; damaged rows are passed over. O(limit)."""
        rows: list[Any] = []
        while not rows or not any(row[_INTACT] for row in rows):
            rows = self.query_rows(self.sql["scan"], {"after": after, "limit": limit})
            if len(rows) < limit:
                break
            after = rows[-1][_NUMBER]
        return [record_of(row) for row in rows if row[_INTACT]]

    def find_damaged_rows(self) -> builtins.list[UUID]:
        """Return the conversations whose rows are not what was written. O(conversations)."""
        return [_read_id(row[0]) for row in self.query_rows(self.sql["damaged"], {})]

    def every(self, kind: str, cid: int, seq: int, limit: int) -> builtins.list[tuple[int, StoredEvent]]:
        """Return events of a kind behind a place, each with the number of its owner."""
        if not kind.isalnum() or not kind.isascii():
            raise InvalidInput(f"no kind of event named {kind!r}")
        rows = self.query(self.sql["every"].format(kind=kind), {"cid": cid, "seq": seq, "limit": limit})
        return [(row[0], events_of([row[1:]], row[1])[0]) for row in rows]

    @abstractmethod
    def read_ids(self, parts: Parts) -> builtins.list[tuple[int, UUID, str]]:
        """Return seq, id and kind of the events in some ranges, oldest first."""

    @abstractmethod
    def choose(self, parts: Parts, reverse: bool, choice: EventChoice) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the next page of the events that fit, and the parts that are left; an empty page is the end."""

    @abstractmethod
    def many(self, values: Collection[str]) -> Any:
        """Return several texts as one parameter of a statement."""

    def _records(self, wanted: ConversationFilter, order: Order) -> str:
        time = "c.created" if order.startswith("created") else f"{self.coalesce}(c.updated, c.created)"
        beyond, direction = ("<", "desc") if order.endswith("desc") else (">", "asc")
        matching = self._matching(wanted)
        return self.sql["records"].format(matching=matching, time=time, beyond=beyond, direction=direction)

    def _matching(self, wanted: ConversationFilter) -> str:
        """Return the condition; one on the owner is written only where there is one, so that its index is used."""
        owner = "true" if wanted.owner is None else f"c.owner = {self.parameter('owner')}"
        return self.sql["matching"].format(owner=owner)

    @abstractmethod
    def parameter(self, name: str) -> str:
        """Return how a statement names a parameter."""

    def _parameters(self, wanted: ConversationFilter) -> dict[str, Any]:
        statuses = set[str](wanted.statuses or ())
        if wanted.status is not None:
            statuses = {wanted.status} & statuses if wanted.statuses is not None else {wanted.status}
        is_any_status = wanted.status is None and wanted.statuses is None
        times = ("created_after", "created_before", "updated_after", "updated_before")
        return {
            "include_deleted": wanted.include_deleted,
            "statuses": None if is_any_status else self.many(sorted(statuses)),
            "owner": wanted.owner,
            "ids": None if wanted.ids is None else self.many([id.hex for id in wanted.ids]),
            "text": None if wanted.text is None else wanted.text.lower(),
            "agent": wanted.agent,
            "root": wanted.root,
            "project": wanted.project,
            "tags": dump(wanted.tags),
            **{name: _time(getattr(wanted, name)) for name in times},
        }


def _time(moment: datetime | None) -> int | None:
    return None if moment is None else microseconds(moment)


class EventChoice(NamedTuple):
    """Which events of a log to read.

    Attributes:
        kinds: None for all.
        after: Microseconds; that happened then or later.
        before: Microseconds; that happened earlier.
    """

    kinds: tuple[str, ...] | None
    after: int | None
    before: int | None


def record_of(row: Sequence[Any]) -> ConversationRecord:
    """Return the record in a row of `record`, `records` or `scan`.

    Raises:
        CorruptLog: The row is not what was written.
    """
    if not row[_INTACT]:
        raise faults.bad_row(_read_id(row[0]))
    id, root, parent, base, head, forked_from, at, fork_event, generation, deleted, created, updated = row[:12]
    status, owner, title, tags, config, lineage, number, project, imported = row[12:21]
    return ConversationRecord(
        id=UUID(bytes=id),
        root=UUID(bytes=root),
        parent=to_uuid(parent),
        base=base,
        head=head,
        forked_from=to_uuid(forked_from),
        forked_at=None if forked_from is None else at,
        fork_event=None if forked_from is None else to_uuid(fork_event),
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
        number=number,
        project=project,
        imported=imported,
    )


def _read_id(id: object) -> UUID:
    """Return the id in a damaged row, zeros where that is what is damaged."""
    return UUID(bytes=id) if isinstance(id, bytes) and len(id) == 16 else UUID(int=0)


def missing(lo: int, hi: int) -> CorruptLog:
    """Events that should be there are not."""
    return CorruptLog(
        f"events are missing or damaged between seq {lo} and {hi}",
        hint="`bough doctor` says what is readable; export that",
        details={"lo": lo, "hi": hi},
    )


def events_of(rows: Iterable[Any], first: int, *, step: int = 1, budget: float = inf) -> list[StoredEvent]:
    """Return the events in rows `(seq, id, kind, ts, data, digest)`, as many as a budget of bytes allows, at least one.

    All in one loop, `event_checksum` written out, since it runs once for every event that is ever read.

    Args:
        first: The seq of the first one.
        step: From one to the next, 1 or -1.

    Raises:
        CorruptLog: One is missing, or is not what its digest says.
    """
    found: list[StoredEvent] = []
    place = first
    for seq, id, kind, ts, data, digest in rows:
        if seq != place or crc32(id + f"{kind}{ts}".encode() + data) != digest:
            break
        place += step
        found.append(event_of((seq, id, kind, ts, data)))
        budget -= len(data)
        if budget <= 0:
            return found
    else:
        if found:
            return found
    raise missing(place, place + 1)


def rest(parts: Parts, last: int, reverse: bool) -> Parts:
    """Return what is left of some ranges, in the direction of reading, after the event at seq `last`."""
    left = ((n, lo, min(hi, last)) if reverse else (n, max(lo, last + 1), hi) for n, lo, hi in parts)
    return [part for part in left if part[1] < part[2]]
