"""Run small queries in the caller's thread.

SQLite answers them from its page cache in less time than waking a thread takes. A query that would take longer is not
started, or is abandoned early; a thread runs it then.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any
from uuid import UUID

from bough.events.record import StoredEvent
from bough.events.stores.batch import BatchResult
from bough.events.stores.relational.reading import PAGE_ROWS, EventChoice, Parts
from bough.events.stores.sqlite.connection import SQLITE_ERRORS, StoreFile, connect
from bough.events.stores.sqlite.reading import SqliteReading
from bough.types import Clock

MAX_ROWS = 128
"""Maximum number of events, or generations of a lineage, of an inline query."""

MAX_BYTES = 256 << 10
"""Maximum payload bytes of an inline query."""

_MAX_ROW_BYTES = 64 << 10
SLOW_SECONDS = 0.025
"""A query that takes longer means that the disk is slow."""

_PAUSE_SECONDS = 1.0


class InlineReader:
    """A connection for small queries from any thread, which never waits for another query.

    Events, bytes and generations are bounded, and SQLite refuses rows that are too large before reading them. A slow
    disk costs at most one slow query per second: after each, queries go to threads for a while.
    """

    def __init__(self, file: StoreFile, sql: Mapping[str, str], clock: Clock) -> None:
        self._lock = threading.Lock()
        self._log: _SmallReading | None = _SmallReading(connect(file, read_only=True), sql, clock)
        # Waiting for a lock here would block the caller's event loop: fail instead, and let a thread wait.
        self._log.db.execute("pragma busy_timeout = 0")
        self._log.db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_ROW_BYTES)
        self._not_before = 0.0

    def answer(self, ask: Callable[[SqliteReading], Any]) -> BatchResult | None:
        """Run a query and return its result; None if a thread must run it. Raises what the query raises."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            started = monotonic()
            if self._log is None or started < self._not_before:
                return None
            outcome = BatchResult(ask(self._log))
            ended = monotonic()
            if ended - started > SLOW_SECONDS:
                self._not_before = ended + _PAUSE_SECONDS
        except (_TooMuch, *SQLITE_ERRORS):
            return None  # a thread may wait for locks and read more, and translates errors
        else:
            return outcome
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connection. All later queries go to threads."""
        with self._lock:
            log, self._log = self._log, None
        if log is not None:
            log.db.close()


class _TooMuch(Exception):
    """The result is too large for an inline query."""


class _SmallReading(SqliteReading):
    """Queries with bounds; raises `_TooMuch` beyond them."""

    page_bytes = MAX_BYTES

    def generations(self, cid: UUID, limit: int = MAX_ROWS + 1) -> list[Any]:
        """Return the rows of a lineage. See `RelationalReading.generations`."""
        rows = super().generations(cid, limit)
        if len(rows) == limit:
            raise _TooMuch
        return rows

    def page(self, parts: Parts, reverse: bool, rows: int = PAGE_ROWS) -> tuple[list[StoredEvent], Parts]:
        """Return a small page, or all events of small ranges. See `RelationalReading.page`."""
        expected = min(sum(hi - lo for _, lo, hi in parts), rows)
        if expected > MAX_ROWS:
            raise _TooMuch
        events, remaining = super().page(parts, reverse, rows)
        if len(events) < expected:
            raise _TooMuch
        return events, remaining

    def choose(self, parts: Parts, reverse: bool, choice: EventChoice) -> tuple[list[StoredEvent], Parts]:
        """Refuse, since the number of rows to examine is unknown. See `RelationalReading.choose`."""
        raise _TooMuch
