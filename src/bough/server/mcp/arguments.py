"""The arguments of the tools."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from bough.events.record import Status
from bough.server.bodies.base import Reason, Tags, Title
from bough.server.bodies.conversations import Message, ModelName


class ToolArguments(BaseModel):
    """Arguments of a tool; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StartArguments(ToolArguments):
    """Of `start_conversation`."""

    message: Message | None = None
    agent: str | None = Field(default=None, description="An agent of config.yaml; the default one where left out.")
    title: Title | None = None
    tags: Tags = Field(default_factory=dict[str, str])
    workspace: str = Field(default=".", description="The working folder of its tools, on the server's machine.")
    run: bool = True


class SendArguments(ToolArguments):
    """Of `send_message`."""

    conversation: UUID
    message: Message
    run: bool = True


class RunArguments(ToolArguments):
    """Of `run_conversation`."""

    conversation: UUID


class ForkArguments(ToolArguments):
    """Of `fork_conversation`."""

    conversation: UUID
    event: UUID | None = Field(default=None, description="The last event that the fork keeps.")
    at: int | None = Field(default=None, ge=0, description="How many events the fork keeps; all where left out.")
    message: Message | None = None
    title: Title | None = None
    model: ModelName | None = None
    system_prompt: str | None = Field(default=None, max_length=1 << 20)
    reason: Reason | None = None
    run: bool = False


class CompareArguments(ToolArguments):
    """Of `compare_conversations`."""

    a: UUID
    b: UUID


class ListArguments(ToolArguments):
    """Of `list_conversations`."""

    text: str | None = Field(default=None, description="Occurs in the title.")
    status: Status | None = None
    limit: int = Field(default=20, ge=1, le=100)
    cursor: str | None = None


class DecideArguments(ToolArguments):
    """Of `decide`."""

    conversation: UUID
    call: str = Field(description="The id of a waiting call.")
    decision: Literal["approve", "reject", "answer"]
    reason: Reason = Field(default="", description="Why; of a rejection the model is told.")
    arguments: dict[str, Any] | None = Field(default=None, description="Run an approved call with these instead.")
    value: Any = Field(default=None, description="The answer to a question, or the result of a call done elsewhere.")


class DelegateArguments(ToolArguments):
    """Of `delegate`."""

    agent: str
    prompt: Message
    wait: bool = Field(default=True, description="Answer when it has ended; else at once, and ask by `get_task`.")


class TaskArguments(ToolArguments):
    """Of `get_task` and `cancel_task`."""

    task: UUID
