"""The writer: commits all queued requests in one transaction, taking turns with other processes.

It also detects commits of other processes.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import UUID

from bough.errors import Conflict, StoreError
from bough.events.draft import Append
from bough.events.stores import faults
from bough.events.stores.batch import BatchResult
from bough.events.stores.hub import END, Hub
from bough.events.stores.relational.writing import AppendFollower, make_batch
from bough.events.stores.sqlite.connection import BUSY_SECONDS, SQLITE_ERRORS, StoreFile, connect, store_error
from bough.events.stores.sqlite.reading import SqliteReading
from bough.events.stores.sqlite.writing import SqliteWriting
from bough.types import Clock

Change = Callable[[SqliteWriting], Any]


class Addition(NamedTuple):
    """A change that only adds a conversation, which not every watcher of commits is notified of."""

    change: Change


class Compaction(NamedTuple):
    """A request to rewrite the file without free space. Its result is None, or why the file was not rewritten."""


Request = Append | Addition | Compaction | Change

_COMMIT_POLL_SECONDS = 0.02
_CHECKPOINT_MILLISECONDS = 1000
_WAIT_MILLISECONDS = 2000
"""How long a statement waits for a lock; a transaction then begins to wait again, up to `BUSY_SECONDS` in all."""

_LOG = logging.getLogger("bough.events")


class _TransactionFailed(Exception):
    """A request failed after it had written, so its transaction, shared with other requests, must be rolled back."""


class GroupCommit:
    """Runs requests durably, many per transaction, and then notifies watchers. See `BatchWork`.

    A failing request never affects the others. Requests run without savepoints, which are slow. If one fails after it
    has written, the transaction is rolled back and run again with savepoints; if that fails too, as on a full disk,
    each request runs in its own transaction.
    """

    def __init__(
        self,
        file: StoreFile,
        sql: dict[str, str],
        hub: Hub,
        clock: Clock,
        followers: AppendFollower,
        *,
        is_private: bool = False,
    ) -> None:
        self._path = file.path
        self._write_lock = FairLock(file.path)
        self._log = SqliteWriting(connect(file, is_private=is_private), sql, clock, followers)
        self._log.db.execute(f"pragma busy_timeout = {_WAIT_MILLISECONDS}")
        self._detector = _CommitDetector(self._log, hub)
        self._hub = hub

    def commit(self, requests: Sequence[Request]) -> list[BatchResult]:
        """Return a result for each request. Those without an error are durable."""
        if any(isinstance(request, Compaction) for request in requests):  # not in a transaction
            return [
                outcome
                for request in requests
                for outcome in ([self._compact()] if isinstance(request, Compaction) else self.commit([request]))
            ]
        for run in (self._run_one, self._run_in_savepoint):
            try:
                return self._run_transaction(requests, run)
            except _TransactionFailed as failed:
                if len(requests) == 1:
                    return [BatchResult(error=self._translate(failed.__cause__))]
        return [outcome for request in requests for outcome in self.commit([request])]

    def idle_seconds(self) -> float | None:
        """Return the polling interval for commits of other processes; None without watchers."""
        return _COMMIT_POLL_SECONDS if self._hub.has_watchers() else None

    def poll(self) -> None:
        """Notify watchers of commits of other processes."""
        self._detector.poll()

    def close(self) -> None:
        """Close the connection."""
        self._log.db.close()
        self._write_lock.close()

    def _run_transaction(self, requests: Sequence[Request], run: Callable[[Request], BatchResult]) -> list[BatchResult]:
        """Run requests in one transaction.

        Raises:
            _TransactionFailed: A request failed after writing, or the commit failed; nothing is written.
        """
        self._log.notifications.clear()
        with self._write_lock.take_turn():
            try:
                self._begin()
            except SQLITE_ERRORS as error:
                return [BatchResult(error=self._translate(error)) for _ in requests]
            outcomes = self._run_and_commit(requests, run)
        if self._log.scrubbed:  # erased payloads must not stay readable in the write-ahead log
            self._truncate_log()
            self._log.scrubbed = False
        # After the commit: a watcher that read earlier would miss the events.
        self._notify(is_addition=all(isinstance(request, (Append, Addition)) for request in requests))
        return outcomes

    def _begin(self) -> None:
        """Begin a transaction. After two seconds of waiting for a lock, say so.

        Raises:
            sqlite3.OperationalError: Another program has kept the file locked for `BUSY_SECONDS`.
        """
        deadline, is_told = time.monotonic() + BUSY_SECONDS, False
        while True:
            try:
                # Takes the write lock: upgrading a read lock later would fail if another process had written.
                self._log.db.execute("begin immediate")
            except sqlite3.OperationalError as error:
                if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
                if not is_told:
                    _LOG.warning("waiting for the store %s: another program keeps it locked", self._path)
                    is_told = True
            else:
                return

    def _compact(self) -> BatchResult:
        """Rewrite the file. Zeroing deleted rows is not enough: pages keep older copies of rows that were moved."""
        with self._write_lock.take_turn():
            try:
                self._log.db.execute("vacuum")
            except SQLITE_ERRORS as error:
                return BatchResult(str(error))
        return BatchResult(None if self._truncate_log() else "a reader holds an older state of the file")

    def _truncate_log(self) -> bool:
        """Empty the write-ahead log, and return whether that succeeded. Waits for readers for a second at most.

        This is the thread that renews leases: if it waited for `BUSY_SECONDS`, running conversations would lose theirs.
        """
        db = self._log.db
        db.execute(f"pragma busy_timeout = {_CHECKPOINT_MILLISECONDS}")
        try:
            (is_busy, _, _) = db.execute("pragma wal_checkpoint(truncate)").fetchone()
        except SQLITE_ERRORS:
            return False
        finally:
            db.execute(f"pragma busy_timeout = {_WAIT_MILLISECONDS}")
        return not is_busy

    def _notify(self, *, is_addition: bool) -> None:
        """Publish the commit, and its events to the watchers of their conversations."""
        if not self._hub.has_watchers():
            return
        self._hub.publish_commit(is_addition=is_addition)
        for cid, first, draft in self._log.notifications:
            if self._hub.is_watched(cid):
                self._hub.publish(cid, make_batch(first, draft))

    def _run_and_commit(self, requests: Sequence[Request], run: Callable[[Request], BatchResult]) -> list[BatchResult]:
        """Run the requests and commit, or roll back. Raises: see `_run_transaction`."""
        db = self._log.db
        try:
            outcomes = [run(request) for request in requests]
            self._log.flush()  # queued appends belong to this transaction
            db.execute("commit")
        except BaseException as error:
            self._log.drop_queued()  # otherwise the next transaction would write the queued appends of this one
            if db.in_transaction:
                db.execute("rollback")
            if isinstance(error, (*SQLITE_ERRORS, Conflict)):
                raise _TransactionFailed from error
            raise
        return outcomes

    def _run_one(self, request: Request) -> BatchResult:
        """Run a request, and return its result or the error that it raised before it wrote anything.

        Raises:
            _TransactionFailed: It failed after writing.
        """
        log = self._log
        if not isinstance(request, Append) or log.followers.matches(request.draft):
            log.flush()  # so that a failure of this request does not affect the queued events of others
        changes_before, notification_count = log.db.total_changes, len(log.notifications)
        try:
            if isinstance(request, Append):
                return BatchResult(log.append(request))
            change = request.change if isinstance(request, Addition) else cast("Change", request)
            return BatchResult(change(log))
        except Exception as error:
            # If the request wrote nothing before it raised, the transaction can continue with the others.
            if log.db.total_changes != changes_before or not log.db.in_transaction:
                raise _TransactionFailed from error
            del log.notifications[notification_count:]
            return BatchResult(error=self._translate(error))

    def _run_in_savepoint(self, request: Request) -> BatchResult:
        """Run a request in a savepoint, so that its failure rolls back only its own writes."""
        db, notification_count = self._log.db, len(self._log.notifications)
        db.execute("savepoint request")
        try:
            outcome = self._run_one(request)
            self._log.flush()
        except (_TransactionFailed, *SQLITE_ERRORS, Conflict) as error:
            if not db.in_transaction:
                raise
            self._log.drop_queued()
            db.execute("rollback to request")
            del self._log.notifications[notification_count:]
            cause = error.__cause__ if isinstance(error, _TransactionFailed) else error
            return BatchResult(error=self._translate(cause))
        else:
            return outcome
        finally:
            if db.in_transaction:
                db.execute("release request")

    def _translate(self, error: BaseException | None) -> BaseException | None:
        return store_error(self._path, error) if isinstance(error, SQLITE_ERRORS) else error


class ReadOnlyWork:
    """Refuses every request, and notifies watchers of commits of other processes. See `BatchWork`.

    Args:
        path: Path of the store in errors.
        file: The file to read.
    """

    def __init__(self, path: Path, file: StoreFile, sql: dict[str, str], hub: Hub, clock: Clock) -> None:
        self._path = path
        self._log = SqliteReading(connect(file), sql, clock)
        self._detector = _CommitDetector(self._log, hub)
        self._hub = hub

    def commit(self, requests: Sequence[Request]) -> list[BatchResult]:
        """Return an error for each request."""
        return [BatchResult(error=faults.read_only(self._path)) for _ in requests]

    def idle_seconds(self) -> float | None:
        """Return the polling interval; None without watchers."""
        return _COMMIT_POLL_SECONDS if self._hub.has_watchers() else None

    def poll(self) -> None:
        """Notify watchers of commits of other processes."""
        self._detector.poll()

    def close(self) -> None:
        """Close the connection."""
        self._log.db.close()


class _CommitDetector:
    """Detects commits of other processes to watched conversations."""

    def __init__(self, log: SqliteReading, hub: Hub) -> None:
        self._log = log
        self._hub = hub
        self._version = -1
        self._heads: dict[UUID, int] = {}

    def poll(self) -> None:
        """Notify watchers of conversations that another process changed. Costs one pragma if none did."""
        if not self._hub.has_watchers():
            return
        watched = self._hub.list_watched()
        try:
            self._compare(watched)
        except SQLITE_ERRORS:
            for cid in watched:
                # Each watcher then reads the store, and raises the error to its subscriber.
                self._hub.publish(cid, None)

    def _compare(self, watched: Sequence[UUID]) -> None:
        """Publish the watched conversations whose head differs from that of the last call."""
        (version,) = self._log.db.execute("pragma data_version").fetchone()
        # Newly watched conversations have no head to compare with yet, so they are read even if nothing changed.
        if version == self._version and self._heads.keys() >= set(watched):
            return
        if version != self._version:
            self._hub.publish_commit()
        self._version = version
        heads = self._log.heads(watched)
        for cid in watched:
            if cid not in heads:
                self._hub.publish(cid, END)
            elif heads[cid] != self._heads.get(cid):
                self._hub.publish(cid, None)
        self._heads = heads


_NEXT, _TURN = 0, 1
_LOCK_POLL_SECONDS = 0.0002
_MAX_WAIT_SECONDS = 30.0


class FairLock:
    """Makes processes take turns in writing: one has the turn, one is next, and the others wait to be next.

    It only provides fairness, since SQLite's own lock excludes concurrent writers. After 30 s without the turn, a
    process writes anyway. The locks are bytes of a small file next to the store; the system releases them when their
    process ends.
    """

    def __init__(self, path: Path) -> None:
        """Open the lock file next to the store.

        Raises:
            StoreError: The file cannot be created or opened.
        """
        file = path.with_name(f"{path.name}-turn")
        try:
            self._fd = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot open {file}: {error.strerror}", hint="fix the permissions of the store's folder"
            ) from error

    @contextmanager
    def take_turn(self) -> Generator[None]:
        """Wait for the turn, and release it after the block."""
        deadline = time.monotonic() + _MAX_WAIT_SECONDS
        is_next = self._lock(_NEXT, deadline)
        has_turn = self._lock(_TURN, deadline)
        # Only after the turn is taken: a process that was no longer next could be overtaken by another.
        if is_next:
            lockf(self._fd, LOCK_UN, 1, _NEXT)
        try:
            yield
        finally:
            if has_turn:
                lockf(self._fd, LOCK_UN, 1, _TURN)

    def close(self) -> None:
        """Close the lock file, which releases all locks."""
        os.close(self._fd)

    def _lock(self, byte: int, deadline: float) -> bool:
        """Lock a byte of the file and return True; return False if that fails until the deadline."""
        while True:
            try:
                lockf(self._fd, LOCK_EX | LOCK_NB, 1, byte)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_LOCK_POLL_SECONDS)
            else:
                return True
