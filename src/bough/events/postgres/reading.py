"""Reading a log over one Postgres connection."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

from bough.events.check import Census
from bough.events.postgres.connection import Db
from bough.events.record import StoredEvent
from bough.events.relational.reading import (
    PAGE_BYTES,
    PAGE_ROWS,
    Parts,
    RelationalReading,
    events_of,
    rest,
)


class PostgresReading(RelationalReading):
    """Questions to one Postgres connection.

    Args:
        db: In autocommit mode, or inside a transaction.
        sql: The named statements.
    """

    def __init__(self, db: Db, sql: Mapping[str, str]) -> None:
        self.db = db
        self.sql = sql

    def run(self, name: str, **parameters: Any) -> builtins.list[Any]:
        """Return the rows of a named statement."""
        cursor = self.db.execute(self.sql[name].encode(), parameters, binary=True)
        return cursor.fetchall() if cursor.description else []

    def page(self, parts: Parts, reverse: bool) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the next page with one statement (backwards: of one range). See `RelationalReading.page`."""
        if not parts:
            return [], []
        cid, lo, hi = parts[0]
        if reverse or len(parts) == 1:
            name = "page_reverse" if reverse else "page"
            rows = self.run(name, cid=cid, lo=lo, hi=hi, rows=PAGE_ROWS, budget=PAGE_BYTES)
        else:
            cids, los, his = (list(column) for column in zip(*parts, strict=True))
            rows = self.run("pages", cids=cids, los=los, his=his, rows=PAGE_ROWS, budget=PAGE_BYTES)
        events = events_of(rows, hi - 1, step=-1) if reverse else events_of(rows, lo)
        return events, rest(parts, events[-1].seq, reverse)

    def census(self) -> Census:
        """Count the events. The server checks its own pages as it reads them."""
        return Census(self.one("count_events")[0])
