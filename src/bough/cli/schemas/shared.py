"""Shapes that several commands print: conversations, events, tasks, skills, and lines of streams.

A docstring below a field is its description in the schema.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from bough.events.base_event import Usage
from bough.events.record import Status
from bough.tasks import Task
from bough.types import JsonObject

DESCRIBED = ConfigDict(use_attribute_docstrings=True)
OPEN = ConfigDict(use_attribute_docstrings=True, extra="allow")


class CostData(TypedDict):
    """What a conversation used."""

    requests: int
    """Requests to models."""
    input_tokens: int
    """Input, including what a provider's cache served."""
    output_tokens: int
    """Output."""
    cost_usd: float | None
    """Null if no price is known."""


class ConversationData(TypedDict):
    """A conversation."""

    id: str
    """Its UUID."""
    short_id: str
    """The last 8 digits, which every command accepts."""
    title: str | None
    """Its title; null if it has none."""
    status: Status
    """What it does, or how its last run ended."""
    events: int
    """Number of events, including those shared with its source."""
    agent: str | None
    """Name of the agent."""
    model: str | None
    """Name of the model."""
    workspace: str | None
    """Working folder of its tools."""
    tags: dict[str, str]
    """Its tags."""
    root: str
    """The conversation from which its whole tree of forks began."""
    forked_from: str | None
    """Its source, if it is a fork."""
    forked_at: int | None
    """Number of events it shares with its source."""
    created: str
    """Time of its first event (ISO 8601)."""
    updated: str
    """Time of its last event (ISO 8601)."""
    usage: CostData
    """What its own runs used, without its source's."""


class BranchData(ConversationData):
    """A conversation of a tree."""

    depth: int
    """Number of forks between it and the root."""


@with_config(OPEN)
class EventData(TypedDict):
    """An event, flat: the fields here, then those of its kind (`event:KIND`)."""

    seq: int
    """Its position in the conversation, from 0."""
    id: str
    """Its UUID."""
    kind: str
    """Its kind, for example UserMessage."""
    ts: str
    """Its time (ISO 8601)."""


class DamageData(TypedDict):
    """A damaged conversation."""

    problem: str
    """What is damaged."""
    conversation: str | None
    """Its UUID, if it is known."""
    readable: list[list[int]]
    """Ranges of events that can be read: start, and the first after the range."""


class LinkedTaskData(TypedDict):
    """A task of a conversation."""

    id: str
    """The task's id."""
    conversation: str | None
    """The conversation it runs."""
    parent: str | None
    """The conversation that started it."""
    state: str
    """Its state."""
    agent: str | None
    """Name of its agent."""


class TaskTreeData(TypedDict):
    """A task and those that it started."""

    task: Task
    """The task."""
    children: list[TaskTreeData]
    """The tasks that it started."""


class DiagnosticData(TypedDict):
    """A mistake in a file."""

    code: str
    """A stable name of the mistake."""
    severity: Literal["error", "warning", "info"]
    """An error prevents use."""
    message: str
    """What is wrong."""
    line: int | None
    """Line of the file."""
    fix: str
    """How to correct it."""
    path: str
    """The file; empty for the skill's own."""


class SkillData(TypedDict):
    """A skill."""

    name: str
    """Its name."""
    description: str
    """What it does and when to use it."""
    kind: str
    """How its file was found to be written."""
    scope: str
    """Where it comes from, for example project."""
    path: str
    """Its SKILL.md."""


class ExecutedData(TypedDict):
    """A run of a script."""

    stdout: str
    """What the script wrote."""
    stderr: str
    """What it wrote as errors."""
    exit_code: int | None
    """Null if a signal or a limit ended it."""
    signal: int | None
    """The signal that ended it."""
    timed_out: bool
    """Whether the time limit ended it."""
    killed_by: str | None
    """The limit that ended it."""
    stdout_truncated: bool
    """Whether stdout is incomplete."""
    stderr_truncated: bool
    """Whether stderr is incomplete."""
    stdout_bytes: int
    """Bytes it wrote to stdout, shown or not."""
    stderr_bytes: int
    """Bytes it wrote to stderr, shown or not."""
    output_files: list[dict[str, Any]]
    """Files it left: path and size_bytes."""
    output_skipped: list[dict[str, Any]]
    """Files that were not collected: path and reason."""
    wall_seconds: float
    """Time it took."""
    cpu_seconds: float | None
    """Time of the processor."""
    max_rss_bytes: int | None
    """The most memory it held."""
    isolation: str
    """How it was isolated, for example sandbox."""


