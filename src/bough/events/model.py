"""What can happen in a conversation: one frozen, versioned class per kind of event.

Events are facts. They are appended, never changed, and old ones load for ever (see `codec`). The order of an
event in its conversation (`seq`) belongs to the store, not to the event, because a fork shares the event itself.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, TypeAlias
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from bough.types import Json, JsonObject, new_id


def _now() -> datetime:
    return datetime.now(UTC)


class Part(BaseModel):
    """A piece of message content."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TextPart(Part):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class ImagePart(Part):
    """An image carried in the log itself.

    Attributes:
        data: The bytes, base64.
        media_type: For example `image/png`.
    """

    type: Literal["image"] = "image"
    data: str
    media_type: str


class FilePart(Part):
    """A file named by its path in the workspace; its bytes are not in the log.

    Attributes:
        path: Relative to the workspace, with forward slashes.
        sha256: Digest of the bytes when the message was sent, hexadecimal.
    """

    type: Literal["file"] = "file"
    path: str
    media_type: str = "application/octet-stream"
    sha256: str | None = None


ContentPart: TypeAlias = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]
"""One part of a message."""


class Usage(BaseModel):
    """What a model response consumed.

    Attributes:
        requests: Requests made to the model.
        cost_usd: None where the price of the model is not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None


class BaseEvent(BaseModel):
    """The fields every event has.

    Attributes:
        id: uuid7, unique for ever.
        ts: When it happened, UTC.
        schema_version: Of this kind; the codec lifts older ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    VERSION: ClassVar[int] = 1

    id: UUID = Field(default_factory=new_id)
    ts: AwareDatetime = Field(default_factory=_now)
    schema_version: int = 1


class ConversationStarted(BaseEvent):
    """The first event of a root: what the conversation was set up with.

    Attributes:
        agent: The agent spec as JSON, secrets left out.
        workspace: Absolute path of the working folder.
        instructions: What the model is told before everything else, as rendered at the start, so that the prefix
            stays byte-identical whatever changes on disk.
        policies: Confirmation policy, security analyzer, hooks, allow-list, sandbox and limits as JSON.
    """

    kind: Literal["ConversationStarted"] = "ConversationStarted"
    agent: JsonObject = {}
    workspace: str = "."
    instructions: str = ""
    policies: JsonObject = {}
    title: str | None = None
    tags: dict[str, str] = {}


class ForkedFrom(BaseEvent):
    """The first own event of a fork: where it came from. Never shown to the model.

    Attributes:
        source: The conversation the caller forked.
        at: How many events are shared.
        event_id: The last shared event; None for a fork at 0.
        source_head: Length of the source when the fork was made.
        overrides: What the fork changed, as JSON.
        pending: What was done with open tool calls.
        workspace: Workspace policy that was used.
    """

    kind: Literal["ForkedFrom"] = "ForkedFrom"
    source: UUID
    at: int
    event_id: UUID | None = None
    source_head: int
    actor: str | None = None
    reason: str | None = None
    overrides: JsonObject = {}
    pending: Literal["close", "drop", "carry"] = "close"
    workspace: str = "shared"
    reset_metrics: bool = True


class UserMessage(BaseEvent):
    """A message from outside: a person, a program or another agent.

    Attributes:
        skills: Names of the skills that this message activated.
    """

    kind: Literal["UserMessage"] = "UserMessage"
    content: tuple[ContentPart, ...]
    sender: str = "user"
    skills: tuple[str, ...] = ()

    @classmethod
    def text(cls, text: str, **fields: Any) -> UserMessage:
        """Return a message of one text part."""
        return cls(content=(TextPart(text=text),), **fields)

    @property
    def plain(self) -> str:
        """The text parts, joined by new lines."""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


class ModelResponded(BaseEvent):
    """A complete model response, recorded before any of its tool calls starts.

    Attributes:
        response: PydanticAI's `ModelResponse` as JSON: text, tool calls, thinking parts and provider signatures.
        latency_seconds: From the request to the end of the response.
        seen: Events before this seq were in the request; messages that came later are still unanswered.
    """

    kind: Literal["ModelResponded"] = "ModelResponded"
    response: JsonObject
    model: str | None = None
    usage: Usage = Usage()
    latency_seconds: float | None = None
    seen: int | None = None


class ToolCalled(BaseEvent):
    """A tool call passed validation and is about to pass the guard; recorded before it runs.

    Attributes:
        risk: What the security analyzer said: LOW, MEDIUM, HIGH or UNKNOWN; None where none is set.
        idempotent: Whether the tool may simply run again when its result was lost.
    """

    kind: Literal["ToolCalled"] = "ToolCalled"
    tool_call_id: str
    tool: str
    arguments: JsonObject = {}
    risk: Literal["LOW", "MEDIUM", "HIGH", "UNKNOWN"] | None = None
    idempotent: bool = False


class ToolReturned(BaseEvent):
    """A tool finished and this is its result."""

    kind: Literal["ToolReturned"] = "ToolReturned"
    tool_call_id: str
    tool: str
    result: Json = None
    duration_seconds: float | None = None


class ToolFailed(BaseEvent):
    """A tool call failed; the model is told.

    Attributes:
        retry: Whether the model was asked to try again (bad arguments, an unknown tool, a retryable fault).
    """

    kind: Literal["ToolFailed"] = "ToolFailed"
    tool_call_id: str
    tool: str
    error: str
    retry: bool = False
    duration_seconds: float | None = None


