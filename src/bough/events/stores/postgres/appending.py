"""Appends from everywhere in the process, gathered into one statement a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Any
from uuid import UUID

from psycopg import Error
from psycopg.errors import UniqueViolation
from psycopg_pool import PoolTimeout

from bough.errors import BoughError
from bough.events.draft import Append
from bough.events.record import microseconds
from bough.events.stores import faults
from bough.events.stores.batch import BatchResult
from bough.events.stores.hub import Hub
from bough.events.stores.postgres.bounds import ANSWER_SECONDS, CALL_SECONDS, CONNECT_SECONDS, Watchdog
from bough.events.stores.postgres.connection import Pool, is_lost, make_timeout_error, store_error
from bough.events.stores.postgres.group import Group, parameters_of, refusal, rounds
from bough.types import Clock


class _Lost(Exception):
    """A connection went while an answer was waited for."""

    def __init__(self, cause: Error, expired: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.expired = expired


class BatchedAppend:
    """Writes batches of appends. Source: `BatchWork`.

    Appends to one conversation with the same conditions are one row of the statement. One that must be judged after
    another of the same conversation waits for the next statement. A batch the server refuses whole is repeated one
    by one, so that a bad append never harms another. One whose answer was lost is looked for by the ids of its events,
    and what is not there is sent once more: should the first one arrive late, its ids are taken.
    """

    def __init__(
        self,
        pool: Pool,
        url: str,
        sql: Mapping[str, str],
        hub: Hub,
        clock: Clock,
        channel: str,
        pids: set[int],
        watchdog: Watchdog,
    ) -> None:
        self._pool = pool
        self._url = url
        self._statement = sql["append"].encode()
        self._statement_for_one = sql["append_one"].encode()
        self._find_statement = sql["found_events"].encode()
        self._watchdog = watchdog
        self._hub = hub
        self._clock = clock
        self._channel = channel
        self._pids = pids
        self._ends = 0.0

    def commit(self, requests: Sequence[Append]) -> list[BatchResult]:
        """Return an outcome for each append; those without an error are durable."""
        outcomes: dict[int, BatchResult] = {}
        self._ends = monotonic() + CALL_SECONDS
        for groups in rounds(requests):
            outcomes |= self._write(groups)
        return [outcomes[number] for number in range(len(requests))]

    def idle_seconds(self) -> float | None:
        """There is nothing to look for; the listener does that."""
        return None

    def look(self) -> None:
        """Nothing to look for."""

    def close(self) -> None:
        """The pool belongs to the store."""

    def _write(self, groups: list[Group], *, is_repeated: bool = False) -> dict[int, BatchResult]:
        """Write groups in one statement.

        Args:
            is_repeated: They were sent before, and may have arrived all the same.
        """
        try:
            judged = self._write_one(groups) or self._write_all(groups)
        except UniqueViolation as error:
            if is_repeated:
                return self._look_again(groups, error)
            return self._apart(groups) or {groups[0][0][0]: _because(faults.event_exists(groups[0][0][1].cid), error)}
        except _Lost as lost:
            return self._fail(groups, lost) if is_repeated else self._repeat(groups, lost)
        except (Error, PoolTimeout) as error:
            failed = {} if isinstance(error, PoolTimeout) else self._apart(groups)
            return failed or {
                number: _because(store_error(self._url, error), error) for group in groups for number, _ in group
            }
        outcomes: dict[int, BatchResult] = {}
        refused: list[Group] = []
        for group, (head, current, ok, intact) in zip(groups, judged, strict=True):
            outcomes |= self._find_taken(group, head) if ok else _refuse_all(group, head, current, intact)
            refused += [] if ok else [group]
        # What was sent first may have arrived between the two, and be why the second is refused.
        return outcomes | (self._find(refused) if is_repeated and refused else {})

    def _repeat(self, groups: list[Group], lost: _Lost) -> dict[int, BatchResult]:
        """Return what came of groups whose answer was lost; what did not arrive is sent once more."""
        try:
            outcomes = self._find(groups)
            left = _without(groups, outcomes)
            return outcomes | (self._write(left, is_repeated=True) if left else {})
        except (_Lost, Error, PoolTimeout):
            return self._fail(groups, lost)

    def _look_again(self, groups: list[Group], error: UniqueViolation) -> dict[int, BatchResult]:
        """Return what came of groups sent twice, of which an event is stored: the first time, or by somebody else."""
        outcomes = self._find(groups)
        for single in [[single] for group in _without(groups, outcomes) for single in group]:
            try:
                ((head, current, ok, intact),) = self._write_all([single])
            except UniqueViolation:
                outcomes[single[0][0]] = _because(faults.event_exists(single[0][1].cid), error)
            else:
                outcomes |= self._find_taken(single, head) if ok else _refuse_all(single, head, current, intact)
        return outcomes

    def _find(self, groups: list[Group]) -> dict[int, BatchResult]:
        """Return the appends that the log has already: each as a whole, as it was sent."""
        singles = {
            UUID(bytes=append.draft.rows[0].id): (number, append) for group in groups for number, append in group
        }
        outcomes: dict[int, BatchResult] = {}
        for id, cid, seq in self._execute(self._find_statement, {"ids": list(singles)}):
            number, append = singles[id]
            if cid == append.cid:
                outcomes |= self._find_taken([(number, append)], seq)
        return outcomes

    def _fail(self, groups: list[Group], lost: _Lost) -> dict[int, BatchResult]:
        error = make_timeout_error(self._url) if lost.expired else store_error(self._url, lost.cause)
        return {number: _because(error, lost.cause) for group in groups for number, _ in group}

    def _apart(self, groups: list[Group]) -> dict[int, BatchResult]:
        """Repeat appends one by one; nothing when there is just one."""
        singles = [[single] for group in groups for single in group]
        if len(singles) == 1:
            return {}
        return {number: outcome for single in singles for number, outcome in self._write([single]).items()}

    def _write_one(self, groups: list[Group]) -> list[Any]:
        """Write an event that is alone, in a fourth of the time; return nothing when it is not, or is refused."""
        _, append = groups[0][0]
        if len(groups) > 1 or len(groups[0]) > 1 or len(append.draft.rows) != 1 or append.draft.changes:
            return []
        (row,) = append.draft.rows
        given = row._asdict() | {"id": UUID(bytes=row.id), "cid": append.cid, "now": microseconds(self._clock.now())}
        conditions = {"generation": append.generation, "expected": append.expected_head}
        given |= conditions | {"channel": self._channel, "ids": str(append.cid)}
        return [(head - 1, None, True, True) for head, _ in self._execute(self._statement_for_one, given)]

    def _write_all(self, groups: list[Group]) -> list[Any]:
        return [
            row[:4]
            for row in self._execute(
                self._statement, parameters_of(groups, microseconds(self._clock.now()), self._channel)
            )
        ]

    def _execute(self, statement: bytes, parameters: Mapping[str, Any]) -> list[Any]:
        """Return the rows of a statement.

        Raises:
            _Lost: The connection is gone; nobody knows what was done.
            Error: The server refused it.
            PoolTimeout: There is no connection.
        """
        left = self._ends - monotonic()
        if left <= 0:
            raise PoolTimeout(f"no time is left of {CALL_SECONDS:.0f} s")
        with self._pool.connection(min(CONNECT_SECONDS, left)) as db:
            self._pids.add(db.info.backend_pid)
            with self._watchdog.watch(db, min(ANSWER_SECONDS, left)) as watched:
                try:
                    return db.execute(statement, parameters, binary=True).fetchall()
                except Error as error:
                    if not is_lost(error, db):
                        raise
                    lost = _Lost(error, watched.expired)
        self._pool.drain()  # the others are as dead, most likely
        raise lost

    def _find_taken(self, group: Group, head: int) -> dict[int, BatchResult]:
        self._hub.publish_commit(is_append=True)
        outcomes: dict[int, BatchResult] = {}
        for number, append in group:
            if self._hub.watches(append.cid):
                self._hub.publish(append.cid, append.draft.make_stored(head))
            head += len(append.draft.rows)
            outcomes[number] = BatchResult(head)
        return outcomes


def _refuse_all(group: Group, head: int | None, current: int | None, intact: bool | None) -> dict[int, BatchResult]:
    return {number: BatchResult(error=refusal(append, head, current, intact)) for number, append in group}


def _without(groups: list[Group], known: Collection[int]) -> list[Group]:
    """Return groups without the appends whose outcome is known."""
    left = [[single for single in group if single[0] not in known] for group in groups]
    return [group for group in left if group]


def _because(error: BoughError, cause: BaseException) -> BatchResult:
    error.__cause__ = cause
    return BatchResult(error=error)
