"""A task and its events, as programs see them.

Source: agentic_patterns (`Task`, `TaskEvent`, `EventType`); the fields after `updated_at` are bough's own.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field

from bough.events.model import Usage
from bough.tasks.state import TERMINAL_STATES, TaskState
from bough.types import Json, JsonObject, new_id

MAX_EVENTS = 1000
"""How many of its latest events `TaskStore.get` gives with a task."""


def _now() -> datetime:
    return datetime.now(UTC)


class EventType(str, Enum):  # noqa: UP042 - the seed's base classes
    """What a task event is about: a transition, something done, something said."""

    STATE_CHANGE = "state_change"
    PROGRESS = "progress"
    LOG = "log"


class TaskEvent(BaseModel):
    """Something that happened to a task.

    Attributes:
        payload: JSON; of a transition its `state` and what came with it.
        timestamp: UTC.
        seq: Its place in the log of the task's conversation, which is also the order of a task's events.
    """

    task_id: str
    event_type: EventType
    payload: dict[str, Any] = Field(default_factory=dict)
    timestamp: datetime = Field(default_factory=_now)
    seq: int = 0


class Task(BaseModel):
    """A unit of work: one run of a conversation, from asked to ended. What a store returns is a copy.

    Attributes:
        id: A UUID; also the id of the conversation, unless the task runs one that was there.
        input: What was asked; empty where the conversation continues without a new message.
        result: The text of the answer, or of what there was of it when the task failed.
        error: What went wrong, in words; `code` names the kind.
        events: The latest 1,000, oldest first; lists and claims leave it empty.
        metadata: As given at submission, `agent_name`, `system_prompt` and `config_name` among it.
        data: The validated value of the agent's `output_type`; `result` is its text.
        usage: Own and delegated, since the task's first event.
        attempts: How often it was claimed or taken over.
        parent_id: The conversation whose agent or program started it.
        conversation: Whose log its events are in; None stands for one of the task's own id.
        request: What it asks while it is `INPUT_REQUIRED`.
        version: Counts transitions.
    """

    id: str = Field(default_factory=lambda: str(new_id()))
    state: TaskState = TaskState.PENDING
    input: str
    result: str | None = None
    error: str | None = None
    events: list[TaskEvent] = Field(default_factory=list[TaskEvent])
    metadata: dict[str, Any] = Field(default_factory=dict)
    created_at: datetime = Field(default_factory=_now)
    updated_at: datetime = Field(default_factory=_now)
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

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        return self.state in TERMINAL_STATES
