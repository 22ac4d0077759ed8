"""Queries over one Postgres connection."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from psycopg.errors import UniqueViolation

from bough.events.integrity import Census
from bough.events.record import StoredEvent, microseconds
from bough.events.stores.postgres.connection import Db
from bough.events.stores.relational.reading import (
    PAGE_BYTES,
    PAGE_ROWS,
    EventFilter,
    Ranges,
    RelationalReading,
    remaining_ranges,
    verify_rows,
)
from bough.types import Clock, SystemClock

_UUID = 2950  # the server's number for the type


class PostgresReading(RelationalReading):
    """Queries over one Postgres connection.

    Args:
        db: In autocommit mode, or inside a transaction.
        sql: The named statements.
        clock: The clock; a `SystemClock` means the server's time.
    """

    dialect = "postgres"

    def __init__(self, db: Db, sql: Mapping[str, str], clock: Clock) -> None:
        self.db: Db = db
        self.sql = sql
        self.clock = clock

    def query(self, statement: str, parameters: Mapping[str, Any]) -> builtins.list[Any]:
        """Return the rows of a statement, with UUIDs as 16 bytes."""
        cursor = self.db.execute(statement.encode(), parameters, binary=True)
        if not cursor.description:
            return []
        rows = cursor.fetchall()
        if any(column.type_code == _UUID for column in cursor.description):
            return [tuple(value.bytes if isinstance(value, UUID) else value for value in row) for row in rows]
        return rows

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Run the block in one snapshot of the database."""
        with self.db.transaction():
            self.db.execute("set transaction isolation level repeatable read, read only")
            yield

    def now(self) -> int:
        """Return the time in microseconds, of the server unless another clock was given."""
        if isinstance(self.clock, SystemClock):
            return self.one("server_time")[0]
        return microseconds(self.clock.now())

    def lease_time(self) -> tuple[int, str]:
        """Return the server's time, which every process shares."""
        return self.now(), ""

    def is_not_unique(self, error: BaseException) -> bool:
        """Whether an error means that a unique row already exists."""
        return isinstance(error, UniqueViolation)

    def page(self, ranges: Ranges, reverse: bool, rows: int = PAGE_ROWS) -> tuple[builtins.list[StoredEvent], Ranges]:
        """Return the next page with one statement. See `RelationalReading.page`."""
        if not ranges:
            return [], []
        cid, lo, hi = ranges[0]
        if reverse or len(ranges) > 1:
            name = "pages_reverse" if reverse else "pages"
            event_rows = self.run(name, **_columns(ranges), rows=rows, budget=PAGE_BYTES)
        else:
            event_rows = self.run("page", cid=cid, lo=lo, hi=hi, rows=rows, budget=PAGE_BYTES)
        events = verify_rows(event_rows, hi - 1, step=-1) if reverse else verify_rows(event_rows, lo)
        return events, remaining_ranges(ranges, events[-1].seq, reverse)

    def select_page(
        self, ranges: Ranges, reverse: bool, event_filter: EventFilter
    ) -> tuple[builtins.list[StoredEvent], Ranges]:
        """Return the next page of matching events. See `RelationalReading.select_page`."""
        statement = self.sql["chosen"].format(direction="desc" if reverse else "asc")
        kinds = None if event_filter.kinds is None else self.list_parameter(event_filter.kinds)
        parameters = _columns(ranges) | {"kinds": kinds, "after": event_filter.after, "before": event_filter.before}
        event_rows = self.query(statement, parameters | {"rows": PAGE_ROWS, "budget": PAGE_BYTES})
        events = [event for row in event_rows for event in verify_rows([row], row[0])]
        return events, remaining_ranges(ranges, events[-1].seq, reverse) if events else []

    def read_ids(self, ranges: Ranges) -> builtins.list[tuple[int, UUID, str]]:
        """Return seq, id and kind of events. See `RelationalReading.read_ids`."""
        return [(seq, UUID(bytes=id), kind) for seq, id, kind in self.run("ids", **_columns(ranges))]

    def list_parameter(self, values: Collection[str]) -> builtins.list[str]:
        """Return several strings as one parameter."""
        return builtins.list(values)

    def placeholder(self, name: str) -> str:
        """Return the placeholder of a parameter."""
        return f"%({name})s"

    def census(self) -> Census:
        """Count the events. The server checks its pages while reading."""
        with self.db.transaction():
            self.run("be_patient")
            return Census(self.one("count_events")[0], rows=tuple(self.find_damaged_rows()))

    def every(self, kind: str, cid: int, seq: int, limit: int) -> builtins.list[tuple[int, StoredEvent]]:
        """Return up to `limit` events of a kind after a position, each with its conversation's number."""
        with self.db.transaction():
            self.run("be_patient")
            return super().every(kind, cid, seq, limit)


def _columns(ranges: Ranges) -> dict[str, list[int]]:
    """Return ranges as one list per column."""
    cids, los, his = (list(column) for column in zip(*ranges, strict=True)) if ranges else ([], [], [])
    return {"cids": cids, "los": los, "his": his}
