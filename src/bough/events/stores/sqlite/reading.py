"""Reading a log over one SQLite connection."""

from __future__ import annotations

import builtins
import json
import sqlite3
from collections.abc import Collection, Generator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

from bough.events.integrity import Census
from bough.events.record import StoredEvent, microseconds
from bough.events.stores.relational.reading import (
    PAGE_BYTES,
    PAGE_ROWS,
    EventChoice,
    Parts,
    RelationalReading,
    events_of,
    rest,
)
from bough.events.stores.sqlite.connection import SQLITE_ERRORS
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
    coalesce = "ifnull"
    page_bytes = PAGE_BYTES

    def __init__(self, db: sqlite3.Connection, sql: Mapping[str, str], clock: Clock) -> None:
        self.db: sqlite3.Connection = db
        self.sql = sql
        self.clock = clock

    def query(self, statement: str, parameters: Mapping[str, Any]) -> builtins.list[Any]:
        """Return the rows of a statement."""
        given = {key: value.bytes if isinstance(value, UUID) else value for key, value in parameters.items()}
        return self.db.execute(statement, given).fetchall()

    def query_rows(self, statement: str, parameters: Mapping[str, Any]) -> builtins.list[Any]:
        """Return the rows of a statement that reads conversations: a damaged text is not a reason to stop."""
        self.db.text_factory = _decode
        try:
            return self.query(statement, parameters)
        finally:
            self.db.text_factory = str

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
        """Whether a row that must be unique already exists."""
        return getattr(error, "sqlite_errorname", "") in _NOT_UNIQUE

    def generations(self, cid: UUID, most: int = -1) -> builtins.list[Any]:
        """Return the rows of a lineage, the first `most` if not negative. See `RelationalReading.generations`."""
        return self.db.execute(self.sql["lineage"], {"id": cid.bytes, "most": most}).fetchall()

    def page(self, parts: Parts, reverse: bool, rows: int = PAGE_ROWS) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the next page. See `RelationalReading.page`."""
        if not parts:
            return [], []
        events = self._events(_first(parts, rows, reverse), reverse)
        return events, rest(parts, events[-1].seq, reverse)

    def choose(self, parts: Parts, reverse: bool, choice: EventChoice) -> tuple[builtins.list[StoredEvent], Parts]:
        """Return the next page of the events that fit. See `RelationalReading.choose`."""
        found: builtins.list[StoredEvent] = []
        budget = self.page_bytes
        with closing(self._choose_rows(parts, reverse, choice)) as rows:
            for row in rows:
                found += events_of([row], row[0])
                budget -= len(row[4])
                if budget <= 0 or len(found) == PAGE_ROWS:
                    return found, rest(parts, found[-1].seq, reverse)
        return found, []

    def _choose_rows(self, parts: Parts, reverse: bool, choice: EventChoice) -> Generator[Any]:
        kinds = None if choice.kinds is None else self.many(choice.kinds)
        for number, lo, hi in parts:
            given = {"lo": number << SEQ_BITS | lo, "hi": number << SEQ_BITS | hi, "kinds": kinds}
            given |= {"after": choice.after, "before": choice.before}
            with closing(self.db.execute(self.sql["chosen_reverse" if reverse else "chosen"], given)) as cursor:
                yield from cursor

    def read_ids(self, parts: Parts) -> builtins.list[tuple[int, UUID, str]]:
        """Return seq, id and kind of events. See `RelationalReading.read_ids`."""
        keys = ((number << SEQ_BITS | lo, number << SEQ_BITS | hi) for number, lo, hi in parts)
        rows = (row for lo, hi in keys for row in self.run("ids", lo=lo, hi=hi))
        return [(seq, UUID(bytes=id), kind) for seq, id, kind in rows]

    def many(self, values: Collection[str]) -> str:
        """Return several texts as one parameter."""
        return json.dumps(list(values))

    def parameter(self, name: str) -> str:
        """Return how a statement names a parameter."""
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

    def _events(self, parts: Parts, reverse: bool) -> builtins.list[StoredEvent]:
        """Return the events of some ranges until the budget of bytes is used up."""
        first, step = (parts[0][2] - 1, -1) if reverse else (parts[0][1], 1)
        with closing(self._rows(parts, reverse)) as rows:
            return events_of(rows, first, step=step, budget=self.page_bytes)

    def _rows(self, parts: Parts, reverse: bool) -> sqlite3.Cursor | Generator[Any]:
        """Return the rows of some ranges. Backwards one statement a range: a single one would sort the payloads."""
        keys = [(number << SEQ_BITS | lo, number << SEQ_BITS | hi) for number, lo, hi in parts]
        if len(keys) == 1:
            return self.db.execute(self.sql["page_reverse" if reverse else "page"], keys[0])
        if reverse:
            return (row for key in keys for row in self.db.execute(self.sql["page_reverse"], key))
        return self.db.execute(self.sql["pages"], (json.dumps(keys),))


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")


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
