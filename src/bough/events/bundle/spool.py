"""A temporary file for the events of an import, so that memory does not grow with their number."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import overload

from bough.errors import StoreError
from bough.events.blob.blob import list_named_bytes, may_name_bytes
from bough.events.draft import BlobRow, EventRow
from bough.events.record import EventTuple, StoredEvent

PAGE = 500
"""Number of events in memory at a time."""

_CREATE = (
    """create table event (seq integer primary key, id blob not null unique, kind text not null, ts integer not null,
                           data blob not null)""",
    "create table named (seq integer not null, sha256 text not null, media_type text not null, size integer not null)",
    "create index named_sha256 on named (sha256)",
    "create table blob (sha256 text primary key, data blob not null)",
)


class EventSpool(Sequence[StoredEvent]):
    """Events from seq 0, in a private temporary file that is removed by `close` or with this object.

    One thread fills it, then others read it, one at a time. An event with the id of an earlier one is dropped, so that
    `len` is less than the number of added events.

    Raises:
        StoreError: There is no space for temporary files. Every method may raise this.
    """

    def __init__(self) -> None:
        with _explain_errors():
            # With an empty name SQLite creates a temporary file that it deletes right after opening.
            self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            self._finalizer = weakref.finalize(self, self._db.close)
            for statement in ("pragma journal_mode = off", "pragma synchronous = off", *_CREATE, "begin"):
                self._db.execute(statement)
        self._page: list[EventTuple] = []
        self._count = 0

    def add(self, event: StoredEvent) -> None:
        """Append an event."""
        seq, id, kind, ts, raw = event
        self._page.append((seq, id, kind, ts, raw))
        if len(self._page) >= PAGE:
            self._write()
        references = [(seq, *ref) for ref in list_named_bytes(event.event)] if may_name_bytes(event) else []
        if references:
            with _explain_errors():
                self._db.executemany("insert into named values (?, ?, ?, ?)", references)

    def add_blob(self, sha256: str, data: bytes) -> None:
        """Add bytes that an event refers to."""
        with _explain_errors():
            self._db.execute("insert into blob values (?, ?)", (sha256, data))

    def has_blob(self, sha256: str) -> bool:
        """Whether these bytes were added."""
        with _explain_errors():
            return self._db.execute("select 1 from blob where sha256 = ?", (sha256,)).fetchone() is not None

    def list_sizes(self, sha256: str) -> set[int]:
        """Return the sizes that events record for these bytes; empty if no event refers to them."""
        with _explain_errors():
            return {row[0] for row in self._db.execute("select distinct size from named where sha256 = ?", (sha256,))}

    def blobs(self, start: int, stop: int) -> list[BlobRow]:
        """Return the blobs in the bundle that the events of a range refer to. Their bytes are read on demand."""
        query = """select seq, sha256, media_type, size from named join blob using (sha256)
                   where seq >= ? and seq < ? order by seq"""
        with _explain_errors():
            rows = self._db.execute(query, (start, stop)).fetchall()
        return [BlobRow(seq - start, sha, kind, size, partial(self._read_blob, sha)) for seq, sha, kind, size in rows]

    def _read_blob(self, sha256: str) -> bytes:
        with _explain_errors():
            return self._db.execute("select data from blob where sha256 = ?", (sha256,)).fetchone()[0]

    def close(self) -> None:
        """Remove the file. Idempotent."""
        self._finalizer()

    def __len__(self) -> int:
        self._write()
        return self._count

    @overload
    def __getitem__(self, place: int) -> StoredEvent: ...

    @overload
    def __getitem__(self, place: slice) -> list[StoredEvent]: ...

    def __getitem__(self, place: int | slice) -> StoredEvent | list[StoredEvent]:
        """Return an event, or the events of a range. O(length of the range)."""
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self._read(start, stop)[::step]
        events = self._read(place, place + 1)
        if not events:
            raise IndexError(place)
        return events[0]

    def __iter__(self) -> Iterator[StoredEvent]:
        """Iterate over all events, with one page in memory."""
        for start in range(0, len(self), PAGE):
            yield from self._read(start, start + PAGE)

    def rows(self, start: int, stop: int) -> SpooledRows:
        """Return the rows of a range, which are read when iterated or sliced."""
        return SpooledRows(self, start, max(start, stop))

    def _write(self) -> None:
        if self._page:
            with _explain_errors():
                added = self._db.executemany("insert or ignore into event values (?, ?, ?, ?, ?)", self._page)
                self._count += added.rowcount
            self._page = []

    def _read(self, start: int, stop: int) -> list[StoredEvent]:
        self._write()
        with _explain_errors():
            rows = self._db.execute("select * from event where seq >= ? and seq < ? order by seq", (start, stop))
            return StoredEvent.of_rows(rows)


class SpooledRows(Sequence[EventRow]):
    """A range of spooled events as rows of a store. A slice is a tuple."""

    def __init__(self, spool: EventSpool, start: int, stop: int) -> None:
        self._spool = spool
        self._places = range(start, stop)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> EventRow: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[EventRow, ...]: ...

    def __getitem__(self, place: int | slice) -> EventRow | tuple[EventRow, ...]:
        """Return a row, or the rows of a slice, whose step must be 1. O(length of the slice)."""
        if isinstance(place, slice):
            chosen = self._places[place]
            return tuple([EventRow.of(*stored[1:]) for stored in self._spool[chosen.start : chosen.stop]])
        return EventRow.of(*self._spool[self._places[place]][1:])

    def __iter__(self) -> Iterator[EventRow]:
        """Iterate over all rows, with one page in memory."""
        for start in range(0, len(self), PAGE):
            yield from self[start : start + PAGE]


@contextmanager
def _explain_errors() -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(
            f"the bundle cannot be stored in a temporary file: {error}",
            hint="free space in the folder for temporary files, or set TMPDIR to another one",
        ) from error
