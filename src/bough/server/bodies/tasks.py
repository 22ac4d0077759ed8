"""Bodies and responses about tasks."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, Field, JsonValue, StringConstraints

from bough.server.bodies.base import Flag, Form, Integer, Number, Reason, Stamp, stamp
from bough.server.bodies.conversations import Message
from bough.server.bodies.info import Ledger
from bough.server.bodies.rules import BudgetForm, BudgetId
from bough.tasks import Task, TaskEvent, TaskState
from bough.types import JsonObject

QueueName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
TaskStateName = Literal["pending", "running", "completed", "failed", "input_required", "cancelled"]


class NewTask(Form):
    """A task, which is a new conversation and its run. `agent` is a registered name."""

    input: Message
    agent: str | None = Field(default=None, max_length=64)
    id: UUID | None = None
    queue: QueueName | None = None
    priority: Integer = Field(default=0, ge=-(2**15), le=2**15 - 1)
    deadline_seconds: Number | None = Field(default=None, gt=0, lt=10**9)
    system_prompt: str | None = Field(default=None, max_length=1 << 20)
    budget: BudgetId | BudgetForm | None = None


class TaskQuery(Form):
    """Which tasks to list."""

    page_id: str | None = Field(default=None, max_length=20)
    limit: int = Field(default=50, ge=1, le=100)
    state: TaskStateName | None = None
    agent: str | None = Field(default=None, max_length=64)
    queue: str | None = Field(default=None, max_length=65)
    parent: UUID | None = None
    root: UUID | None = None


class TaskAnswer(Form):
    """The answer to a task's request: any JSON for a question; `true`, `false` or a list of calls for an approval."""

    answer: JsonValue
    run: Flag = True


class CallAnswer(Form):
    """The decision on one call that waits."""

    decision: Literal["approve", "reject", "answer"]
    reason: Reason = ""
    arguments: JsonObject | None = None
    value: JsonValue = None
    run: Flag = True


class TaskEventInfo(BaseModel):
    """An event of a task."""

    seq: int
    event_type: str
    payload: JsonObject
    timestamp: Stamp

    @classmethod
    def of(cls, event: TaskEvent) -> TaskEventInfo:
        """Return the document of an event."""
        return cls(
            seq=event.seq,
            event_type=event.event_type.value,
            payload=event.payload,
            timestamp=stamp(event.timestamp),
        )


class TaskInfo(BaseModel):
    """A task and its state."""

    id: str
    conversation: UUID
    state: TaskStateName
    input: str
    result: str | None
    data: JsonValue
    error: str | None
    code: str | None
    request: JsonObject | None
    agent: str | None
    queue: str
    priority: int
    attempts: int
    max_attempts: int
    parent: str | None
    metadata: JsonObject
    usage: Ledger
    created_at: Stamp
    updated_at: Stamp
    deadline: Stamp | None

    @classmethod
    def of(cls, task: Task, agent: str | None) -> TaskInfo:
        """Return the document of a task.

        Args:
            agent: The agent of its conversation, which runs if the task names no agent.
        """
        assert task.conversation is not None  # noqa: S101 - a task from a store always has one
        copied_fields = ("id", "input", "result", "data", "error", "code", "request", "queue", "priority", "attempts")
        return cls(
            **{name: getattr(task, name) for name in (*copied_fields, "max_attempts", "metadata", "conversation")},
            state=TaskState(task.state).value,
            agent=task.agent_name or agent,
            parent=task.parent_id,
            usage=Ledger.of(task.usage),
            created_at=stamp(task.created_at),
            updated_at=stamp(task.updated_at),
            deadline=None if task.deadline is None else stamp(task.deadline),
        )
