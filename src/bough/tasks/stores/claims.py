"""Claim a task: take the lease of its conversation and make it RUNNING, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeAlias
from uuid import UUID

from bough.errors import Conflict, NotFound
from bough.events.owner import is_gone
from bough.events.record import Lease
from bough.events.side_tables import Tables
from bough.tasks.model import Task
from bough.tasks.state import TaskState
from bough.tasks.stores.rows import FORMAT, Move, TaskRow, find_row, move, read_task

MAX_CANDIDATES = 16
"""How many candidates one claim tries."""

_SECOND = 1_000_000
_HELD_BACK = _SECOND // 2
"""How long the tasks of an owner are held back that already runs as many as allowed."""

MayStart: TypeAlias = Callable[[Tables, str | None], bool]
"""Returns whether the owner of a conversation may run one more task."""


class Claimed(NamedTuple):
    """A claimed task: its row, the task without events, and the lease."""

    row: TaskRow
    task: Task
    lease: Lease


def claim_by_id(
    tables: Tables, id: UUID, owner: str, ttl_seconds: float, may_start: MayStart | None = None
) -> Claimed | None:
    """Claim a task that is due, or take over a running one whose owner has died; return None otherwise."""
    row = find_row(tables, id)
    if row is None or row.format > FORMAT:
        return None
    if row.current is TaskState.PENDING:
        is_due = row.not_before is None or row.not_before <= tables.now()
        return _start(tables, row, owner, ttl_seconds, may_start) if is_due else None
    if row.current is TaskState.RUNNING:
        return _take_over(tables, row, owner, ttl_seconds)
    return None


def claim_next(
    tables: Tables, queues: Collection[str], owner: str, ttl_seconds: float, may_start: MayStart | None = None
) -> Claimed | None:
    """Claim the next task of some queues, by priority, then age; return None if none can be claimed.

    Args:
        may_start: Holds back the tasks of an owner for which it returns False. Not called for tasks with a parent.
    """
    tables.run("task.make_ready", now=tables.now())
    tried: set[int] = set()
    while len(tried) < MAX_CANDIDATES:
        row = _best(tables, queues, tried)
        if row is None:
            return None
        tried.add(row.k)
        if (claimed := _start(tables, row, owner, ttl_seconds, may_start)) is not None:
            return claimed
    return None


def look_next(tables: Tables, queues: Collection[str] | None = None) -> TaskRow | None:
    """Return the row that a claim would take next from `queues`; None means all. Reads one index row per queue."""
    chosen = [row[0] for row in tables.run("task.ready_queues")] if queues is None else queues
    return _best(tables, chosen, set())


def take_lease(tables: Tables, cid: UUID, owner: str, ttl_seconds: float) -> Lease | None:
    """Take the lease of a conversation, also from an owner that has died; return None if a live one holds it.

    Raises:
        NotFound: There is no such conversation.
    """
    try:
        return tables.acquire(cid, owner, ttl_seconds)
    except Conflict as conflict:
        holder = str(conflict.details.get("owner", ""))
        if not is_gone(holder):
            return None
        # First take it in the dead owner's name for 0 seconds, which fences whatever that owner left running. Then take
        # it in this owner's name: a lease in a dead owner's name looks free to every other worker.
        tables.acquire(cid, holder, 0)
        return tables.acquire(cid, owner, ttl_seconds)


def seize_lease(tables: Tables, cid: UUID, owner: str, ttl_seconds: float = 1.0) -> Lease:
    """Take the lease whichever process holds it, so that the log refuses all further appends of the holder."""
    try:
        return tables.acquire(cid, owner, ttl_seconds)
    except Conflict as conflict:
        return tables.acquire(cid, str(conflict.details["owner"]), ttl_seconds)


def _best(tables: Tables, queues: Collection[str], tried: set[int]) -> TaskRow | None:
    """Return the first untried row by priority, then age: the best of the queues' first rows."""
    fronts: list[tuple[int, int, bytes]] = []
    for queue in queues:
        rows = tables.run("task.ready", queue=queue, format=FORMAT, limit=1 + len(tried))
        fronts += [(-priority, k, id) for k, priority, id in rows if k not in tried][:1]
    return find_row(tables, UUID(bytes=min(fronts)[2])) if fronts else None


def _start(tables: Tables, row: TaskRow, owner: str, ttl_seconds: float, may_start: MayStart | None) -> Claimed | None:
    try:
        if may_start is not None and row.parent is None:
            tenant = tables.get(row.conversation_id).owner
            if not may_start(tables, tenant):
                tables.run("task.hold_back", owner=tenant, not_before=tables.now() + _HELD_BACK)
                return None
        lease = take_lease(tables, row.conversation_id, owner, ttl_seconds)
    except NotFound:
        tables.run("task.forget", k=row.k)  # its conversation is deleted: kept, the row would head its queue for ever
        return None
    if lease is None:  # the conversation runs without a task; put off, or this row would block its queue until then
        tables.run("task.put_off", k=row.k, not_before=tables.now() + _SECOND)
        return None
    moved = move(
        tables, row, TaskState.RUNNING, Move(worker=owner), generation=lease.generation, attempts=row.attempts + 1,
        job=row.job,
    )  # fmt: skip
    return Claimed(moved, read_task(tables, moved), lease)


def _take_over(tables: Tables, row: TaskRow, owner: str, ttl_seconds: float) -> Claimed | None:
    lease = take_lease(tables, row.conversation_id, owner, ttl_seconds)
    if lease is None:
        return None
    # Compare-and-set on the version: a task that ended or was answered meanwhile is not counted as taken over.
    updated = tables.one("task.take_over", k=row.k, version=row.version)
    if updated is None:
        tables.release(lease)
        return None
    row = row._replace(attempts=updated[0])
    if row.attempts > row.max_attempts:
        # A task that kills its worker each time must not be taken over for ever.
        error = f"its worker died {row.max_attempts} times"
        move(tables, row, TaskState.FAILED, Move(worker=owner, error=error, code="unavailable"),
             generation=lease.generation)  # fmt: skip
        tables.release(lease)
        return None
    return Claimed(row, read_task(tables, row), lease)
