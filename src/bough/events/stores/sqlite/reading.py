"""Queries over one SQLite connection."""

from __future__ import annotations

import builtins
import json
import sqlite3
from collections.abc import Collection, Generator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any
from uuid import UUID

from bough.events.integrity import Census
from bough.events.owner import boot_id
from bough.events.record import StoredEvent, microseconds
from bough.events.stores.relational.reading import (
    PAGE_BYTES,
    PAGE_ROWS,
    EventFilter,
    Ranges,
    RelationalReading,
    remaining_ranges,
    verify_rows,
)
from bough.events.stores.sqlite.connection import SQLITE_ERRORS
from bough.types import Clock

SEQ_BITS = 32
_NOT_UNIQUE = {"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_ROWID"}


class SqliteReading(RelationalReading):
    """Queries over one SQLite connection.

    Args:
        db: In autocommit mode.
        sql: The named statements.
        clock: The clock.

    Attributes:
        page_bytes: Payload bytes after which a page ends.
    """

    dialect = "sqlite"
    coalesce = "ifnull"
    page_bytes = PAGE_BYTES

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str], clock: Clock) -> None:
        self.db: sqlite3.Connection = db
        self.sql = sql
        self.clock = clock

    def query(self, statement: str, parameters: Mapping[str, Any]) -> builtins.list[Any]:
        """Return the rows of a statement."""
        values = {key: value.bytes if isinstance(value, UUID) else value for key, value in parameters.items()}
        return self.db.execute(statement, values).fetchall()

    def query_rows(self, statement: str, parameters: Mapping[str, Any]) -> builtins.list[Any]:
        """Return the rows of a statement that reads conversations, replacing undecodable bytes in damaged text."""
        self.db.text_factory = _decode
        try:
            return self.query(statement, parameters)
        finally:
            self.db.text_factory = str

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Run the block in one snapshot of the file."""
        self.db.execute("begin")
        try:
            yield
        finally:
            self.db.execute("rollback")

    def now(self) -> int:
        """Return the time in microseconds."""
        return microseconds(self.clock.now())

    def lease_time(self) -> tuple[int, str]:
        """Return the machine's monotonic time, which all processes of a boot share, and the id of the boot."""
        return int(self.clock.monotonic() * 1_000_000), self._boot

    @cached_property
    def _boot(self) -> str:
        return boot_id()

    def is_not_unique(self, error: BaseException) -> bool:
        """Whether an error means that a unique row already exists."""
        return getattr(error, "sqlite_errorname", "") in _NOT_UNIQUE

    def lineage_rows(self, cid: UUID, limit: int = -1) -> builtins.list[Any]:
        """Return at most `limit` rows, all if negative. See `RelationalReading.lineage_rows`."""
        return self.db.execute(self.sql["lineage"], {"id": cid.bytes, "most": limit}).fetchall()

    def page(self, ranges: Ranges, reverse: bool, rows: int = PAGE_ROWS) -> tuple[builtins.list[StoredEvent], Ranges]:
        """Return the next page. See `RelationalReading.page`."""
        if not ranges:
            return [], []
        events = self._events(_first(ranges, rows, reverse), reverse)
        return events, remaining_ranges(ranges, events[-1].seq, reverse)

    def select_page(
        self, ranges: Ranges, reverse: bool, event_filter: EventFilter
    ) -> tuple[builtins.list[StoredEvent], Ranges]:
        """Return the next page of matching events. See `RelationalReading.select_page`."""
        events: builtins.list[StoredEvent] = []
        budget = self.page_bytes
        with closing(self._select_rows(ranges, reverse, event_filter)) as rows:
            for row in rows:
                events += verify_rows([row], row[0])
                budget -= len(row[4])
                if budget <= 0 or len(events) == PAGE_ROWS:
                    return events, remaining_ranges(ranges, events[-1].seq, reverse)
        return events, []

    def _select_rows(self, ranges: Ranges, reverse: bool, event_filter: EventFilter) -> Generator[Any]:
        kinds = None if event_filter.kinds is None else self.list_parameter(event_filter.kinds)
        for number, lo, hi in ranges:
            values = {"lo": number << SEQ_BITS | lo, "hi": number << SEQ_BITS | hi, "kinds": kinds}
            values |= {"after": event_filter.after, "before": event_filter.before}
            with closing(self.db.execute(self.sql["chosen_reverse" if reverse else "chosen"], values)) as cursor:
                yield from cursor

    def read_ids(self, ranges: Ranges) -> builtins.list[tuple[int, UUID, str]]:
        """Return seq, id and kind of events. See `RelationalReading.read_ids`."""
        keys = ((number << SEQ_BITS | lo, number << SEQ_BITS | hi) for number, lo, hi in ranges)
        rows = (row for lo, hi in keys for row in self.run("ids", lo=lo, hi=hi))
        return [(seq, UUID(bytes=id), kind) for seq, id, kind in rows]

    def list_parameter(self, values: Collection[str]) -> str:
        """Return strings as one parameter, a JSON array."""
        return json.dumps(list(values))

    def placeholder(self, name: str) -> str:
        """Return the placeholder of a parameter."""
        return f":{name}"

    def census(self) -> Census:
        """Count the events and run SQLite's own check."""
        damage = list[str]()
        count, rows = None, list[UUID]()
        try:
            damage += (row[0] for row in self.db.execute("pragma integrity_check(20)") if row[0] != "ok")
            rows = self.find_damaged_rows()
            count = self.one("count_events")[0]
        except SQLITE_ERRORS as error:
            damage.append(str(error))
        return Census(count, tuple(damage), tuple(rows))

    def _events(self, ranges: Ranges, reverse: bool) -> builtins.list[StoredEvent]:
        """Return the events of some ranges until `page_bytes` are used."""
        first, step = (ranges[0][2] - 1, -1) if reverse else (ranges[0][1], 1)
        with closing(self._rows(ranges, reverse)) as rows:
            return verify_rows(rows, first, step=step, budget=self.page_bytes)

    def _rows(self, ranges: Ranges, reverse: bool) -> sqlite3.Cursor | Generator[Any]:
        """Return the rows of some ranges. Reverse reads run one statement per range: a join would sort payloads."""
        keys = [(number << SEQ_BITS | lo, number << SEQ_BITS | hi) for number, lo, hi in ranges]
        if len(keys) == 1:
            return self.db.execute(self.sql["page_reverse" if reverse else "page"], keys[0])
        if reverse:
            return (row for key in keys for row in self.db.execute(self.sql["page_reverse"], key))
        return self.db.execute(self.sql["pages"], (json.dumps(keys),))


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _first(ranges: Ranges, limit: int, reverse: bool) -> Ranges:
    """Return the ranges of the first `limit` events of some ranges, in the direction of reading."""
    first_ranges: Ranges = []
    for number, lo, hi in ranges:
        lo, hi = (max(lo, hi - limit), hi) if reverse else (lo, min(hi, lo + limit))
        first_ranges.append((number, lo, hi))
        limit -= hi - lo
        if limit <= 0:
            break
    return first_ranges
