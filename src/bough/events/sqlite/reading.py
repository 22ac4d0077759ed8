"""Reading a log over one SQLite connection."""

from __future__ import annotations

import builtins
import json
import sqlite3
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from bough.events.check import Census
from bough.events.record import StoredEvent
from bough.events.relational.reading import PAGE_BYTES, PAGE_ROWS, Parts, RelationalReading, gapless, missing, rest

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
        """Return the next page with one statement (backwards: of one range). See `RelationalReading.page`."""
        if not parts:
            return [], []
        wanted = _first(parts[:1] if reverse else parts, PAGE_ROWS, reverse)
        rows = self._rows(wanted, reverse)
        if not gapless(rows, *((parts[0][2] - 1, -1) if reverse else (parts[0][1], 1))):
            raise missing(min(lo for _, lo, _ in wanted), max(hi for _, _, hi in wanted))
        return StoredEvent.of_rows(rows), rest(parts, rows[-1][0], reverse)

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

    def _rows(self, parts: Parts, reverse: bool) -> builtins.list[Any]:
        """Return the events of some ranges until the budget of bytes is used up."""
        keys = [(number << SEQ_BITS | lo, number << SEQ_BITS | hi) for number, lo, hi in parts]
        if len(keys) == 1:
            cursor = self.db.execute(self.sql["page_reverse" if reverse else "page"], keys[0])
        else:
            cursor = self.db.execute(self.sql["pages"], (json.dumps(keys),))
        rows, budget = list[Any](), PAGE_BYTES
        for row in cursor:
            rows.append(row)
            budget -= len(row[4])
            if budget <= 0:
                break
        return rows


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
