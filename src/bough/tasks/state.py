"""The states of a task, and the one table of transitions between them.

Source: agentic_patterns (its six states); `PENDING -> COMPLETED | FAILED` is for programs that have the
result without a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from bough.errors import InvalidTransition


class TaskState(str, Enum):  # noqa: UP042 - the base classes of agentic_patterns
    """The state of a task. Logs, JSON and the command line use the value."""

    PENDING = "pending"
    RUNNING = "running"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def number(self) -> int:
        """The number that rows store: 0 to 5, terminal states from 3."""
        return _ORDER.index(self)

    @classmethod
    def from_number(cls, number: int) -> TaskState:
        """Return the state that a row stores as `number`."""
        return _ORDER[number]


# Rows store positions in this tuple and queries compare them with 3: the order of the members above is on disk.
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
"""Allowed transitions. Taking over a running task is not one: its state and version stay."""


def require_transition(task_id: str, current: TaskState, to: TaskState) -> None:
    """Check that a task may go from one state to another.

    Raises:
        InvalidTransition: `TRANSITIONS` does not allow it; `details` has `task`, `from` and `to`.
    """
    if to in TRANSITIONS[current]:
        return
    if current in TERMINAL_STATES:
        hint = "a task that has ended cannot change; `bough tasks retry` continues it in a new task"
    else:
        hint = f"from {current.value} a task can go to: {', '.join(sorted(s.value for s in TRANSITIONS[current]))}"
    raise InvalidTransition(
        f"task {task_id} cannot go from {current.value} to {to.value}",
        hint=hint,
        details={"task": task_id, "from": current.value, "to": to.value},
    )
