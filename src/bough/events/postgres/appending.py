"""Appends from everywhere in the process, gathered into one statement a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg import Error
from psycopg.errors import UniqueViolation
from psycopg_pool import PoolTimeout

from bough.errors import BoughError
from bough.events import faults
from bough.events.batch import Outcome
from bough.events.draft import Append, Draft, dump
from bough.events.hub import Hub
from bough.events.postgres.connection import Pool, discard, is_lost, store_error
from bough.events.postgres.writing import columns
from bough.events.record import microseconds
from bough.types import Clock

Group = list[tuple[int, Append]]
"""Appends to one conversation that are judged together, with their numbers in the batch."""


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

    def commit(self, requests: Sequence[Append]) -> list[Outcome]:
        """Return an outcome for each append; those without an error are durable."""
        outcomes: dict[int, Outcome] = {}
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

    def _write(self, groups: list[Group]) -> dict[int, Outcome]:
        try:
            judged = self._write_one(groups) or self._write_all(groups)
        except UniqueViolation as error:
            return self._apart(groups) or {groups[0][0][0]: _because(faults.event_exists(groups[0][0][1].cid), error)}
        except (Error, PoolTimeout) as error:
            return self._apart(groups, error) or {
                number: _because(store_error(self._url, error), error) for group in groups for number, _ in group
            }
        outcomes: dict[int, Outcome] = {}
        for group, (head, current, ok) in zip(groups, judged, strict=True):
            outcomes |= self._taken(group, head) if ok else _refused(group, head, current)
        return outcomes

    def _apart(self, groups: list[Group], error: BaseException | None = None) -> dict[int, Outcome]:
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
        return [row[:3] for row in self._execute(self._statement, self._parameters(groups))]

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

    def _parameters(self, groups: list[Group]) -> dict[str, Any]:
        joined = [_joined(group) for group in groups]
        events = [columns(draft) | {"numbers": [n] * len(draft.rows)} for n, draft in enumerate(joined, 1)]
        names = ("numbers", "places", "event_ids", "kinds", "times", "payloads", "digests")
        changes = [draft.changes for draft in joined]
        return {
            "ids": [group[0][1].cid for group in groups],
            "generations": [group[0][1].generation for group in groups],
            "expected": [group[0][1].expected_head for group in groups],
            "counts": [len(draft.rows) for draft in joined],
            "statuses": [change.get("status") for change in changes],
            "set_titles": ["title" in change for change in changes],
            "titles": [change.get("title") for change in changes],
            "set_tags": ["tags" in change for change in changes],
            "tags": [dump(change.get("tags", {})) for change in changes],
            "now": microseconds(self._clock.now()),
            "channel": self._channel,
            **{name: [item for part in events for item in part[name]] for name in names},
        }

    def _taken(self, group: Group, head: int) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        for number, append in group:
            if self._hub.watches(append.cid):
                self._hub.publish(append.cid, append.draft.stored(head))
            head += len(append.draft.rows)
            outcomes[number] = Outcome(head)
        return outcomes


def rounds(requests: Sequence[Append]) -> list[list[Group]]:
    """Return appends in as few statements as their order and conditions allow."""
    found: list[dict[UUID, Group]] = []
    last: dict[UUID, int] = {}
    for number, append in enumerate(requests):
        at = last.get(append.cid)
        if at is not None and _joins(found[at][append.cid], append):
            found[at][append.cid].append((number, append))
            continue
        at = 0 if at is None else at + 1
        if at == len(found):
            found.append({})
        found[at][append.cid] = [(number, append)]
        last[append.cid] = at
    return [list(groups.values()) for groups in found]


def _joins(group: Group, append: Append) -> bool:
    first = group[0][1]
    return append.expected_head is None and first.expected_head is None and append.generation == first.generation


def _joined(group: Group) -> Draft:
    rows = tuple(row for _, append in group for row in append.draft.rows)
    changes: dict[str, Any] = {}
    for _, append in group:
        changes |= append.draft.changes
    return Draft(rows, changes)


def _refused(group: Group, head: int | None, current: int | None) -> dict[int, Outcome]:
    return {number: Outcome(error=_refusal(append, head, current)) for number, append in group}


def _refusal(append: Append, head: int | None, current: int | None) -> BoughError:
    if head is None or current is None:
        return faults.no_conversation(append.cid)
    if append.generation is not None and append.generation != current:
        return faults.fenced(append.cid, append.generation, current)
    return faults.moved_on(append.cid, append.expected_head or 0, head)


def _because(error: BoughError, cause: BaseException) -> Outcome:
    error.__cause__ = cause
    return Outcome(error=error)
