"""The public models of tasks and their events.

Source: agentic_patterns (`Task`, `TaskEvent`, `EventType`); the fields after `updated_at` are additions.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field

from bough.effects import LostCall
from bough.errors import Conflict, NotFound
from bough.events.model import Usage
from bough.tasks.state import TERMINAL_STATES, TaskState
from bough.types import Json, JsonObject, new_id, utc_now

MAX_EVENTS = 1000
"""How many of its latest events `TaskStore.get` returns with a task."""


class EventType(str, Enum):  # noqa: UP042 - the base classes of agentic_patterns
    """The kind of a task event: a transition, an action, or a message."""

    STATE_CHANGE = "state_change"
    PROGRESS = "progress"
    LOG = "log"


class TaskEvent(BaseModel):
    """Something that happened to a task.

    Attributes:
        payload: JSON; for a transition its `state` and the fields that changed.
        timestamp: UTC.
        seq: Position in the log of the task's conversation. Events of a task are ordered by it.
    """

    task_id: str
    event_type: EventType
    payload: dict[str, Any] = Field(default_factory=dict)
    timestamp: datetime = Field(default_factory=utc_now)
    seq: int = 0


class Task(BaseModel):
    """A unit of work: one run of a conversation, from submission to its end. Stores return copies.

    Attributes:
        id: A UUID; also the id of the conversation, unless the task runs an existing one.
        input: The prompt; empty if the conversation continues without a new message.
        result: The text of the answer; if the task failed, the text up to then.
        error: The error message; `code` is the error code.
        events: The latest 1,000, oldest first; lists and claims leave it empty.
        metadata: As submitted, including `agent_name`, `system_prompt` and `config_name`.
        data: The validated value of the agent's `output_type`; `result` is its text.
        usage: Of the task and its sub-agents, since the task's first event.
        attempts: How often the task was claimed or taken over.
        parent_id: The conversation that started the task.
        conversation: The conversation whose log has the task's events; None means the one with the task's id.
        request: The question or approvals that the task waits for while it is `INPUT_REQUIRED`.
        version: Counts transitions.
        interrupted_calls: Calls that had started when their process ended, and whose effects are unknown, oldest first:
            those whose response, too, is among the latest 1,000 events. Lists and claims leave it empty.
    """

    id: str = Field(default_factory=lambda: str(new_id()))
    state: TaskState = TaskState.PENDING
    input: str
    result: str | None = None
    error: str | None = None
    events: list[TaskEvent] = Field(default_factory=list[TaskEvent])
    metadata: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime = Field(default_factory=utc_now)
    updated_at: datetime = Field(default_factory=utc_now)
    data: Json = None
    code: str | None = None
    usage: Usage = Usage(requests=0)
    attempts: int = 0
    max_attempts: int = 3
    priority: int = 0
    queue: str = "default"
    parent_id: str | None = None
    agent_name: str | None = None
    idempotency_key: str | None = None
    conversation: UUID | None = None
    not_before: datetime | None = None
    deadline: datetime | None = None
    request: JsonObject | None = None
    version: int = 0
    interrupted_calls: list[LostCall] = Field(default_factory=list[LostCall])

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended."""
        return self.state in TERMINAL_STATES


def unknown_task(task_id: str) -> NotFound:
    """Return the error for an unknown task."""
    return NotFound(
        f"there is no task {task_id!r:.60}",
        hint="`bough tasks list` shows the tasks",
        details={"task": str(task_id)[:60]},
    )


def no_input_required(task: Task) -> Conflict:
    """Return the error for an answer to a task that does not ask for input."""
    return Conflict(
        f"task {task.id} does not ask for input: it is {task.state.value}",
        hint="only a task in the state input_required can be answered",
        details={"task": task.id, "state": task.state.value},
    )
