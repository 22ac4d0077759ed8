"""Appends from everywhere in the process, gathered into one statement a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg import Error
from psycopg.errors import UniqueViolation
from psycopg_pool import PoolTimeout

from bough.errors import BoughError
from bough.events.draft import Append
from bough.events.record import microseconds
from bough.events.stores import faults
from bough.events.stores.batch import Answered
from bough.events.stores.hub import Hub
from bough.events.stores.postgres.connection import Pool, discard, is_lost, store_error
from bough.events.stores.postgres.group import Group, parameters_of, refusal, rounds
from bough.types import Clock


class BatchedAppend:
    """Writes batches of appends. Source: `BatchWork`.

    Appends to one conversation with the same conditions are one row of the statement. One that must be judged after
    another of the same conversation waits for the next statement. A batch the server refuses whole is repeated one
    by one, so that a bad append never harms another.
    """

    def __init__(
        self, pool: Pool, url: str, sql: Mapping[str, str], hub: Hub, clock: Clock, channel: str, pids: set[int]
    ) -> None:
        self._pool = pool
        self._url = url
        self._statement = sql["append"].encode()
        self._statement_for_one = sql["append_one"].encode()
        self._hub = hub
        self._clock = clock
        self._channel = channel
        self._pids = pids

    def commit(self, requests: Sequence[Append]) -> list[Answered]:
        """Return an outcome for each append; those without an error are durable."""
        outcomes: dict[int, Answered] = {}
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

    def _write(self, groups: list[Group]) -> dict[int, Answered]:
        try:
            judged = self._write_one(groups) or self._write_all(groups)
        except UniqueViolation as error:
            return self._apart(groups) or {groups[0][0][0]: _because(faults.event_exists(groups[0][0][1].cid), error)}
        except (Error, PoolTimeout) as error:
            return self._apart(groups, error) or {
                number: _because(store_error(self._url, error), error) for group in groups for number, _ in group
            }
        outcomes: dict[int, Answered] = {}
        for group, (head, current, ok) in zip(groups, judged, strict=True):
            outcomes |= self._taken(group, head) if ok else _refuse_all(group, head, current)
        return outcomes

    def _apart(self, groups: list[Group], error: BaseException | None = None) -> dict[int, Answered]:
        """Repeat appends one by one; nothing when there is just one, or the connection is what failed."""
        singles = [[single] for group in groups for single in group]
        if len(singles) == 1 or (error is not None and store_error(self._url, error).code == "store_error"):
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
        return [(head - 1, None, True) for head, _ in self._execute(self._statement_for_one, given)]

    def _write_all(self, groups: list[Group]) -> list[Any]:
        return [
            row[:3]
            for row in self._execute(
                self._statement, parameters_of(groups, microseconds(self._clock.now()), self._channel)
            )
        ]

    def _execute(self, statement: bytes, parameters: Mapping[str, Any]) -> list[Any]:
        with self._pool.connection() as db:
            self._pids.add(db.info.backend_pid)
            try:
                return db.execute(statement, parameters, binary=True).fetchall()
            except Error as error:
                lost = is_lost(error, db)
                failed = error
        if lost:
            discard(self._pool)
        raise failed

    def _taken(self, group: Group, head: int) -> dict[int, Answered]:
        self._hub.publish_commit()
        outcomes: dict[int, Answered] = {}
        for number, append in group:
            if self._hub.watches(append.cid):
                self._hub.publish(append.cid, append.draft.stored(head))
            head += len(append.draft.rows)
            outcomes[number] = Answered(head)
        return outcomes


def _refuse_all(group: Group, head: int | None, current: int | None) -> dict[int, Answered]:
    return {number: Answered(error=refusal(append, head, current)) for number, append in group}


def _because(error: BoughError, cause: BaseException) -> Answered:
    error.__cause__ = cause
    return Answered(error=error)
