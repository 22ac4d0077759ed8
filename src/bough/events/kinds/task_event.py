"""Events of tasks in the logs of their conversations."""

from __future__ import annotations

from typing import ClassVar, Literal
from uuid import UUID

from pydantic import Field

from bough.events.kinds.event import BaseEvent, Usage
from bough.types import Json, JsonObject


class TaskLinked(BaseEvent):
    """A sub-agent's task was started from this conversation.

    Attributes:
        background: Whether the call that started it does not wait for it.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["TaskLinked"] = "TaskLinked"
    schema_version: int = 2
    task_id: str
    conversation: UUID | None = None
    agent: str | None = None
    tool_call_id: str | None = None
    background: bool = False


class TaskChanged(BaseEvent):
    """A task of this conversation reached a state.

    Attributes:
        state: The new state, as its lower-case value.
        attempt: How often the task was claimed.
        worker: The owner that wrote the event.
        result: The answer's text, possibly cut; `result_bytes` is then its full size.
        data: The validated value of the agent's `output_type`.
        code: Error code, for example `limit_exceeded`.
        usage: Usage of the task and its sub-agents.
        request: The question, or the calls that wait for approval.
        metadata: Metadata from the submission.
        bounds: For each ancestor with bounds: conversation, limits, usage so far, level.
        message: Seq of the task's message; None for an empty input.
    """

    kind: Literal["TaskChanged"] = "TaskChanged"
    task_id: str
    state: str
    attempt: int = 0
    worker: str | None = None
    result: str | None = None
    result_bytes: int | None = None
    data: Json = None
    error: str | None = None
    code: str | None = None
    usage: Usage | None = None
    request: JsonObject | None = None
    reason: str | None = None
    metadata: JsonObject = Field(default={})
    bounds: tuple[JsonObject, ...] = ()
    agent: str | None = None
    message: int | None = None


class TaskNoted(BaseEvent):
    """A program's note about a task. Never shown to the model.

    Attributes:
        task_id: None for the live task.
    """

    kind: Literal["TaskNoted"] = "TaskNoted"
    task_id: str | None = None
    event_type: Literal["progress", "log"] = "log"
    name: str = ""
    data: JsonObject = Field(default={})


class TaskEnded(BaseEvent):
    """A task that this conversation started has ended.

    Attributes:
        state: `completed`, `failed` or `cancelled`.
        result: The answer's text, possibly cut; `result_bytes` is then its full size.
        usage: Usage of the task and its sub-agents, so that a tree is summed without visiting it.
    """

    kind: Literal["TaskEnded"] = "TaskEnded"
    task_id: str
    state: str
    result: str | None = None
    result_bytes: int | None = None
    data: Json = None
    error: str | None = None
    code: str | None = None
    usage: Usage | None = None
