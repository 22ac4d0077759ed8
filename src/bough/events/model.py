"""The kinds of events of a conversation: one frozen, versioned class each.

Events are facts. They are appended, never changed, and old ones load for ever (see `codec`). The order of an
event in its conversation (`seq`) belongs to the store, not to the event, because a fork shares the event itself.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias
from uuid import UUID

from pydantic import Field

from bough.events.kinds.event import BaseEvent, ContentPart, FilePart, ImagePart, InputPart, Part, TextPart, Usage
from bough.events.kinds.file_event import CheckRan, FilesKept, RulesChanged
from bough.events.kinds.run_event import ErrorRaised, LimitReached, PauseRequested, RequestRetried, StuckDetected
from bough.events.kinds.skill_event import ScriptRan, SkillActivated, SkillSkipped
from bough.events.kinds.task_event import TaskChanged, TaskEnded, TaskLinked, TaskNoted
from bough.types import Json, JsonObject

__all__ = [
    "BaseEvent",
    "CheckRan",
    "Condensed",
    "ContentPart",
    "ConversationStarted",
    "ErrorRaised",
    "Event",
    "FilePart",
    "FilesKept",
    "FinishReason",
    "ForkedFrom",
    "HookRan",
    "ImagePart",
    "Imported",
    "LimitReached",
    "MessageStored",
    "ModelResponded",
    "OutputGiven",
    "Part",
    "PauseRequested",
    "RequestRetried",
    "RulesChanged",
    "ScriptRan",
    "SkillActivated",
    "SkillSkipped",
    "StateChanged",
    "StuckDetected",
    "TaskChanged",
    "TaskEnded",
    "TaskLinked",
    "TaskNoted",
    "TextPart",
    "ToolCalled",
    "ToolFailed",
    "ToolInterrupted",
    "ToolRejected",
    "ToolReturned",
    "Usage",
    "UsageAdded",
    "UserMessage",
]


class ConversationStarted(BaseEvent):
    """The first event of a root, with the setup of the conversation.

    Attributes:
        agent: The agent spec as JSON, without secrets.
        workspace: Absolute path of the working folder.
        instructions: The rendered system prompt. Recorded so that the prefix of every request stays byte-identical when
            files change.
        policies: Confirmation policy, security analyzer, hooks, allow-list, sandbox and limits as JSON.
    """

    kind: Literal["ConversationStarted"] = "ConversationStarted"
    agent: JsonObject = Field(default={})
    workspace: str = "."
    instructions: str = ""
    policies: JsonObject = Field(default={})
    title: str | None = None
    tags: dict[str, str] = Field(default={})


class ForkedFrom(BaseEvent):
    """The first own event of a fork: where it came from. Never shown to the model.

    Attributes:
        source: The conversation that the caller forked.
        at: Number of shared events.
        event_id: The last shared event; None for a fork at 0.
        source_head: Length of the source when the fork was made.
        overrides: What the fork changed, as JSON.
        pending: How open tool calls were handled.
        workspace: The applied workspace policy.
    """

    kind: Literal["ForkedFrom"] = "ForkedFrom"
    source: UUID
    at: int
    event_id: UUID | None = None
    source_head: int
    actor: str | None = None
    reason: str | None = None
    overrides: JsonObject = Field(default={})
    pending: Literal["close", "drop", "carry"] = "close"
    workspace: str = "shared"
    reset_metrics: bool = True


class UserMessage(BaseEvent):
    """A message from outside: a person, a program or another agent.

    Attributes:
        skills: Names of the skills that the message activated.
        tasks: Ids of the background tasks whose results it contains.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["UserMessage"] = "UserMessage"
    schema_version: int = 2
    content: tuple[ContentPart, ...]
    sender: str = "user"
    skills: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    @classmethod
    def text(cls, text: str, **fields: Any) -> UserMessage:
        """Return a message of one text part."""
        return cls(content=(TextPart(text=text),), **fields)

    def carry_bytes(self, other: BaseEvent) -> Self:
        """Attach the bytes of another form of this message with the same parts."""
        if isinstance(other, UserMessage):
            for own, source in zip(self.content, other.content, strict=True):
                if isinstance(own, InputPart) and isinstance(source, InputPart):
                    own.carry_bytes_of(source)
        return self

    @property
    def plain(self) -> str:
        """The text parts, joined by new lines."""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


FinishReason: TypeAlias = Literal["stop", "length", "content_filter", "tool_call", "error", "none"]
"""Why a model's response ended."""


