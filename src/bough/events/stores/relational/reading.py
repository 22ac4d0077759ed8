"""Queries of a log in tables. They block; the store runs them in a thread."""

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
from bough.events.draft import dump, load, to_uuid
from bough.events.integrity import Census, report_damaged_row
from bough.events.record import (
    ConversationFilter,
    ConversationRecord,
    Order,
    Page,
    Range,
    StoredEvent,
    clip,
    decode_cursor,
    encode_cursor,
    event_of,
    find_owner,
    microseconds,
    moment,
)
from bough.events.side_tables import SideTables
from bough.events.stores import faults
from bough.events.stores.base import LATEST, parse_digits, require_one_match
from bough.events.usage import NO_USAGE, ConversationUsage, round_to_nanos

PAGE_ROWS = 4096
PAGE_BYTES = 4 << 20
FIRST_ROWS = 16
"""Size of the first page of a reverse read. Small, since most reverse reads stop near the end."""

Ranges = list[Range[int]]
"""Ranges `(number, lo, hi)` of a log: events `lo <= seq < hi` belong to the conversation with this number."""

_NUMBER, _INTACT, _VALUE = 18, 23, 24
"""Indexes of columns in a row of `record`, `records` or `scan`; `records` adds the value of the order."""


class _LineageRow(NamedTuple):
    """A row of the query `lineage`: a conversation, and the range of its own events that the log contains."""

    number: int
    id: bytes
    lo: int
    hi: int
    is_deleted: int
    is_intact: int


