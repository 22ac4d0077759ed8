"""End claims, and stop tasks from outside their run: cancellation and timeout."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from bough.events.model import StateChanged
from bough.events.record import Lease
from bough.events.side_tables import Tables
from bough.tasks.state import TaskState
from bough.tasks.stores.claims import seize_lease
from bough.tasks.stores.rows import Enqueue, Move, TaskRow, find_live_row, find_row, move

Withdraw = Callable[[Tables, int], None]
"""Cancels a job of an engine, inside the transaction."""


def end_claim(
    tables: Tables,
    row: TaskRow,
    lease: Lease,
    to: TaskState,
    details: Move,
    *,
    not_before: int | None = None,
    counts: bool = True,
    job: int | None = None,
    enqueue: Enqueue | None = None,
) -> TaskRow:
    """Make the transition that ends a claim, and release its lease.

    Args:
        counts: Whether the claim counts as an attempt. A run that was handed back or asked for input does not.
        enqueue: Delivers a parent that waited for this task.

    Raises:
        Conflict: The claim was lost.
    """
    attempts = row.attempts if counts else max(row.attempts - 1, 0)
    moved = move(
        tables, row, to, details, generation=lease.generation, attempts=attempts, not_before=not_before, job=job,
        enqueue=enqueue,
    )  # fmt: skip
    tables.release(lease)
    return moved


def find_woken_parent(tables: Tables, row: TaskRow) -> str | None:
    """Return the task id of an ended task's parent if that is pending; None otherwise."""
    if row.parent is None or not row.is_terminal:
        return None
    parent = find_live_row(tables, row.parent)
    return parent.task_id if parent is not None and parent.current is TaskState.PENDING else None


def stop_task(
    tables: Tables, row: TaskRow, to: TaskState, details: Move, owner: str, withdraw: Withdraw | None = None
) -> TaskRow:
    """End a task that is pending, running or asking for input, and fence its worker.

    Args:
        to: CANCELLED, or FAILED for a deadline that has passed.
    """
    cid = row.conversation_id
    lease = seize_lease(tables, cid, owner)  # before the transition: from here on the worker's appends are refused
    status = tables.get(cid).status
    events = [StateChanged(changes={"status": "paused"}, reason=details.reason)] if status == "running" else []
    moved = move(tables, row, to, details, events=events, generation=lease.generation)
    tables.release(lease)
    if withdraw is not None and row.job is not None:
        withdraw(tables, row.job)
    return moved


def list_open_children(tables: Tables, row: TaskRow) -> list[UUID]:
    """Return the unfinished tasks that a run of this task started."""
    return [UUID(bytes=TaskRow(*child).id) for child in tables.run("task.rows_under", k=row.k)]


def cancels_children(row: TaskRow) -> bool:
    """Whether the open children of an ended task are cancelled: if it was cancelled, or is itself a child."""
    return row.current is TaskState.CANCELLED or (row.is_terminal and row.parent is not None)


def find_current(tables: Tables, id: UUID, lease: Lease) -> TaskRow | None:
    """Return the row of a task if `lease` is still its claim; None otherwise."""
    row = find_row(tables, id)
    if row is None or row.current is not TaskState.RUNNING:
        return None
    return row if tables.get(lease.conversation).generation == lease.generation else None
