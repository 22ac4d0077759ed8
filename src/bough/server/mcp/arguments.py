"""The arguments of the MCP tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from bough.conversation.log.recorded_tools import ToolSource
from bough.events.record import Status
from bough.server.bodies.base import MAX_SEQ, Reason, Tags, Title
from bough.server.bodies.conversations import Message, ModelName
from bough.server.bodies.rules import BudgetId

FileCut = Annotated[
    int | None, Field(ge=0, le=MAX_SEQ, description="The number of events after which the files are meant.")
]
FilePaths = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=4096)], ...],
    Field(max_length=1000, description="Only these files and folders; all if empty."),
]


class ToolArguments(BaseModel):
    """Arguments of a tool; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StartArguments(ToolArguments):
    """Arguments of `start_conversation`."""

    message: Message | None = None
    agent: str | None = Field(default=None, description="An agent of config.yaml; the default one if left out.")
    title: Title | None = None
    tags: Tags = Field(default_factory=dict[str, str])
    workspace: str = Field(default=".", description="The working folder of its tools, on the server's machine.")
    budget: BudgetId | None = Field(
        default=None, description="A budget that exists, from which the conversation spends too."
    )
    run: bool = True


class SendArguments(ToolArguments):
    """Arguments of `send_message`."""

    conversation: UUID
    message: Message
    run: bool = True


class RunArguments(ToolArguments):
    """Arguments of `run_conversation`."""

    conversation: UUID


class ForkArguments(ToolArguments):
    """Arguments of `fork_conversation`."""

    conversation: UUID
    event: UUID | None = Field(default=None, description="The last event that the fork shares.")
    at: int | None = Field(default=None, ge=0, description="How many events the fork shares; all if left out.")
    message: Message | None = None
    title: Title | None = None
    model: ModelName | None = None
    system_prompt: str | None = Field(default=None, max_length=1 << 20)
    tools: ToolSource | None = Field(
        default=None, description="`recorded`: tools do not run; calls are answered as the source's log has it."
    )
    budget: BudgetId | None = Field(default=None, description="A budget that exists, from which the fork spends too.")
    workspace: Literal["shared", "readonly", "copy", "worktree"] = Field(
        default="shared", description="`copy` and `worktree` give the fork files of its own."
    )
    moment: Literal["then", "now"] = Field(
        default="then", description="Which files a copy has: those at the event, or the present ones."
    )
    reason: Reason | None = None
    run: bool = False


class CompareArguments(ToolArguments):
    """Arguments of `compare_conversations`."""

    a: UUID
    b: UUID
    until: int | None = Field(default=None, ge=1, description="The last turn to compare; the last one both have.")


class ListArguments(ToolArguments):
    """Arguments of `list_conversations`."""

    text: str | None = Field(default=None, description="Text that occurs in the title.")
    status: Status | None = None
    project: str | None = Field(default=None, description="The project that the conversations belong to.")
    limit: int = Field(default=20, ge=1, le=100)
    cursor: str | None = None


class TurnsArguments(ToolArguments):
    """Arguments of `list_turns`."""

    conversation: UUID
    first: int = Field(default=1, ge=1, le=MAX_SEQ, description="The number of the first turn to return.")
    limit: int = Field(default=20, ge=1, le=100)


class ListFilesArguments(ToolArguments):
    """Arguments of `list_files`."""

    conversation: UUID
    at: FileCut = None
    start: int = Field(default=0, ge=0, le=MAX_SEQ, description="How many files to skip.")
    limit: int = Field(default=200, ge=1, le=1000)


class ReadFileArguments(ToolArguments):
    """Arguments of `read_file`."""

    conversation: UUID
    path: str = Field(min_length=1, max_length=4096, description="As `list_files` shows it.")
    at: FileCut = None


class DiffFilesArguments(ToolArguments):
    """Arguments of `diff_files`."""

    conversation: UUID
    start: int | None = Field(default=None, ge=0, le=MAX_SEQ, description="How many events; none for the beginning.")
    stop: FileCut = None
    own: bool = Field(default=False, description="Leave out what others changed meanwhile.")
    paths: FilePaths = ()


class ApplyFilesArguments(ToolArguments):
    """Arguments of `apply_files`."""

    conversation: UUID
    source: UUID = Field(description="The conversation whose changes are brought in, for example a fork.")
    paths: FilePaths = ()
    conflicts: Literal["refuse", "leave", "force"] = Field(
        default="refuse", description="What happens to files that others changed too."
    )
    dry_run: bool = Field(default=False, description="Only return what would be written.")


class RestoreFilesArguments(ToolArguments):
    """Arguments of `restore_files`."""

    conversation: UUID
    at: FileCut = None
    redo: bool = Field(default=False, description="Bring back what the last restore changed; without `at`.")
    paths: FilePaths = ()
    exact: bool = Field(default=False, description="Make the folder exactly as it was, also where others changed it.")
    conflicts: Literal["refuse", "leave", "force"] = Field(
        default="refuse", description="What happens to files that others changed too."
    )
    dry_run: bool = Field(default=False, description="Only return what would be written.")


class DecideArguments(ToolArguments):
    """Arguments of `decide`."""

    conversation: UUID
    call: str = Field(description="The id of a waiting call.")
    decision: Literal["approve", "reject", "answer"]
    reason: Reason = Field(default="", description="The reason; the model gets the reason of a rejection.")
    arguments: dict[str, Any] | None = Field(default=None, description="Replace the arguments of an approved call.")
    value: Any = Field(
        default=None, description="The answer to a question, or the result of a call executed elsewhere."
    )


class DelegateArguments(ToolArguments):
    """Arguments of `delegate`."""

    agent: str
    prompt: Message
    wait: bool = Field(
        default=True,
        description="Wait for the end of the task. If false, ask `get_task`.",
    )


class TaskArguments(ToolArguments):
    """Arguments of `get_task` and `cancel_task`."""

    task: UUID