class RelationalReading(ABC):
    """Queries over one connection. The tables refer to conversations by number, the callers by id.

    Attributes:
        dialect: Name of the database, and of the folder with its statements.
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
        """Return the rows of a statement that reads conversations, including damaged ones."""
        return self.query(statement, parameters)

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Any]:
        """Return a context in which all statements see one snapshot and none may write."""

    @abstractmethod
    def now(self) -> int:
        """Return the time of the store's clock, in microseconds since 1970."""

    @abstractmethod
    def is_not_unique(self, error: BaseException) -> bool:
        """Whether a database error means that a unique row already exists."""

    def run(self, name: str, **parameters: Any) -> builtins.list[Any]:
        """Return the rows of a named statement. Ids go in as UUID and come out as 16 bytes."""
        return self.query(self.sql[name], parameters)

    @abstractmethod
    def page(self, ranges: Ranges, reverse: bool, rows: int = PAGE_ROWS) -> tuple[builtins.list[StoredEvent], Ranges]:
        """Return the next page of events, limited in rows and bytes, and the remaining ranges.

        Args:
            ranges: The ranges to read, in the direction of reading.
            reverse: Whether to read from the newest to the oldest.
            rows: Maximum number of events.

        Raises:
            CorruptLog: An event is missing.
        """

    @abstractmethod
    def census(self) -> Census:
        """Return the number of events, and the result of the database's own check."""

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
        """Return the record of a conversation or tombstone.

        Raises:
            CorruptLog: The row is damaged.
        """
        rows = self.query_rows(self.sql["record"], {"id": cid})
        if not rows:
            raise faults.no_conversation(cid)
        return build_record(rows[0])

    @abstractmethod
    def lease_time(self) -> tuple[int, str]:
        """Return the time that leases are compared with, in microseconds, and the id of its clock."""

    def lease_owner(self, cid: UUID) -> str | None:
        """Return the owner of the unexpired lease of a conversation, or None."""
        self.get(cid)
        clock_time, boot = self.lease_time()
        for owner, expires in self.run("lease", cid=self.number(cid), boot=boot):
            if expires > clock_time:
                return owner
        return None

    def count_imported(self, cid: UUID) -> int:
        """Return the seq before which a log has imported events; 0 if it has none."""
        count = self.one("count_imported", id=cid)[0]
        if count is None:
            raise faults.no_conversation(cid)
        return count

    def ancestry(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the ancestors of a conversation, oldest first."""
        self.get(cid)
        return [self.peek(UUID(bytes=id)) for (id,) in self.run("ancestry", id=cid)]

    def resolve(self, name: str) -> UUID:
        """Return the conversation that a name denotes."""
        is_latest = name.strip() == LATEST
        rows = self.run("latest") if is_latest else self.run("named", digits=parse_digits(name))
        return require_one_match(name, [UUID(bytes=row[0]) for row in rows])

    def lineage_rows(self, cid: UUID) -> builtins.list[Any]:
        """Return the columns of `_LineageRow` for a conversation and its ancestors, newest first."""
        return self.run("lineage", id=cid)

    def number(self, cid: UUID) -> int:
        """Return the number of a conversation or tombstone."""
        row = self.one("number", id=cid)
        if row is None:
            raise faults.no_conversation(cid)
        return row[0]

    def side_tables_version(self, package: SideTables) -> int:
        """Return the version of a package's tables; 0 if they do not exist."""
        row = self.one("beside_version", package=package.name)
        return 0 if row is None else row[0]

    def read_ranges(self, cid: UUID) -> tuple[Ranges, int, dict[int, UUID]]:
        """Return the ranges of a log by number, its head, and the id of each number.

        Raises:
            NotFound: The conversation does not exist, or was deleted.
            CorruptLog: The row of the conversation or an ancestor is damaged, so its ranges cannot be trusted.
        """
        rows = [_LineageRow(*row) for row in self.lineage_rows(cid)]
        if not rows or rows[0].is_deleted:
            raise faults.no_conversation(cid)
        for row in rows:
            if not row.is_intact:
                raise faults.row_damage(_read_id(row.id))
        oldest = rows[-1]
        if oldest.lo > 0:
            raise events_missing(0, oldest.lo)  # the row of the owner of the first events is missing
        ranges = [(row.number, row.lo, row.hi) for row in reversed(rows) if row.lo < row.hi]
        return ranges, rows[0].hi, {row.number: UUID(bytes=row.id) for row in rows}

    def lineage(self, cid: UUID) -> builtins.list[Range[UUID]]:
        """Return the ranges of a log by id."""
        ranges, _, ids = self.read_ranges(cid)
        return [(ids[number], lo, hi) for number, lo, hi in ranges]

    def locate(self, event_id: UUID, cid: UUID | None) -> tuple[UUID, int]:
        """Return (owner, seq) of an event; with `cid`, only if the log of that conversation contains it."""
        row = self.one("locate", id=event_id)
        if row is None:
            raise faults.no_event(event_id)
        number, seq, owner = row
        if cid is not None and find_owner(self.read_ranges(cid)[0], seq) != number:
            raise faults.no_event(event_id, cid)
        return UUID(bytes=owner), seq

    def ranges_between(self, cid: UUID, start: int, stop: int | None, reverse: bool = False) -> Ranges:
        """Return the ranges of a log with `start <= seq < stop`, in the direction of reading."""
        ranges, head, _ = self.read_ranges(cid)
        selected = clip(ranges, start, head if stop is None else stop)
        return selected[::-1] if reverse else selected

    def first_page(
        self, cid: UUID, start: int, stop: int | None, reverse: bool, rows: int = PAGE_ROWS
    ) -> tuple[builtins.list[StoredEvent], Ranges]:
        """Return the first page of the events with `start <= seq < stop`, and the remaining ranges. See `page`."""
        return self.page(self.ranges_between(cid, start, stop, reverse), reverse, rows)

    def tail(self, cid: UUID, n: int) -> builtins.list[StoredEvent]:
        """Return the last n events, oldest first."""
        ranges, head, _ = self.read_ranges(cid)
        remaining, tail = clip(ranges, head - n, head), list[StoredEvent]()
        while remaining:
            events, remaining = self.page(remaining, reverse=False)
            tail += events
        return tail

    def span(self, owner: UUID, lo: int, hi: int) -> builtins.list[StoredEvent]:
        """Return a conversation's own events with `lo <= seq < hi`, and verify their checksums.

        Raises:
            CorruptLog: An event is missing or damaged.
        """
        events = verify_rows(self.run("span", id=owner, lo=lo, hi=hi), lo)
        if len(events) != hi - lo:
            raise events_missing(lo + len(events), hi)
        return events

    def heads(self, cids: Sequence[UUID]) -> dict[UUID, int]:
        """Return the heads of the conversations that exist."""
        rows = self.run("heads", ids=",".join(cid.hex for cid in cids))
        return {UUID(bytes=id): head for id, head in rows}

    def children(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the forks of a conversation, oldest first."""
        self.get(cid)
        return [self.peek(UUID(bytes=id)) for (id,) in self.run("children", id=cid)]

    def list(self, filter: ConversationFilter, cursor: str | None, limit: int, order: Order) -> Page:
        """Return a page of records. O(conversations of the filter's owner; without an owner, of the store)."""
        value, number = decode_cursor(cursor) or (None, None)
        position = {"place_value": value, "place_cid": number, "limit": limit + 1}  # one more: is there a next page?
        rows = self.query_rows(self._records(filter, order), self._filter_parameters(filter) | position)
        items = [build_record(row) for row in rows[:limit] if row[_INTACT]]
        damaged = [report_damaged_row(_read_id(row[0])) for row in rows[:limit] if not row[_INTACT]]
        if len(rows) <= limit or limit <= 0:
            return Page(items=items, damaged=damaged)
        last = rows[limit - 1]
        return Page(items=items, next_cursor=encode_cursor(last[_VALUE], last[_NUMBER]), damaged=damaged)

    def count(self, filter: ConversationFilter) -> int:
        """Return the number of matching records."""
        statement = self.sql["count"].format(matching=self._filter_condition(filter))
        return self.query(statement, self._filter_parameters(filter))[0][0]

    def scan(self, last_number: int, limit: int) -> builtins.list[ConversationRecord]:
        """Return records by number, including tombstones but not damaged rows. O(limit)."""
        # Skip pages with damaged rows only: an empty result means the end to the caller.
        rows: list[Any] = []
        while not rows or not any(row[_INTACT] for row in rows):
            rows = self.query_rows(self.sql["scan"], {"after": last_number, "limit": limit})
            if len(rows) < limit:
                break
            last_number = rows[-1][_NUMBER]
        return [build_record(row) for row in rows if row[_INTACT]]

    def find_damaged_rows(self) -> builtins.list[UUID]:
        """Return the conversations with damaged rows. O(conversations)."""
        return [_read_id(row[0]) for row in self.query_rows(self.sql["damaged"], {})]

    def every(self, kind: str, cid: int, seq: int, limit: int) -> builtins.list[tuple[int, StoredEvent]]:
        """Return up to `limit` events of a kind after a position, each with its conversation's number."""
        if not kind.isalnum() or not kind.isascii():
            raise InvalidInput(f"no kind of event named {kind!r}")
        rows = self.query(self.sql["every"].format(kind=kind), {"cid": cid, "seq": seq, "limit": limit})
        return [(row[0], verify_rows([row[1:]], row[1])[0]) for row in rows]

    @abstractmethod
    def read_ids(self, ranges: Ranges) -> builtins.list[tuple[int, UUID, str]]:
        """Return seq, id and kind of the events in some ranges, oldest first."""

    @abstractmethod
    def select_page(
        self, ranges: Ranges, reverse: bool, event_filter: EventFilter
    ) -> tuple[builtins.list[StoredEvent], Ranges]:
        """Return the next page of matching events, and the remaining ranges. No events means that none remain."""

    @abstractmethod
    def list_parameter(self, values: Collection[str]) -> Any:
        """Return strings as the value of one list parameter of a statement."""

    def _records(self, filter: ConversationFilter, order: Order) -> str:
        updated = f"{self.coalesce}(c.updated, c.created)"
        columns = {"created": "c.created", "updated": updated, "cost": "c.cost_nanos"}
        value = columns[order.removesuffix("_desc")]
        comparison, direction = ("<", "desc") if order.endswith("desc") else (">", "asc")
        matching = self._filter_condition(filter)
        return self.sql["records"].format(matching=matching, value=value, beyond=comparison, direction=direction)

    def _filter_condition(self, filter: ConversationFilter) -> str:
        """Return the SQL condition of a filter. It compares the owner only if one is set, to use the owner's index."""
        owner = "true" if filter.owner is None else f"c.owner = {self.placeholder('owner')}"
        return self.sql["matching"].format(owner=owner)

    @abstractmethod
    def placeholder(self, name: str) -> str:
        """Return the placeholder of a parameter in the driver's syntax."""

    def _filter_parameters(self, filter: ConversationFilter) -> dict[str, Any]:
        statuses = set[str](filter.statuses or ())
        if filter.status is not None:
            statuses = {filter.status} & statuses if filter.statuses is not None else {filter.status}
        is_any_status = filter.status is None and filter.statuses is None
        times = ("created_after", "created_before", "updated_after", "updated_before")
        return {
            "include_deleted": filter.include_deleted,
            "statuses": None if is_any_status else self.list_parameter(sorted(statuses)),
            "owner": filter.owner,
            "ids": None if filter.ids is None else self.list_parameter([id.hex for id in filter.ids]),
            "text": None if filter.text is None else filter.text.lower(),
            "agent": filter.agent,
            "root": filter.root,
            "project": filter.project,
            **_folder_parameters(filter.folder),
            "tags": dump(filter.tags),
            "min_nanos": None if filter.min_cost_usd is None else round_to_nanos(filter.min_cost_usd),
            **{name: _time(getattr(filter, name)) for name in times},
        }


def _folder_parameters(folder: str | None) -> dict[str, str | None]:
    """Return the text that a config has if its workspace is the folder, and the one if it lies below."""
    if folder is None:
        return {"folder": None, "below_folder": None}
    # Matched as text: parsing would fail the whole statement at one damaged config. A quote inside a value is escaped
    # in JSON, so the texts match at the key `workspace` only.
    start = (dump({"workspace": folder.rstrip("/")}) or "").strip("{}").removesuffix('"')
    return {"folder": start + '"', "below_folder": start + "/"}


def _time(moment: datetime | None) -> int | None:
    return None if moment is None else microseconds(moment)


class EventFilter(NamedTuple):
    """Which events of a log to read; an event must match every condition.

    Attributes:
        kinds: Kinds of events; None for all.
        after: Events at this time or later, in microseconds.
        before: Earlier events, in microseconds.
    """

    kinds: tuple[str, ...] | None
    after: int | None
    before: int | None


def build_record(row: Sequence[Any]) -> ConversationRecord:
    """Build the record from a row of the query `record`, `records` or `scan`.

    Raises:
        CorruptLog: The row is damaged.
    """
    if not row[_INTACT]:
        raise faults.row_damage(_read_id(row[0]))
    id, root, parent, base, head, forked_from, fork_seq, fork_event, generation, deleted, created, updated = row[:12]
    status, owner, title, tags, config, origin, number, project, imported = row[12:21]
    return ConversationRecord(
        id=UUID(bytes=id),
        root=UUID(bytes=root),
        parent=to_uuid(parent),
        base=base,
        head=head,
        forked_from=to_uuid(forked_from),
        forked_at=None if forked_from is None else fork_seq,
        fork_event=None if forked_from is None else to_uuid(fork_event),
        generation=generation,
        deleted=bool(deleted),
        status=status or "idle",
        owner=owner,
        title=title,
        tags=load(tags),
        config=load(config),
        lineage=load(origin),
        created=moment(created),
        updated=moment(updated),
        number=number,
        project=project,
        imported=imported,
        usage=ConversationUsage.of_row(*row[21:23]) if row[21] or row[22] else NO_USAGE,
    )


def _read_id(id: object) -> UUID:
    """Return the id in a damaged row; zeros if the id itself is damaged."""
    return UUID(bytes=id) if isinstance(id, bytes) and len(id) == 16 else UUID(int=0)


def events_missing(lo: int, hi: int) -> CorruptLog:
    """Return the error for missing or damaged events."""
    return CorruptLog(
        f"events are missing or damaged between seq {lo} and {hi}",
        hint="`bough doctor` says what is readable; export that",
        details={"lo": lo, "hi": hi},
    )


def verify_rows(rows: Iterable[Any], first: int, *, step: int = 1, budget: float = inf) -> list[StoredEvent]:
    """Verify rows `(seq, id, kind, ts, data, checksum)` and return their events, until `budget` bytes are used.

    Returns at least one event. The code of `event_checksum` is repeated here, since a call per event is slow.

    Args:
        first: Seq of the first event.
        step: Difference between consecutive seqs, 1 or -1.

    Raises:
        CorruptLog: The first event is missing or damaged. A later one ends the result; the next call then raises.
    """
    events: list[StoredEvent] = []
    expected_seq = first
    for seq, id, kind, ts, data, checksum in rows:
        if seq != expected_seq or crc32(id + f"{kind}{ts}".encode() + data) != checksum:
            break
        expected_seq += step
        events.append(event_of((seq, id, kind, ts, data)))
        budget -= len(data)
        if budget <= 0:
            return events
    else:
        if events:
            return events
    raise events_missing(expected_seq, expected_seq + 1)


def remaining_ranges(ranges: Ranges, last: int, reverse: bool) -> Ranges:
    """Return what remains of some ranges after the event at seq `last`, in the direction of reading."""
    remaining = ((n, lo, min(hi, last)) if reverse else (n, max(lo, last + 1), hi) for n, lo, hi in ranges)
    return [part for part in remaining if part[1] < part[2]]
