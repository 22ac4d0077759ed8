"""Write the appends of a process in batches, with one statement per batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple
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
from bough.events.stores.postgres.group import (
    Group,
    append_parameters,
    group_appends,
    make_refusal,
)
from bough.types import Clock


class _Verdict(NamedTuple):
    """What a statement did with a group of appends.

    Attributes:
        head: The head before the group; None if there is no conversation.
        generation: The stored generation; None if it is not known.
        is_accepted: Whether the group was written.
        is_intact: Whether the row of the conversation matches its checksum.
    """

    head: int | None
    generation: int | None
    is_accepted: bool
    is_intact: bool | None


class _ConnectionLost(Exception):
    """The connection was lost before the response; the statement may or may not have been applied."""

    def __init__(self, cause: Error, expired: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.expired = expired


class BatchedAppend:
    """Writes batches of appends. See `BatchWork`.

    Appends to one conversation with the same conditions are one row of the statement. An append whose condition depends
    on an earlier one of the batch goes into the next statement. If the server refuses a whole statement, its appends
    are repeated one by one, so that an invalid append never affects others. If the answer is lost, the appends are
    looked up by their event ids, and missing ones are sent once more; if the first statement arrives late, its unique
    event ids prevent a second copy.
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
        self._deadline = 0.0

    def commit(self, requests: Sequence[Append]) -> list[BatchResult]:
        """Return a result for each append. Those without an error are durable."""
        outcomes: dict[int, BatchResult] = {}
        self._deadline = monotonic() + CALL_SECONDS
        for groups in group_appends(requests):
            outcomes |= self._write(groups)
        return [outcomes[number] for number in range(len(requests))]

    def idle_seconds(self) -> float | None:
        """Return None: the listener looks for other processes' commits."""
        return None

    def poll(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the store closes the pool."""

    def _write(self, groups: list[Group], *, is_repeated: bool = False) -> dict[int, BatchResult]:
        """Write groups in one statement.

        Args:
            is_repeated: Whether they were sent before and may have been applied.
        """
        try:
            verdicts = self._write_one(groups) or self._write_all(groups)
        except UniqueViolation as error:
            if is_repeated:  # the first statement may have been applied: then the ids are these appends' own
                return self._resolve_repeated(groups, error)
            first = groups[0][0]
            return self._write_one_by_one(groups) or {
                first.number: _fail_with(faults.event_exists(first.append.cid), error)
            }
        except _ConnectionLost as lost:
            return self._fail(groups, lost) if is_repeated else self._repeat(groups, lost)
        except (Error, PoolTimeout) as error:
            failed = {} if isinstance(error, PoolTimeout) else self._write_one_by_one(groups)
            return failed or {
                number: _fail_with(store_error(self._url, error), error) for group in groups for number, _ in group
            }
        outcomes: dict[int, BatchResult] = {}
        refused: list[Group] = []
        for group, verdict in zip(groups, verdicts, strict=True):
            outcomes |= self._apply_verdict(group, verdict)
            if not verdict.is_accepted:
                refused.append(group)
        if is_repeated and refused:
            # The first statement may have been applied late, which makes the server refuse the second.
            outcomes |= self._find(refused)
        return outcomes

    def _repeat(self, groups: list[Group], lost: _ConnectionLost) -> dict[int, BatchResult]:
        """Look up groups whose response was lost, and send the missing appends once more."""
        try:
            # Look before resending: an append with `expected_head` would be refused by its own first copy.
            outcomes = self._find(groups)
            missing = _without(groups, outcomes)
            return outcomes | (self._write(missing, is_repeated=True) if missing else {})
        except (_ConnectionLost, Error, PoolTimeout):
            return self._fail(groups, lost)

    def _resolve_repeated(self, groups: list[Group], error: UniqueViolation) -> dict[int, BatchResult]:
        """Return results for groups that were sent twice and have a stored event id: their own or another append's."""
        outcomes = self._find(groups)
        for single in [[single] for group in _without(groups, outcomes) for single in group]:
            try:
                (verdict,) = self._write_all([single])
            except UniqueViolation:
                outcomes[single[0].number] = _fail_with(faults.event_exists(single[0].append.cid), error)
            else:
                outcomes |= self._apply_verdict(single, verdict)
        return outcomes

    def _find(self, groups: list[Group]) -> dict[int, BatchResult]:
        """Return results for the appends that are stored. They are atomic, so the first event id of each is enough."""
        singles = {UUID(bytes=single.append.draft.rows[0].id): single for group in groups for single in group}
        outcomes: dict[int, BatchResult] = {}
        for id, cid, seq in self._execute(self._find_statement, {"ids": list(singles)}):
            single = singles[id]
            if cid == single.append.cid:
                outcomes |= self._complete([single], seq)
        return outcomes

    def _fail(self, groups: list[Group], lost: _ConnectionLost) -> dict[int, BatchResult]:
        """Return the error of a lost connection for each append."""
        error = make_timeout_error(self._url) if lost.expired else store_error(self._url, lost.cause)
        return {number: _fail_with(error, lost.cause) for group in groups for number, _ in group}

    def _write_one_by_one(self, groups: list[Group]) -> dict[int, BatchResult]:
        """Repeat appends one by one; return nothing if there is only one."""
        singles = [[single] for group in groups for single in group]
        if len(singles) == 1:
            return {}
        return {number: outcome for single in singles for number, outcome in self._write([single]).items()}

    def _write_one(self, groups: list[Group]) -> list[_Verdict]:
        """Write a batch of a single event with a statement that takes a fourth of the time.

        Returns:
            Nothing if the batch is larger or the append is refused; `_write_all` then decides.
        """
        _, append = groups[0][0]
        if len(groups) > 1 or len(groups[0]) > 1 or len(append.draft.rows) != 1 or append.draft.changes:
            return []
        (row,) = append.draft.rows
        event = {"id": UUID(bytes=row.id), "kind": row.kind, "ts": row.ts, "data": row.data, "digest": row.checksum}
        conditions = {"cid": append.cid, "generation": append.generation, "expected": append.expected_head}
        notification = {"channel": self._channel, "ids": str(append.cid)}
        usage = dict(zip(("requests", "inputs", "outputs", "costs"), append.draft.usage.columns, strict=True))
        parameters = event | usage | conditions | notification | {"now": microseconds(self._clock.now())}
        return [_Verdict(head - 1, None, True, True) for head, _ in self._execute(self._statement_for_one, parameters)]

    def _write_all(self, groups: list[Group]) -> list[_Verdict]:
        """Write groups in one statement, and return a verdict for each."""
        parameters = append_parameters(groups, microseconds(self._clock.now()), self._channel)
        return [_Verdict(*row[:4]) for row in self._execute(self._statement, parameters)]

    def _execute(self, statement: bytes, parameters: Mapping[str, Any]) -> list[Any]:
        """Return the rows of a statement.

        Raises:
            _ConnectionLost: The connection was lost; the statement may or may not have been applied.
            Error: The server refused the statement.
            PoolTimeout: No connection is available.
        """
        remaining = self._deadline - monotonic()
        if remaining <= 0:
            raise PoolTimeout(f"no time is left of {CALL_SECONDS:.0f} s")
        with self._pool.connection(min(CONNECT_SECONDS, remaining)) as db:
            # Before executing: the listener ignores notifications of these processes, which were published here.
            self._pids.add(db.info.backend_pid)
            with self._watchdog.watch(db, min(ANSWER_SECONDS, remaining)) as watched:
                try:
                    return db.execute(statement, parameters, binary=True).fetchall()
                except Error as error:
                    if not is_lost(error, db):
                        raise
                    lost = _ConnectionLost(error, watched.expired)
        self._pool.drain()  # the other connections most likely are lost too
        raise lost

    def _apply_verdict(self, group: Group, verdict: _Verdict) -> dict[int, BatchResult]:
        """Return the results of a group that was written or refused."""
        if verdict.is_accepted and verdict.head is not None:
            return self._complete(group, verdict.head)
        return {
            number: BatchResult(error=make_refusal(append, verdict.head, verdict.generation, verdict.is_intact))
            for number, append in group
        }

    def _complete(self, group: Group, head: int) -> dict[int, BatchResult]:
        self._hub.publish_commit(is_addition=True)
        outcomes: dict[int, BatchResult] = {}
        for number, append in group:
            if self._hub.is_watched(append.cid):
                self._hub.publish(append.cid, append.draft.make_stored(head))
            head += len(append.draft.rows)
            outcomes[number] = BatchResult(head)
        return outcomes


def _without(groups: list[Group], finished: Collection[int]) -> list[Group]:
    """Return groups without the appends that have results."""
    unfinished = [[single for single in group if single.number not in finished] for group in groups]
    return [group for group in unfinished if group]


def _fail_with(error: BoughError, cause: BaseException) -> BatchResult:
    error.__cause__ = cause
    return BatchResult(error=error)
