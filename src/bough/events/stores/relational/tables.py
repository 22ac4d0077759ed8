"""Access to side tables and the log inside one transaction. Implements `bough.events.side_tables.Tables`."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast
from uuid import UUID

from bough.errors import BoughError, InvalidInput
from bough.events.blob.blob import BLOBS
from bough.events.draft import Append, BlobRow, Draft, ForkFields, encode_draft, new_record, parse_cut, plan_fork
from bough.events.record import ConversationRecord, DeleteMode, Lease
from bough.events.side_tables import Follower, OnAppend, SideTables, Tables
from bough.events.stores import faults
from bough.events.stores.relational.reading import RelationalReading
from bough.events.stores.relational.writing import RelationalWriting
from bough.types import new_id

if TYPE_CHECKING:
    from bough.events.model import Event

T = TypeVar("T")

_LOG = logging.getLogger("bough.events")


class RelationalTables:
    """The side tables of some packages, and the log, over one connection.

    Args:
        log: The connection of the transaction.
        statements: The packages' statements by name.
        appends: Whether events may be written; False for read-only changes and followers.
    """

    def __init__(self, log: RelationalReading, statements: Mapping[str, str], *, appends: bool) -> None:
        self._log = log
        self._statements = statements
        self._appends = appends
        self._is_open = True
        self._failure: BaseException | None = None

    @property
    def connection(self) -> Any:
        """The driver's connection. See `Tables.connection`."""
        return self._log.db

    def run(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a named statement. See `Tables.run`."""
        statement = self._statements.get(name)
        if statement is None:
            raise InvalidInput(f"no statement of these packages named {name!r}", hint=", ".join(self._statements))
        with self._use():
            return self._log.query(statement, parameters)

    def one(self, name: str, **parameters: Any) -> tuple[Any, ...] | None:
        """Return the first row of a named statement. See `Tables.one`."""
        rows = self.run(name, **parameters)
        return rows[0] if rows else None

    def number(self, cid: UUID) -> int:
        """Return the integer key of a conversation. See `Tables.number`."""
        with self._use():
            return self._log.number(cid)

    def now(self) -> int:
        """Return the time of the store's clock. See `Tables.now`."""
        with self._use():
            return self._log.now()

    def get(self, cid: UUID) -> ConversationRecord:
        """Return the record. See `Tables.get`."""
        with self._use():
            return self._log.get(cid)

    def create(
        self, record: ConversationRecord | None = None, *, events: Sequence[Event] | Draft = ()
    ) -> ConversationRecord:
        """Create a root conversation. See `Tables.create`."""
        encoded = encode_draft(events)
        with self._write("creating a conversation") as log:
            return log.create(record or new_record(new_id(), log.clock.now()), encoded)

    def append(
        self,
        cid: UUID,
        events: Sequence[Event] | Draft,
        *,
        generation: int | None = None,
        expected_head: int | None = None,
    ) -> int:
        """Append all events or none. See `Tables.append`."""
        encoded = encode_draft(events)
        with self._write("appending") as log:
            head = log.append(Append(cid, encoded, generation, expected_head))
            log.flush()  # later statements of the same transaction must see the events
            return head

    def fork(self, cid: UUID, **fields: Unpack[ForkFields]) -> ConversationRecord:
        """Fork a conversation. See `Tables.fork`."""
        cut, encoded = parse_cut(fields.get("at")), encode_draft(fields.get("events", ()))
        with self._write("forking") as log:
            return log.fork(cid, cut, plan_fork(fields, log.clock.now()), encoded)

    def delete(self, cid: UUID, mode: DeleteMode = "tombstone") -> None:
        """Delete a conversation. See `Tables.delete`."""
        with self._write("deleting") as log:
            log.delete(cid, mode)

    def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take a lease. See `Tables.acquire`."""
        with self._write("taking a lease") as log:
            return log.acquire(cid, owner, ttl)

    def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease. See `Tables.renew`."""
        with self._write("renewing a lease") as log:
            return log.renew(lease, ttl)

    def release(self, lease: Lease) -> None:
        """Release a lease. See `Tables.release`."""
        with self._write("releasing a lease") as log:
            log.release(lease)

    def close(self) -> None:
        """Forbid further use. Called after the change has returned.

        Raises:
            BoughError: A statement failed and the change ignored the error, so its transaction must not be committed.
        """
        self._is_open = False
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _write(self, action: str) -> Generator[RelationalWriting]:
        """Yield the log for writing, or raise `InvalidInput` that names the action if events may not be written."""
        if not self._appends or not isinstance(self._log, RelationalWriting):
            raise faults.events_not_writable(action)
        with self._use():
            yield self._log

    @contextmanager
    def _use(self) -> Generator[None]:
        """Record a database error of the block. `close` raises it if the change ignores it."""
        if not self._is_open:
            raise faults.tables_closed()
        try:
            yield
        except BoughError as error:
            if error.__cause__ is not None:
                self._failure = error
            raise
        except Exception as error:
            if not self._log.is_not_unique(error):
                self._failure = error
                raise
            self._failure = faults.row_exists(error)
            raise self._failure from error


def run_change(
    log: RelationalReading, statements: Mapping[str, str], change: Callable[[Tables], T], *, appends: bool
) -> T:
    """Run a change of side tables and log, and return its result.

    Raises:
        InvalidInput: The change is a coroutine function.
    """
    tables = RelationalTables(log, statements, appends=appends)
    result = change(tables)
    tables.close()
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise InvalidInput("a change must be a plain function", hint="do what must be awaited after `transaction`")
    return result


def store_blobs(log: RelationalWriting, cid: UUID, first: int, blobs: Iterable[BlobRow]) -> None:
    """Store the bytes that appended events refer to, in the same transaction, with one blob in memory at a time.

    Args:
        cid: The conversation.
        first: Seq of the first appended event.
        blobs: The bytes.
    """
    tables: RelationalTables | None = None
    number = 0
    for blob in blobs:
        if tables is None:
            log.migrate_side_tables(BLOBS)
            tables = RelationalTables(log, BLOBS.statements(log.dialect), appends=False)
            number = tables.number(cid)
        digest = bytes.fromhex(blob.sha256)
        data = blob.read()
        tables.run("blob.keep", sha256=digest, media_type=blob.media_type, size=blob.size_bytes, data=data)
        tables.run("blob.use", number=number, seq=first + blob.place, sha256=digest)
    if tables is not None:
        tables.close()


class Followers:
    """The packages that write rows for certain events, in the transaction that appends them. Thread-safe.

    A package whose tables are newer than its code is skipped, so that it never prevents a conversation from being
    written.
    """

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._lock = threading.Lock()
        self._followers: tuple[Follower, ...] = ()
        self._kinds = frozenset[str]()
        self._statements: dict[SideTables, dict[str, str]] = {}
        self._skipped = set[SideTables]()

    def add(self, package: SideTables, kinds: Collection[str], add: OnAppend) -> None:
        """Call `add` for every event of these kinds. Repeating the call has no effect."""
        follower = Follower(package, frozenset(kinds), add)
        with self._lock:
            if follower not in self._followers:
                # Before the follower becomes visible: `write_rows` reads the statements without the lock.
                self._statements.setdefault(package, package.statements(self._dialect))
                self._followers += (follower,)
                self._kinds |= follower.kinds

    def packages(self) -> set[SideTables]:
        """Return the packages whose tables must be ready before an append."""
        return {follower.side_tables for follower in self._followers} - self._skipped

    def skip(self, package: SideTables, error: BoughError) -> None:
        """Skip a package from now on, and log the reason once."""
        if package not in self._skipped:
            _LOG.warning("rows of %s are not written: %s", package.name, error.message)
            self._skipped.add(package)

    def matches(self, draft: Draft) -> bool:
        """Whether any of the events has a follower, or refers to bytes to store."""
        return bool(draft.blobs) or (bool(self._kinds) and any(row.kind in self._kinds for row in draft.rows))

    def write_rows(self, log: RelationalWriting, cid: UUID, first: int, draft: Draft) -> None:
        """Call the followers of events that were appended from seq `first` on, and store the bytes of these events."""
        store_blobs(log, cid, first, draft.blobs)
        events = draft.make_stored(first)
        for package, kinds, add in self._followers:
            matching = [stored for stored in events if stored.kind in kinds]
            if matching and package not in self._skipped:
                tables = RelationalTables(log, self._statements[package], appends=False)
                for stored in matching:
                    add(cast("Tables", tables), cid, stored)
                tables.close()