class ToolRejected(BaseEvent):
    """A tool call was not allowed to run.

    Attributes:
        by: Who said no: a user's name, `policy`, `hook` or `allow-list`.
    """

    kind: Literal["ToolRejected"] = "ToolRejected"
    tool_call_id: str
    tool: str
    by: str
    reason: str = ""


class ToolInterrupted(BaseEvent):
    """A tool call had started, or was waiting, and will never give a result."""

    kind: Literal["ToolInterrupted"] = "ToolInterrupted"
    tool_call_id: str
    tool: str
    reason: str = "interrupted"


class SkillActivated(BaseEvent):
    """A skill's text entered the conversation.

    Attributes:
        trigger: What activated it: `keyword`, `task`, `path`, `always`, `slash` or `tool`.
        keyword: The word that matched, as the message had it.
        content_hash: sha256 of the skill's text, hexadecimal.
        rendered: The text as the model sees it.
        allowed_tools: What may be called while the skill's job is done; None says nothing.
    """

    kind: Literal["SkillActivated"] = "SkillActivated"
    name: str
    content_hash: str
    trigger: Literal["keyword", "task", "path", "always", "slash", "tool"]
    keyword: str | None = None
    rendered: str = ""
    inputs: dict[str, str] = {}
    allowed_tools: tuple[str, ...] | None = None


class SkillSkipped(BaseEvent):
    """A skill that should have entered the conversation was left out; everything else goes on.

    Attributes:
        code: Of the error that says why, for example `limit_exceeded`.
    """

    kind: Literal["SkillSkipped"] = "SkillSkipped"
    name: str
    code: str
    message: str
    hint: str = ""


class ScriptRan(BaseEvent):
    """A skill's script ran in an executor. Output sizes are in bytes, before any truncation."""

    kind: Literal["ScriptRan"] = "ScriptRan"
    tool_call_id: str | None = None
    skill: str
    script: str
    argv: tuple[str, ...] = ()
    status: str = "success"
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    killed_by: str | None = None
    isolation: str = "none"
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    output_files: tuple[str, ...] = ()
    error: str | None = None


class HookRan(BaseEvent):
    """A hook was asked. `error`: it failed, whatever followed from that; `ask`: it wants a person to decide."""

    kind: Literal["HookRan"] = "HookRan"
    hook: str
    command: str = ""
    verdict: Literal["allow", "deny", "ask", "none", "error"] = "none"
    output: str = ""
    tool_call_id: str | None = None
    duration_seconds: float | None = None


class Condensed(BaseEvent):
    """A summary stands for the events with `start <= seq < stop` from here on; the events stay.

    Attributes:
        usage: What making the summary consumed.
    """

    kind: Literal["Condensed"] = "Condensed"
    start: int
    stop: int
    summary: str
    usage: Usage | None = None


class StateChanged(BaseEvent):
    """A client or the loop changed the conversation's state.

    Attributes:
        changes: New values by field: `status`, `policy`, `analyzer`, `title`, `tags`, …
        reason: Why, where it is not plain.
    """

    kind: Literal["StateChanged"] = "StateChanged"
    changes: JsonObject
    reason: str | None = None


class TaskLinked(BaseEvent):
    """A sub-agent's task was started from this conversation."""

    kind: Literal["TaskLinked"] = "TaskLinked"
    task_id: str
    conversation: UUID | None = None
    agent: str | None = None
    tool_call_id: str | None = None


class ErrorRaised(BaseEvent):
    """A run ended in an error."""

    kind: Literal["ErrorRaised"] = "ErrorRaised"
    code: str
    message: str
    hint: str = ""


class PauseRequested(BaseEvent):
    """Someone asked the run to stop at its next step."""

    kind: Literal["PauseRequested"] = "PauseRequested"
    by: str = "user"
    reason: str = ""


class LimitReached(BaseEvent):
    """A budget was used up."""

    kind: Literal["LimitReached"] = "LimitReached"
    limit: str
    value: float
    bound: float


class StuckDetected(BaseEvent):
    """The agent repeats itself."""

    kind: Literal["StuckDetected"] = "StuckDetected"
    pattern: str
    events: tuple[UUID, ...] = ()


class MessageStored(BaseEvent):
    """A message that a program of PydanticAI keeps here, as it is. bough's own conversations have none.

    Attributes:
        message: The `ModelMessage` as JSON.
        parent: The event of the message before it in its history; None for the first one.
    """

    kind: Literal["MessageStored"] = "MessageStored"
    message: JsonObject
    parent: UUID | None = None


Event: TypeAlias = Annotated[
    ConversationStarted
    | ForkedFrom
    | UserMessage
    | ModelResponded
    | ToolCalled
    | ToolReturned
    | ToolFailed
    | ToolRejected
    | ToolInterrupted
    | SkillActivated
    | SkillSkipped
    | ScriptRan
    | HookRan
    | Condensed
    | StateChanged
    | TaskLinked
    | ErrorRaised
    | PauseRequested
    | LimitReached
    | StuckDetected
    | MessageStored,
    Field(discriminator="kind"),
]
"""Any event."""