class ModelResponded(BaseEvent):
    """A complete model response, recorded before any of its tool calls starts.

    Attributes:
        response: PydanticAI's `ModelResponse` as JSON: text, tool calls, thinking parts and provider signatures.
        latency_seconds: From the request to the end of the response.
        seen: Events before this seq were in the request; later messages are still unanswered.
        finish_reason: Why the response ended; `none` if a stream ended without the reason that its provider sends.
        partial: Whether the text is cut off.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["ModelResponded"] = "ModelResponded"
    schema_version: int = 2
    response: JsonObject
    model: str | None = None
    usage: Usage = Usage()
    latency_seconds: float | None = None
    seen: int | None = None
    finish_reason: FinishReason = "stop"
    partial: bool = False


class ToolCalled(BaseEvent):
    """A tool call passed validation and is about to pass the guard; recorded before it runs.

    Attributes:
        risk: Rating of the security analyzer; None without an analyzer.
        idempotent: Whether the tool may run again if its result was lost.
        arguments: The arguments that the tool runs with.
        edited_by: Who edited the arguments; None if they are the model's.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["ToolCalled"] = "ToolCalled"
    schema_version: int = 2
    tool_call_id: str
    tool: str
    arguments: JsonObject = Field(default={})
    risk: Literal["LOW", "MEDIUM", "HIGH", "UNKNOWN"] | None = None
    idempotent: bool = False
    edited_by: str | None = None


class ToolReturned(BaseEvent):
    """A tool finished and this is its result.

    Attributes:
        by: Who provided the result in place of the tool; None if the tool did.
        shown: How many characters of the result the model sees; None for all.
        tasks: Ids of the tasks whose results it contains.
        usage: Usage of the tool itself.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["ToolReturned"] = "ToolReturned"
    schema_version: int = 2
    tool_call_id: str
    tool: str
    result: Json = None
    duration_seconds: float | None = None
    by: str | None = None
    shown: int | None = None
    tasks: tuple[str, ...] = ()
    usage: Usage | None = None


class ToolFailed(BaseEvent):
    """A tool call failed; the model receives the error.

    Attributes:
        retry: Whether the model was asked to try again (bad arguments, an unknown tool, a retryable fault).
        shown: How many characters of the error the model sees; None for all.
        tasks: Ids of the tasks whose results it contains.
        usage: Usage of the tool itself.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["ToolFailed"] = "ToolFailed"
    schema_version: int = 2
    tool_call_id: str
    tool: str
    error: str
    retry: bool = False
    duration_seconds: float | None = None
    shown: int | None = None
    tasks: tuple[str, ...] = ()
    usage: Usage | None = None


class ToolRejected(BaseEvent):
    """A tool call was not allowed to run.

    Attributes:
        by: Who rejected it: a user's name, `policy`, `hook` or `allow-list`.
    """

    kind: Literal["ToolRejected"] = "ToolRejected"
    tool_call_id: str
    tool: str
    by: str
    reason: str = ""


class ToolInterrupted(BaseEvent):
    """A tool call that had started or was waiting will never return a result."""

    kind: Literal["ToolInterrupted"] = "ToolInterrupted"
    tool_call_id: str
    tool: str
    reason: str = "interrupted"


ToolOutcome: TypeAlias = ToolReturned | ToolFailed | ToolRejected | ToolInterrupted
"""How a call of a tool ended."""


class HookRan(BaseEvent):
    """A hook ran. The verdict `error` means that the hook failed, `ask` that a person must decide."""

    kind: Literal["HookRan"] = "HookRan"
    hook: str
    command: str = ""
    verdict: Literal["allow", "deny", "ask", "none", "error"] = "none"
    output: str = ""
    tool_call_id: str | None = None
    duration_seconds: float | None = None


class Condensed(BaseEvent):
    """A summary replaces the events with `start <= seq < stop` in later requests. The events stay in the log.

    Attributes:
        usage: Usage of the request for the summary.
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
        reason: The reason, if it is not obvious.
    """

    kind: Literal["StateChanged"] = "StateChanged"
    changes: JsonObject
    reason: str | None = None


class Imported(BaseEvent):
    """All earlier events were imported. Approvals are void, and every call asks until a person adopts the conversation.

    Attributes:
        count: Number of imported events.
        signer: Public key that signed the bundle, hexadecimal; None if unsigned.
        trusted: Whether the signer was trusted at the import.
        bundle: sha256 of the bundle, hexadecimal.
        workspace: The folder that was chosen at the import.
    """

    kind: Literal["Imported"] = "Imported"
    count: int
    signer: str | None = None
    trusted: bool = False
    bundle: str | None = None
    workspace: str = "."


class OutputGiven(BaseEvent):
    """A run ended with a value of the agent's `output_type`.

    Attributes:
        data: The validated value, as JSON.
        output_type: Qualified name of the type.
    """

    kind: Literal["OutputGiven"] = "OutputGiven"
    data: Json
    output_type: str


class UsageAdded(BaseEvent):
    """A request outside the conversation was paid for. Never shown to the model."""

    kind: Literal["UsageAdded"] = "UsageAdded"
    purpose: Literal["ask", "analyzer", "title", "judge"]
    model: str | None = None
    usage: Usage = Usage()


class MessageStored(BaseEvent):
    """A message that a PydanticAI program stores unchanged. bough's own conversations have none.

    Attributes:
        message: The `ModelMessage` as JSON.
        parent: The event of the previous message; None for the first one.
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
    | TaskChanged
    | TaskNoted
    | TaskEnded
    | Imported
    | OutputGiven
    | UsageAdded
    | RequestRetried
    | RulesChanged
    | FilesKept
    | CheckRan
    | ErrorRaised
    | PauseRequested
    | LimitReached
    | StuckDetected
    | MessageStored,
    Field(discriminator="kind"),
]
"""Any event."""
