"""The states of a task, and the one table of transitions between them.

Source: agentic_patterns (its six states); `PENDING -> COMPLETED | FAILED` is for a program that has the answer already.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from bough.errors import InvalidTransition


class TaskState(str, Enum):  # noqa: UP042 - the seed's base classes
    """Where a task stands. The value is what logs, rows of JSON and the command line show."""

    PENDING = "pending"
    RUNNING = "running"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def number(self) -> int:
        """How the row stores it: 0 to 5, the terminal ones from 3."""
        return _ORDER.index(self)

    @classmethod
    def from_number(cls, number: int) -> TaskState:
        """Return the state that a row stores as `number`."""
        return _ORDER[number]


_ORDER = tuple(TaskState)

TERMINAL_STATES = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED})
"""States that a task never leaves."""

STOPPED_STATES = TERMINAL_STATES | {TaskState.INPUT_REQUIRED}
"""States that a task does not leave without input."""

TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.PENDING: frozenset(
        {TaskState.RUNNING, TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED},
    ),
    TaskState.RUNNING: frozenset(
        {
            TaskState.INPUT_REQUIRED,
            TaskState.PENDING,
            TaskState.COMPLETED,
            TaskState.FAILED,
            TaskState.CANCELLED,
        },
    ),
    TaskState.INPUT_REQUIRED: frozenset({TaskState.PENDING, TaskState.FAILED, TaskState.CANCELLED}),
    TaskState.COMPLETED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}
"""What may follow what. A take-over of a running task is not a transition: its state and version stay."""


def require_transition(task_id: str, current: TaskState, to: TaskState) -> None:
    """Check that a task may go from one state to another.

    Raises:
        InvalidTransition: The table does not have it; `details` are `task`, `from` and `to`.
    """
    if to in TRANSITIONS[current]:
        return
    if current in TERMINAL_STATES:
        hint = "a task that has ended stays as it is; `bough tasks retry` continues in a new task"
    else:
        hint = f"from {current.value} a task goes to: {', '.join(sorted(s.value for s in TRANSITIONS[current]))}"
    raise InvalidTransition(
        f"task {task_id} cannot go from {current.value} to {to.value}",
        hint=hint,
        details={"task": task_id, "from": current.value, "to": to.value},
    )
