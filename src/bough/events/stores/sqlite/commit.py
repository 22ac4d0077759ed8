"""The writer: one connection, and everything that waits at the same time in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from bough.errors import Conflict
from bough.events.draft import Append
from bough.events.stores import faults
from bough.events.stores.batch import BatchResult
from bough.events.stores.hub import END, Hub
from bough.events.stores.relational.writing import AppendFollower, batch_of
from bough.events.stores.sqlite.connection import SQLITE_ERRORS, StoreFile, connect, store_error
from bough.events.stores.sqlite.reading import SqliteReading
from bough.events.stores.sqlite.turnstile import Turnstile
from bough.events.stores.sqlite.writing import SqliteWriting
from bough.types import Clock

Change = Callable[[SqliteWriting], Any]
Request = Append | Change

_LOOK_SECONDS = 0.02


class _Spoilt(Exception):
    """A request failed after it had written; the transaction it shared with others has to go."""


class GroupCommit:
    """Runs requests durably, many to a transaction, and tells watchers afterwards. Source: `BatchWork`.

    A request that fails never harms the others. Requests run without savepoints, which cost; when one fails after it
    wrote, the transaction is rolled back and run again with them; when the disk is full, each request runs alone.
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
        self._turnstile = Turnstile(file.path)
        self._log = SqliteWriting(connect(file, is_private=is_private), sql, clock, followers)
        self._watch = _Watch(self._log, hub)
        self._hub = hub

    def commit(self, requests: Sequence[Request]) -> list[BatchResult]:
        """Return an outcome for each request; those without an error are durable."""
        for run in (self._run_one, self._run_apart):
            try:
                return self._together(requests, run)
            except _Spoilt as spoilt:
                if len(requests) == 1:
                    return [BatchResult(error=self._meaning(spoilt.__cause__))]
        return [outcome for request in requests for outcome in self.commit([request])]

    def idle_seconds(self) -> float | None:
        """Other processes are looked for only while someone here watches."""
        return _LOOK_SECONDS if self._hub.has_watchers() else None

    def look(self) -> None:
        """Tell watchers what other processes wrote."""
        self._watch.look()

    def close(self) -> None:
        """Close the connection."""
        self._log.db.close()
        self._turnstile.close()

    def _together(self, requests: Sequence[Request], run: Callable[[Request], BatchResult]) -> list[BatchResult]:
        """Run requests in one transaction.

        Raises:
            _Spoilt: One failed after writing, or the transaction could not be committed; nothing is written.
        """
        self._log.news.clear()
        with self._turnstile.take_turn():
            try:
                self._log.db.execute("begin immediate")
            except SQLITE_ERRORS as error:
                return [BatchResult(error=self._meaning(error)) for _ in requests]
            outcomes = self._finish(requests, run)
        if self._log.scrubbed:
            self._log.db.execute("pragma wal_checkpoint(truncate)").fetchall()
            self._log.scrubbed = False
        self._tell(is_append=all(isinstance(request, Append) for request in requests))
        return outcomes

    def _tell(self, *, is_append: bool) -> None:
        if not self._hub.has_watchers():
            return
        self._hub.publish_commit(is_append=is_append)
        for cid, first, draft in self._log.news:
            if self._hub.watches(cid):
                self._hub.publish(cid, batch_of(first, draft))

    def _finish(self, requests: Sequence[Request], run: Callable[[Request], BatchResult]) -> list[BatchResult]:
        db = self._log.db
        try:
            outcomes = [run(request) for request in requests]
            self._log.flush()
            db.execute("commit")
        except BaseException as error:
            self._log.forget()
            if db.in_transaction:
                db.execute("rollback")
            if isinstance(error, (*SQLITE_ERRORS, Conflict)):
                raise _Spoilt from error
            raise
        return outcomes

    def _run_one(self, request: Request) -> BatchResult:
        log = self._log
        is_append = isinstance(request, Append)
        if not is_append or log.followers.wants(request.draft):
            log.flush()  # what fails from here on is this request's own fault, and no other one's events wait with it
        before, news = log.db.total_changes, len(log.news)
        try:
            return BatchResult(log.append(request) if is_append else request(log))
        except Exception as error:
            if log.db.total_changes != before or not log.db.in_transaction:
                raise _Spoilt from error
            del log.news[news:]
            return BatchResult(error=self._meaning(error))

    def _run_apart(self, request: Request) -> BatchResult:
        """Run a request so that its failure takes back what it wrote, and that alone."""
        db, news = self._log.db, len(self._log.news)
        db.execute("savepoint request")
        try:
            outcome = self._run_one(request)
            self._log.flush()
        except (_Spoilt, *SQLITE_ERRORS, Conflict) as error:
            if not db.in_transaction:
                raise
            self._log.forget()
            db.execute("rollback to request")
            del self._log.news[news:]
            return BatchResult(error=self._meaning(error.__cause__ if isinstance(error, _Spoilt) else error))
        else:
            return outcome
        finally:
            if db.in_transaction:
                db.execute("release request")

    def _meaning(self, error: BaseException | None) -> BaseException | None:
        return store_error(self._path, error) if isinstance(error, SQLITE_ERRORS) else error


class ReadOnlyWork:
    """Refuses every request, and tells watchers what other processes write. Source: `BatchWork`.

    Args:
        path: The store, as errors name it.
        file: What is read.
    """

    def __init__(self, path: Path, file: StoreFile, sql: dict[str, str], hub: Hub, clock: Clock) -> None:
        self._path = path
        self._log = SqliteReading(connect(file), sql, clock)
        self._watch = _Watch(self._log, hub)
        self._hub = hub

    def commit(self, requests: Sequence[Request]) -> list[BatchResult]:
        """Refuse all."""
        return [BatchResult(error=faults.read_only(self._path)) for _ in requests]

    def idle_seconds(self) -> float | None:
        """As `GroupCommit`."""
        return _LOOK_SECONDS if self._hub.has_watchers() else None

    def look(self) -> None:
        """Tell watchers what other processes wrote."""
        self._watch.look()

    def close(self) -> None:
        """Close the connection."""
        self._log.db.close()


class _Watch:
    """Notices what other processes write to conversations that someone here watches."""

    def __init__(self, log: SqliteReading, hub: Hub) -> None:
        self._log = log
        self._hub = hub
        self._version = -1
        self._heads: dict[UUID, int] = {}

    def look(self) -> None:
        """Tell watchers of conversations that another process changed. One pragma when none did."""
        if not self._hub.has_watchers():
            return
        watched = self._hub.list_watched()
        try:
            self._compare(watched)
        except SQLITE_ERRORS:
            for cid in watched:
                self._hub.publish(cid, None)  # they read the store themselves and meet the error where it can be told

    def _compare(self, watched: Sequence[UUID]) -> None:
        (version,) = self._log.db.execute("pragma data_version").fetchone()
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
