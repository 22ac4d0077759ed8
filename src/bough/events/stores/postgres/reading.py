"""Reading a log over one Postgres connection."""

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
    EventChoice,
    Parts,
    RelationalReading,
    events_of,
    rest,
)
from bough.types import Clock, SystemClock

_UUID = 2950  # the server's number for the type


class PostgresReading(RelationalReading):
    """Questions to one Postgres connection.

    Args:
        db: In autocommit mode, or inside a transaction.
        sql: The named statements.
        clock: Where time comes from; the machine's own stands for the server's.
    """

    dialect = "postgres"

    def __init__(self, db: Db, sql: Mapping[str, str], clock: Clock) -> None:
        self.db: Db = db
        self.sql = sql
        self.clock = clock

    def query(self, statement: str, parameters: Mapping[str, Any]) -> builtins.list[Any]:
        """Return the rows of a statement; uuids as 16 bytes."""
        cursor = self.db.execute(statement.encode(), parameters, binary=True)
        if not cursor.description:
            return []
        rows = cursor.fetchall()
        if any(column.type_code == _UUID for column in cursor.description):
            return [tuple(value.bytes if isinstance(value, UUID) else value for value in row) for row in rows]
        return rows

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Read one state of the database until the end."""
        with self.db.transaction():
            self.db.execute("set transaction isolation level repeatable read, read only")
            yield

    def now(self) -> int:
        """Return the time in microseconds: the server's, unless a clock was given."""
        if isinstance(self.clock, SystemClock):
            return self.one("server_time")[0]
        return microseconds(self.clock.now())

    def is_not_unique(self, error: BaseException) -> bool:
        """Whether a row that must be unique already exists."""
        return isinstance(error, UniqueViolation)

    def page(self, parts: Parts, reverse: bool, rows: int = PAGE_ROWS) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the next page with one statement. See `RelationalReading.page`."""
        if not parts:
            return [], []
        cid, lo, hi = parts[0]
        if reverse or len(parts) > 1:
            name = "pages_reverse" if reverse else "pages"
            found = self.run(name, **_columns(parts), rows=rows, budget=PAGE_BYTES)
        else:
            found = self.run("page", cid=cid, lo=lo, hi=hi, rows=rows, budget=PAGE_BYTES)
        events = events_of(found, hi - 1, step=-1) if reverse else events_of(found, lo)
        return events, rest(parts, events[-1].seq, reverse)

    def choose(self, parts: Parts, reverse: bool, choice: EventChoice) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the next page of the events that fit. See `RelationalReading.choose`."""
        statement = self.sql["chosen"].format(direction="desc" if reverse else "asc")
        kinds = None if choice.kinds is None else self.many(choice.kinds)
        given = _columns(parts) | {"kinds": kinds, "after": choice.after, "before": choice.before}
        found = self.query(statement, given | {"rows": PAGE_ROWS, "budget": PAGE_BYTES})
        events = [event for row in found for event in events_of([row], row[0])]
        return events, rest(parts, events[-1].seq, reverse) if events else []

    def read_ids(self, parts: Parts) -> builtins.list[tuple[int, UUID, str]]:
        """Return seq, id and kind of events. See `RelationalReading.read_ids`."""
        return [(seq, UUID(bytes=id), kind) for seq, id, kind in self.run("ids", **_columns(parts))]

    def many(self, values: Collection[str]) -> builtins.list[str]:
        """Return several texts as one parameter."""
        return builtins.list(values)

    def parameter(self, name: str) -> str:
        """Return how a statement names a parameter."""
        return f"%({name})s"

    def census(self) -> Census:
        """Count the events. The server checks its own pages as it reads them."""
        with self.db.transaction():
            self.run("be_patient")
            return Census(self.one("count_events")[0], rows=tuple(self.find_damaged_rows()))

    def every(self, kind: str, cid: int, seq: int, limit: int) -> builtins.list[tuple[int, StoredEvent]]:
        """Return events of a kind behind a place, each with the number of its owner."""
        with self.db.transaction():
            self.run("be_patient")
            return super().every(kind, cid, seq, limit)


def _columns(parts: Parts) -> dict[str, list[int]]:
    """Return ranges as one list a column."""
    cids, los, his = (list(column) for column in zip(*parts, strict=True)) if parts else ([], [], [])
    return {"cids": cids, "los": los, "his": his}