class ErrorData(TypedDict):
    """Why a command failed."""

    code: str
    """A stable code; docs/reference/errors.md explains each."""
    message: str
    """What is wrong."""
    hint: str
    """What to do; may be empty."""
    details: NotRequired[dict[str, Any]]
    """More for programs."""


class EventLine(TypedDict):
    """An event, as it is recorded."""

    type: Literal["event"]
    event: EventData
    """The recorded event."""


class ResultLine(TypedDict):
    """The last line of a run."""

    type: Literal["result"]
    schema_version: Literal[1]
    command: str
    """The command that ran."""
    conversation: str
    """Its UUID."""
    status: Status
    """How the run ended."""
    output: str
    """The answer."""
    data: Any
    """The answer of an agent with an output type."""
    finish_reason: str | None
    """Why the model stopped."""
    partial: bool
    """Whether the answer is incomplete."""
    reason: str
    """Why the run did less than was asked; empty if it did not."""
    steps: int
    """Steps of this run."""
    usage: Usage
    """Usage of the whole conversation."""
    limit: Any
    """The limit that ended the run, if one did."""
    waiting: dict[str, Any]
    """Tool calls that wait for a decision, by id."""
    warnings: list[str]
    """Warnings."""
    next: list[str]
    """Commands to run next."""
    error: NotRequired[ErrorData]
    """What kept the run from its end."""


class ConversationLine(TypedDict):
    """The first line: the conversation."""

    type: Literal["conversation"]
    conversation: ConversationData
    """The conversation whose events follow."""


class ShownLine(TypedDict):
    """The output of a command of the chat."""

    type: Literal["shown"]
    conversation: str
    """The conversation after the command."""
    text: str
    """What a command of the chat shows."""


class WaitingLine(TypedDict):
    """Tool calls that require approval."""

    type: Literal["waiting"]
    calls: dict[str, Any]
    """Tool calls that wait for a decision, by id."""


class ReadyLine(TypedDict):
    """The chat waits for a line."""

    type: Literal["ready"]
    conversation: str
    """The conversation that the next line continues."""
    status: Status
    """Its status."""


class ErrorLine(TypedDict):
    """A line that was refused."""

    type: Literal["error"]
    error: ErrorData
    """Why a line of the input was refused."""


class MessageInput(TypedDict):
    """A message."""

    type: Literal["message"]
    text: str
    """A message to the agent."""


class CommandInput(TypedDict):
    """A command."""

    type: Literal["command"]
    text: str
    """A command of the chat, for example /fork 5."""


class ApproveInput(TypedDict):
    """An approval."""

    type: Literal["approve"]
    call: str
    """Id of the tool call."""
    arguments: NotRequired[JsonObject]
    """Arguments to use in place of the model's."""


class RejectInput(TypedDict):
    """A rejection."""

    type: Literal["reject"]
    call: str
    """Id of the tool call."""
    reason: NotRequired[str]
    """What the model is told."""


class AnswerInput(TypedDict):
    """An answer."""

    type: Literal["answer"]
    call: str
    """Id of the question or external call."""
    value: Any
    """The answer."""


class StopInput(TypedDict):
    """Stops the run."""

    type: Literal["interrupt", "pause"]
    """`pause` stops before the next step, `interrupt` now."""


RunLine = EventLine | ResultLine
ChatLine = RunLine | ShownLine | WaitingLine | ReadyLine | ErrorLine
ChatInput = MessageInput | CommandInput | ApproveInput | RejectInput | AnswerInput | StopInput


class VariantEntry(TypedDict):
    """One way to do the work. Its agent is that of the source, with what is given here replaced."""

    name: str
    """Names its branches; 1 to 60 characters."""
    message: NotRequired[str]
    """Its message; without one, that of the file."""
    model: NotRequired[str]
    """Its model."""
    system_prompt: NotRequired[str]
    """Its system prompt."""
    agent: NotRequired[str]
    """The file of its agent, relative to this file."""


class VariantsFile(TypedDict):
    """A file of `bough try --variant FILE`, as YAML or JSON. Options of the command line win over it."""

    message: NotRequired[str]
    """The message of variants that have none."""
    check: NotRequired[str]
    """A bash command that judges the files of each branch; it passes with exit code 0."""
    repeat: NotRequired[int]
    """How often each variant runs."""
    variants: list[VariantEntry]
    """What is tried."""
