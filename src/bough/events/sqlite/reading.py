"""Reading a log over one SQLite connection."""

from __future__ import annotations

import builtins
import json
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

from bough.events.check import Census
from bough.events.record import StoredEvent, microseconds
from bough.events.relational.reading import (
    PAGE_BYTES,
    PAGE_ROWS,
    Parts,
    RelationalReading,
    events_of,
    rest,
)
from bough.types import Clock

SEQ_BITS = 32
_NOT_UNIQUE = {"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_ROWID"}


class SqliteReading(RelationalReading):
    """Questions to one SQLite connection.

    Args:
        db: In autocommit mode.
        sql: The named statements.
        clock: Where time comes from.

    Attributes:
        page_bytes: How many bytes of payload a page has before it ends.
    """

    dialect = "sqlite"
    page_bytes = PAGE_BYTES

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str], clock: Clock) -> None:
        self.db: sqlite3.Connection = db
        self.sql = sql
        self.clock = clock

    def query(self, statement: str, parameters: Mapping[str, Any]) -> builtins.list[Any]:
        """Return the rows of a statement."""
        given = {key: value.bytes if isinstance(value, UUID) else value for key, value in parameters.items()}
        return self.db.execute(statement, given).fetchall()

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Read the same state of the file until the end."""
        self.db.execute("begin")
        try:
            yield
        finally:
            self.db.execute("rollback")

    def now(self) -> int:
        """Return the time in microseconds."""
        return microseconds(self.clock.now())

    def is_not_unique(self, error: BaseException) -> bool:
        """Whether a row that must be unique is there already."""
        return getattr(error, "sqlite_errorname", "") in _NOT_UNIQUE

    def generations(self, cid: UUID, most: int = -1) -> builtins.list[Any]:
        """Return the rows of a lineage, the first `most` if not negative. See `RelationalReading.generations`."""
        return self.db.execute(self.sql["lineage"], (cid.bytes, most)).fetchall()

    def page(self, parts: Parts, reverse: bool) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the next page with one statement (backwards: of one range). See `RelationalReading.page`."""
        if not parts:
            return [], []
        wanted = _first(parts[:1] if reverse else parts, PAGE_ROWS, reverse)
        events = self._events(wanted, reverse)
        return events, rest(parts, events[-1].seq, reverse)

    def census(self) -> Census:
        """Count the events and run SQLite's own check."""
        damage = list[str]()
        count = None
        try:
            damage += (row[0] for row in self.db.execute("pragma integrity_check(20)") if row[0] != "ok")
            count = self.one("count_events")[0]
        except sqlite3.DatabaseError as error:
            damage.append(str(error))
        return Census(count, tuple(damage))

    def _events(self, parts: Parts, reverse: bool) -> builtins.list[StoredEvent]:
        """Return the events of some ranges until the budget of bytes is used up."""
        keys = [(number << SEQ_BITS | lo, number << SEQ_BITS | hi) for number, lo, hi in parts]
        one = len(keys) == 1
        name, asked = ("page_reverse" if reverse else "page", keys[0]) if one else ("pages", (json.dumps(keys),))
        first, step = (parts[0][2] - 1, -1) if reverse else (parts[0][1], 1)
        with closing(self.db.execute(self.sql[name], asked)) as cursor:
            return events_of(cursor, first, step=step, budget=self.page_bytes)


def _first(parts: Parts, most: int, reverse: bool) -> Parts:
    """Return the beginning of some ranges, in the direction of reading, of so many events at most."""
    found: Parts = []
    for number, lo, hi in parts:
        lo, hi = (max(lo, hi - most), hi) if reverse else (lo, min(hi, lo + most))
        found.append((number, lo, hi))
        most -= hi - lo
        if most <= 0:
            break
    return found
