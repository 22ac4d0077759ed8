"""Errors about tasks that several modules raise."""

from __future__ import annotations

from bough.errors import Conflict, NotFound
from bough.tasks.model import Task


def unknown_task(task_id: str) -> NotFound:
    """Return the error for an unknown task."""
    return NotFound(
        f"there is no task {task_id!r:.60}",
        hint="`bough tasks list` shows what there is",
        details={"task": str(task_id)[:60]},
    )


def asks_nothing(task: Task) -> Conflict:
    """Return the error for an answer to a task that does not ask for input."""
    return Conflict(
        f"task {task.id} asks nothing: it is {task.state.value}",
        hint="only a task that is input_required takes an answer",
        details={"task": task.id, "state": task.state.value},
    )
