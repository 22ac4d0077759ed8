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
"""How long the tasks of an owner who already runs as many as allowed are held back."""

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
        row = _find_first_row(tables, queues, tried)
        if row is None:
            return None
        tried.add(row.k)
        if (claimed := _start(tables, row, owner, ttl_seconds, may_start)) is not None:
            return claimed
    return None


def find_next_row(tables: Tables, queues: Collection[str] | None = None) -> TaskRow | None:
    """Return the row that the next claim would take, or None. Reads one index row per queue.

    Args:
        queues: None looks in all queues.
    """
    chosen = [row[0] for row in tables.run("task.ready_queues")] if queues is None else queues
    return _find_first_row(tables, chosen, set())


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
        # Taking the lease as the dead owner for 0 seconds fences any process that still runs for that owner. The second
        # acquisition is for this owner, since other workers would consider a lease of a dead owner free.
        tables.acquire(cid, holder, 0)
        return tables.acquire(cid, owner, ttl_seconds)


def seize_lease(tables: Tables, cid: UUID, owner: str, ttl_seconds: float = 1.0) -> Lease:
    """Take the lease whichever process holds it, so that the log refuses all further appends of the holder."""
    try:
        return tables.acquire(cid, owner, ttl_seconds)
    except Conflict as conflict:
        return tables.acquire(cid, str(conflict.details["owner"]), ttl_seconds)


def _find_first_row(tables: Tables, queues: Collection[str], tried: set[int]) -> TaskRow | None:
    """Return the first ready row of all queues that is not in `tried`, by priority, then age; None if there is none."""
    first_of_queues: list[tuple[int, int, bytes]] = []
    for queue in queues:
        rows = tables.run("task.ready", queue=queue, format=FORMAT, limit=1 + len(tried))
        first_of_queues += [(-priority, k, id) for k, priority, id in rows if k not in tried][:1]
    if not first_of_queues:
        return None
    _, _, id = min(first_of_queues)
    return find_row(tables, UUID(bytes=id))


def _start(tables: Tables, row: TaskRow, owner: str, ttl_seconds: float, may_start: MayStart | None) -> Claimed | None:
    """Claim a pending task; return None if it is held back, put off or its conversation was deleted."""
    try:
        if may_start is not None and row.parent is None:
            tenant = tables.get(row.conversation_id).owner
            if not may_start(tables, tenant):
                tables.run("task.hold_back", owner=tenant, not_before=tables.now() + _HELD_BACK)
                return None
        lease = take_lease(tables, row.conversation_id, owner, ttl_seconds)
    except NotFound:
        # The conversation was deleted. Without this, the row would stay first in its queue for ever.
        tables.run("task.forget", k=row.k)
        return None
    if lease is None:
        # The conversation runs without a task. Until that run ends, the row must not block its queue.
        tables.run("task.put_off", k=row.k, not_before=tables.now() + _SECOND)
        return None
    moved = move(
        tables, row, TaskState.RUNNING, Move(worker=owner), generation=lease.generation, attempts=row.attempts + 1,
        job=row.job,
    )  # fmt: skip
    return Claimed(moved, read_task(tables, moved), lease)


def _take_over(tables: Tables, row: TaskRow, owner: str, ttl_seconds: float) -> Claimed | None:
    """Claim a running task whose owner has died; return None if the owner lives or the attempts are used up."""
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
