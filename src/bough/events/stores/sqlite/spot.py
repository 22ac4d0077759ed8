"""Answering small questions on the spot, in the thread of the caller.

SQLite answers them from its page cache in less time than waking a thread takes. What would take longer is not begun,
or given up early: then a thread is asked.
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

MOST_ROWS = 128
"""How many events, or generations of a lineage, are read on the spot."""

MOST_BYTES = 256 << 10
"""How many bytes of payload are read on the spot."""

_MOST_BYTES_OF_A_ROW = 64 << 10
SLOW_SECONDS = 0.025
"""An answer that took longer says that the disk is slow."""

_PAUSE_SECONDS = 1.0


class Spot:
    """One connection for small questions from any thread; nobody ever waits for it.

    Reading has bounds: events, bytes, generations, and a row that is too large is refused by SQLite before it is read.
    A slow disk costs at most one slow answer a second: after it, threads are asked for a while.
    """

    def __init__(self, file: StoreFile, sql: Mapping[str, str], clock: Clock) -> None:
        self._lock = threading.Lock()
        self._log: _SmallReading | None = _SmallReading(connect(file, read_only=True), sql, clock)
        self._log.db.execute("pragma busy_timeout = 0")
        self._log.db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES_OF_A_ROW)
        self._not_before = 0.0

    def answer(self, ask: Callable[[SqliteReading], Any]) -> BatchResult | None:
        """Return the answer, or None when a thread must be asked. Raises what the question raises."""
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
            return None  # a thread waits for locks, reads long, and knows what errors mean
        else:
            return outcome
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connection; from now on threads are asked."""
        with self._lock:
            log, self._log = self._log, None
        if log is not None:
            log.db.close()


class _TooMuch(Exception):
    """The answer is larger than what is read on the spot."""


class _SmallReading(SqliteReading):
    """Reads a little, or raises `_TooMuch`."""

    page_bytes = MOST_BYTES

    def generations(self, cid: UUID, most: int = MOST_ROWS + 1) -> list[Any]:
        """Return the rows of a lineage. See `RelationalReading.generations`."""
        rows = super().generations(cid, most)
        if len(rows) == most:
            raise _TooMuch
        return rows

    def page(self, parts: Parts, reverse: bool, rows: int = PAGE_ROWS) -> tuple[list[StoredEvent], Parts]:
        """Return a small page, or all events of the ranges as one. See `RelationalReading.page`."""
        asked = min(sum(hi - lo for _, lo, hi in parts), rows)
        if asked > MOST_ROWS:
            raise _TooMuch
        events, left = super().page(parts, reverse, rows)
        if len(events) < asked:
            raise _TooMuch
        return events, left

    def choose(self, parts: Parts, reverse: bool, choice: EventChoice) -> tuple[list[StoredEvent], Parts]:
        """Refuse: how many rows it looks at is not known. See `RelationalReading.choose`."""
        raise _TooMuch
