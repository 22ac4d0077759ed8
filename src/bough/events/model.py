"""The kinds of events of a conversation: one frozen, versioned class each.

Events are facts. They are appended, never changed, and old ones load for ever (see `codec`). The order of an
event in its conversation (`seq`) belongs to the store, not to the event, because a fork shares the event itself.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias
from uuid import UUID

from pydantic import Field

from bough.events.base_event import (
    Attachment,
    BaseEvent,
    ContentPart,
    FilePart,
    ImagePart,
    Part,
    ResultFile,
    TextPart,
    Usage,
)
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


class SkillActivated(BaseEvent):
    """A skill's text entered the conversation.

    Attributes:
        trigger: What activated it: `keyword`, `task`, `path`, `always`, `slash` or `tool`.
        keyword: The matching word, as the message spelled it.
        content_hash: sha256 of the skill's text, hexadecimal.
        rendered: The text as the model sees it.
        allowed_tools: Tools that may be called while the skill is in use; None if it does not restrict them.
        tree: Digest of the skill's folder at activation. Its scripts and resources use this snapshot.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["SkillActivated"] = "SkillActivated"
    schema_version: int = 2
    name: str
    content_hash: str
    trigger: Literal["keyword", "task", "path", "always", "slash", "tool"]
    keyword: str | None = None
    rendered: str = ""
    inputs: dict[str, str] = Field(default={})
    allowed_tools: tuple[str, ...] | None = None
    tree: str = ""


class SkillSkipped(BaseEvent):
    """A skill could not be activated; the run continues without it.

    Attributes:
        code: Error code, for example `limit_exceeded`.
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


class RequestRetried(BaseEvent):
    """A request to the model failed temporarily and will be repeated. Written before the wait.

    Attributes:
        attempt: Number of the failed attempt, from 1, out of `attempts`.
        status: HTTP status, if any.
        error: The error in one line.
        model: The model that failed.
        next_model: The model that is tried next; None for the same one.
    """

    kind: Literal["RequestRetried"] = "RequestRetried"
    attempt: int
    attempts: int
    status: int | None = None
    error: str
    wait_seconds: float
    model: str
    next_model: str | None = None


class ErrorRaised(BaseEvent):
    """A run ended in an error."""

    kind: Literal["ErrorRaised"] = "ErrorRaised"
    code: str
    message: str
    hint: str = ""


class PauseRequested(BaseEvent):
    """A request to stop the run at its next step.

    Attributes:
        now: Stop at once instead: an interrupt.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["PauseRequested"] = "PauseRequested"
    schema_version: int = 2
    by: str = "user"
    reason: str = ""
    now: bool = False


class LimitReached(BaseEvent):
    """A limit was reached."""

    kind: Literal["LimitReached"] = "LimitReached"
    limit: str
    value: float
    bound: float


class StuckDetected(BaseEvent):
    """The agent repeats itself."""

    kind: Literal["StuckDetected"] = "StuckDetected"
    pattern: str
    events: tuple[UUID, ...] = ()


class RulesChanged(BaseEvent):
    """Files with rules for agents changed during a run. Files with these digests are ignored until a person agrees.

    Attributes:
        paths: Relative to the workspace; empty if the digests were inherited from another conversation.
        hashes: sha256 of each file, hexadecimal, in the order of `paths`.
    """

    kind: Literal["RulesChanged"] = "RulesChanged"
    paths: tuple[str, ...]
    hashes: tuple[str, ...]


class FilesKept(BaseEvent):
    """A snapshot of the workspace's files was stored, or could not be. Never shown to the model.

    Attributes:
        tree: Digest of the stored tree; None if nothing was stored, with the `reason`.
        before: Digest of the previous tree, whoever stored it.
        of: For `restore` `{"at"}`; for `apply` `{"conversation", "start", "stop"}`.
        files: Number of files in the tree; `bytes` is their size.
        added: Number of files added since `before`; `changed` and `removed` likewise.
        paths: The first of these files, with secrets masked.
        skipped: Newly omitted paths, each with the reason.
    """

    kind: Literal["FilesKept"] = "FilesKept"
    tree: str | None
    before: str | None
    by: Literal["first", "outside", "tool", "restore", "apply", "fork"]
    tool_call_id: str | None = None
    of: JsonObject = Field(default={})
    files: int = 0
    bytes: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    paths: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    skipped_count: int = 0
    unsettled: int = 0
    reason: str = ""
    place: str = ""
    seconds: float = 0.0


class CheckRan(BaseEvent):
    """A command checked the files of a run. Never shown to the model.

    Attributes:
        passed: Whether the exit code was 0.
        stdout: The last 4 KiB, with secrets masked; `stderr` likewise.
        tree: Digest of the checked files.
        session: Session of an attempt; `variant` and `repeat` likewise.
    """

    kind: Literal["CheckRan"] = "CheckRan"
    command: str
    passed: bool
    exit_code: int | None
    timed_out: bool = False
    killed_by: str | None = None
    stdout: str = ""
    stderr: str = ""
    tree: str | None = None
    isolation: str = "none"
    seconds: float = 0.0
    session: str | None = None
    variant: str | None = None
    repeat: int | None = None


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
    "ResultFile",
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

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The images and files of the message."""
        return tuple(part for part in self.content if isinstance(part, ImagePart | FilePart))

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
        may_write: False for a tool that writes no file of the workspace; True in older logs.
        arguments: The arguments that the tool runs with.
        edited_by: Who edited the arguments; None if they are the model's.
    """

    VERSION: ClassVar[int] = 3

    kind: Literal["ToolCalled"] = "ToolCalled"
    schema_version: int = 3
    tool_call_id: str
    tool: str
    arguments: JsonObject = Field(default={})
    risk: Literal["LOW", "MEDIUM", "HIGH", "UNKNOWN"] | None = None
    idempotent: bool = False
    may_write: bool = True
    edited_by: str | None = None


class ToolReturned(BaseEvent):
    """A tool finished and this is its result.

    Attributes:
        by: Who provided the result in place of the tool; None if the tool did.
        shown: How many characters of the result the model sees; None for all.
        tasks: Ids of the tasks whose results it contains.
        usage: Usage of the tool itself.
        files: The images and files in `result`, each once. There, `sha256` takes the place of the bytes; results of
            older logs have the bytes in base64 and no `files`.
    """

    VERSION: ClassVar[int] = 3

    kind: Literal["ToolReturned"] = "ToolReturned"
    schema_version: int = 3
    tool_call_id: str
    tool: str
    result: Json = None
    duration_seconds: float | None = None
    by: str | None = None
    shown: int | None = None
    tasks: tuple[str, ...] = ()
    usage: Usage | None = None
    files: tuple[ResultFile, ...] = ()

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The images and files of the result."""
        return self.files


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
