"""Claiming a task: the lease of its conversation and the transition to RUNNING, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeAlias
from uuid import UUID

from bough.errors import Conflict, NotFound
from bough.events.beside import Tables
from bough.events.owner import is_gone
from bough.events.record import Lease
from bough.tasks.model import Task
from bough.tasks.state import TaskState
from bough.tasks.stores.rows import FORMAT, Move, TaskRow, find_row, move, read_task

MAX_CANDIDATES = 16
"""How many candidates one claim looks at."""

_SECOND = 1_000_000
_HELD_BACK = _SECOND // 2
"""How long the tasks of an owner wait who runs as many as it may."""

MayStart: TypeAlias = Callable[[Tables, str | None], bool]
"""Says whether the owner of a conversation may have one more task running."""


class Claimed(NamedTuple):
    """A claimed task: its row, the task without events, and the lease."""

    row: TaskRow
    task: Task
    lease: Lease


def claim_by_id(
    tables: Tables, id: UUID, owner: str, ttl_seconds: float, may_start: MayStart | None = None
) -> Claimed | None:
    """Claim a task that may run now, or take a running one over whose owner is gone; None where that is not so."""
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
    """Claim the next task of some queues, by priority, then age; None where nothing can be claimed.

    Args:
        may_start: Holds back the tasks of an owner that runs as many as it may; tasks with a parent are never held.
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
    """Return the row that would be claimed next from some queues, None: from all. One row of an index a queue."""
    chosen = [row[0] for row in tables.run("task.ready_queues")] if queues is None else queues
    return _best(tables, chosen, set())


def take_lease(tables: Tables, cid: UUID, owner: str, ttl_seconds: float) -> Lease | None:
    """Take the lease of a conversation, from an owner that is gone too; None where a living one holds it.

    Raises:
        NotFound: There is no such conversation.
    """
    try:
        return tables.acquire(cid, owner, ttl_seconds)
    except Conflict as held:
        holder = str(held.details.get("owner", ""))
        if not is_gone(holder):
            return None
        # In the gone owner's name it is ended, which fences off whatever it left behind; held it must be in this one:
        # a lease in a gone owner's name looks free to every other worker.
        tables.acquire(cid, holder, 0)
        return tables.acquire(cid, owner, ttl_seconds)


def seize_lease(tables: Tables, cid: UUID, owner: str, ttl_seconds: float = 1.0) -> Lease:
    """Take the lease no matter which process holds it, so that nothing its holder appends from now on is accepted."""
    try:
        return tables.acquire(cid, owner, ttl_seconds)
    except Conflict as held:
        return tables.acquire(cid, str(held.details["owner"]), ttl_seconds)


def _best(tables: Tables, queues: Collection[str], tried: set[int]) -> TaskRow | None:
    """Return the best row that was not tried yet: each queue's front, then the best of these."""
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
        tables.run("task.forget", k=row.k)
        return None
    if lease is None:  # somebody runs the conversation without a task
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
    taken = tables.one("task.take_over", k=row.k, version=row.version)
    if taken is None:
        tables.release(lease)
        return None
    row = row._replace(attempts=taken[0])
    if row.attempts > row.max_attempts:
        died = f"its worker died {row.max_attempts} times"
        move(tables, row, TaskState.FAILED, Move(worker=owner, error=died, code="unavailable"),
             generation=lease.generation)  # fmt: skip
        tables.release(lease)
        return None
    return Claimed(row, read_task(tables, row), lease)
