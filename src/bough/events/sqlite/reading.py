"""Reading a log over one SQLite connection."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from bough.events.check import Census
from bough.events.lineage import Range
from bough.events.record import StoredEvent
from bough.events.relational.reading import PAGE_BYTES, PAGE_ROWS, Parts, RelationalReading, gapless, missing

SEQ_BITS = 32


class SqliteReading(RelationalReading):
    """Questions to one SQLite connection.

    Args:
        db: In autocommit mode.
        sql: The named statements.
    """

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str]) -> None:
        self.db = db
        self.sql = sql

    def run(self, name: str, **parameters: Any) -> builtins.list[Any]:
        """Return the rows of a named statement."""
        given = {key: value.bytes if isinstance(value, UUID) else value for key, value in parameters.items()}
        return self.db.execute(self.sql[name], given).fetchall()

    def page(self, parts: Parts, reverse: bool) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the next page. See `RelationalReading.page`."""
        events, left, budget = list[StoredEvent](), parts[::-1], PAGE_BYTES
        while left and len(events) < PAGE_ROWS and budget > 0:
            number, lo, hi = left.pop()
            rows, budget = self._rows((number, lo, hi), PAGE_ROWS - len(events), budget, reverse)
            if not gapless(rows, *((hi - 1, -1) if reverse else (lo, 1))):
                raise missing(lo, hi)
            lo, hi = (lo, rows[-1][0]) if reverse else (rows[-1][0] + 1, hi)
            if lo < hi:
                left.append((number, lo, hi))
            events += StoredEvent.of_rows(rows)
        return events, left[::-1]

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

    def _rows(self, part: Range[int], most: int, budget: int, reverse: bool) -> tuple[builtins.list[Any], int]:
        number, lo, hi = part
        lo, hi = (max(lo, hi - most), hi) if reverse else (lo, min(hi, lo + most))
        key = number << SEQ_BITS
        cursor = self.db.execute(self.sql["page_reverse" if reverse else "page"], (key | lo, key | hi))
        rows = list[Any]()
        for row in cursor:
            rows.append(row)
            budget -= len(row[4])
            if budget <= 0:
                break
        return rows, budget
