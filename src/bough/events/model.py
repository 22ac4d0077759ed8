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
    """An image: its bytes in the store, in the log itself, or at an address.

    Attributes:
        data: The bytes, base64, as older logs have them; empty where `sha256` or `url` says where they are.
        media_type: For example `image/png`.
        sha256: Digest of the bytes that the store keeps beside the log, hexadecimal.
        size_bytes: Of these bytes.
        name: What the sender called it.
        url: Where it is, where it was never fetched.
    """

    type: Literal["image"] = "image"
    data: str = ""
    media_type: str
    sha256: str | None = None
    size_bytes: int | None = None
    name: str | None = None
    url: str | None = None


class FilePart(Part):
    """A file: named by its path in the workspace, or with its bytes in the store, or at an address.

    Attributes:
        path: Relative to the workspace, with forward slashes; empty where the bytes are not there.
        sha256: Digest of the bytes when the message was sent, hexadecimal.
        size_bytes: Of the bytes that the store keeps beside the log; None where it keeps none.
        name: What the sender called it.
        url: Where it is, where it was never fetched.
    """

    type: Literal["file"] = "file"
    path: str = ""
    media_type: str = "application/octet-stream"
    sha256: str | None = None
    size_bytes: int | None = None
    name: str | None = None
    url: str | None = None


ContentPart: TypeAlias = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]
"""One part of a message."""


class Usage(BaseModel):
    """What a model response consumed.

    Attributes:
        requests: Requests made to the model.
        input_tokens: All of the input, what the provider's prompt cache served included.
        cache_read_tokens: The part of it that was read from that cache; `cache_write_tokens`: that was put into it.
        cost_usd: None where the price of the model is not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None

    @property
    def cached_share(self) -> float:
        """Which part of the input was read from the provider's prompt cache; 0 without input."""
        return self.cache_read_tokens / self.input_tokens if self.input_tokens else 0.0


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
        tasks: Ids of the background tasks whose results it shows.
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
        seen: Events before this seq were in the request; messages that came later are still unanswered.
        finish_reason: Why it ended; `none` where a stream ended without a reason although its provider sends one.
        partial: Its text is cut off.
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
        risk: What the security analyzer said: LOW, MEDIUM, HIGH or UNKNOWN; None where none is set.
        idempotent: Whether the tool may simply run again when its result was lost.
        arguments: Those that run.
        edited_by: Who changed them, where somebody did.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["ToolCalled"] = "ToolCalled"
    schema_version: int = 2
    tool_call_id: str
    tool: str
    arguments: JsonObject = {}
    risk: Literal["LOW", "MEDIUM", "HIGH", "UNKNOWN"] | None = None
    idempotent: bool = False
    edited_by: str | None = None


class ToolReturned(BaseEvent):
    """A tool finished and this is its result.

    Attributes:
        by: Who gave the result, where no tool did.
        shown: How many characters of it the model is shown; None for all.
        tasks: Ids of the tasks whose results it shows.
        usage: What the tool itself consumed.
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
    """A tool call failed; the model is told.

    Attributes:
        retry: Whether the model was asked to try again (bad arguments, an unknown tool, a retryable fault).
        shown: How many characters of the error the model is shown; None for all.
        tasks: Ids of the tasks whose results it shows.
        usage: What the tool itself consumed.
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
        tree: Digest of the skill's folder as it was activated; its scripts and resources use that snapshot.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["SkillActivated"] = "SkillActivated"
    schema_version: int = 2
    name: str
    content_hash: str
    trigger: Literal["keyword", "task", "path", "always", "slash", "tool"]
    keyword: str | None = None
    rendered: str = ""
    inputs: dict[str, str] = {}
    allowed_tools: tuple[str, ...] | None = None
    tree: str = ""


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
    """A sub-agent's task was started from this conversation.

    Attributes:
        background: Nothing waits for it in the call that started it.
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
        state: The new one, as its lower-case value.
        attempt: How many times it was claimed.
        worker: Who wrote this.
        result: The answer's text, cut to a bound; `result_bytes` is its whole size.
        data: The validated value of the agent's `output_type`.
        code: Of the error, for example `limit_exceeded`.
        usage: Of the task: own and delegated.
        request: What it asks for: a question, or calls that wait for approval.
        metadata: What the submitter said of it.
        bounds: Of each ancestor with bounds: conversation, limits, what was spent, level.
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
    metadata: JsonObject = {}
    bounds: tuple[JsonObject, ...] = ()
    agent: str | None = None
    message: int | None = None


class TaskNoted(BaseEvent):
    """A program's note about a task. Never shown to the model.

    Attributes:
        task_id: None for the one that is live.
    """

    kind: Literal["TaskNoted"] = "TaskNoted"
    task_id: str | None = None
    event_type: Literal["progress", "log"] = "log"
    name: str = ""
    data: JsonObject = {}


class TaskEnded(BaseEvent):
    """A task that this conversation started has ended.

    Attributes:
        state: `completed`, `failed` or `cancelled`.
        result: The answer's text, cut to a bound; `result_bytes` is its whole size.
        usage: Own and delegated, so that a tree sums without a walk.
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


class Imported(BaseEvent):
    """Everything before this came from elsewhere: approvals are void, and every call asks until a person adopts it.

    Attributes:
        count: How many events came.
        signer: Public key of who signed the bundle, hexadecimal; None for nobody.
        trusted: The signer was known here.
        bundle: sha256 of the bundle, hexadecimal.
        workspace: The folder that was chosen for it here.
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
    """A request beside the log was paid for. Never shown to the model."""

    kind: Literal["UsageAdded"] = "UsageAdded"
    purpose: Literal["ask", "analyzer", "title", "judge"]
    model: str | None = None
    usage: Usage = Usage()


class RequestRetried(BaseEvent):
    """A request to the model failed for a while and is repeated; written before the wait.

    Attributes:
        attempt: Which attempt failed, from 1; of `attempts` in all.
        status: HTTP status, where there was one.
        error: What went wrong, in one line.
        model: Which model failed.
        next_model: Which model is asked next; None for the same one.
    """

    kind: Literal["RequestRetried"] = "RequestRetried"
    attempt: int
    attempts: int
    status: int | None = None
    error: str
    wait_seconds: float
    model: str
    next_model: str | None = None


class RulesChanged(BaseEvent):
    """Files with rules for agents changed during a run; texts with these digests are not taken up unasked.

    Attributes:
        paths: Relative to the workspace.
        hashes: sha256 of each file, hexadecimal, in the order of `paths`.
    """

    kind: Literal["RulesChanged"] = "RulesChanged"
    paths: tuple[str, ...]
    hashes: tuple[str, ...]


class FilesKept(BaseEvent):
    """The workspace's files were kept, or why they were not. Never shown to the model.

    Attributes:
        tree: Digest of the kept tree; None where nothing was kept, `reason` says why.
        before: What was kept just before, whoever wrote it.
        of: For `restore` `{"at"}`; for `apply` `{"conversation", "start", "stop"}`.
        files: In the tree; `bytes` likewise.
        added: Against `before`; `changed` and `removed` likewise.
        paths: The first of those, secrets masked.
        skipped: Paths left out, with the reason, that were not named before.
    """

    kind: Literal["FilesKept"] = "FilesKept"
    tree: str | None
    before: str | None
    by: Literal["first", "outside", "tool", "restore", "apply", "fork"]
    tool_call_id: str | None = None
    of: JsonObject = {}
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
    """A command judged the files of a run. Never shown to the model.

    Attributes:
        passed: Its exit code was 0.
        stdout: The last 4 KiB, secrets masked; `stderr` likewise.
        tree: The files it judged.
        session: Of a try; `variant` and `repeat` likewise.
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


class ErrorRaised(BaseEvent):
    """A run ended in an error."""

    kind: Literal["ErrorRaised"] = "ErrorRaised"
    code: str
    message: str
    hint: str = ""


class PauseRequested(BaseEvent):
    """Someone asked the run to stop at its next step.

    Attributes:
        now: Not at its next step but at once: an interrupt.
    """

    VERSION: ClassVar[int] = 2

    kind: Literal["PauseRequested"] = "PauseRequested"
    schema_version: int = 2
    by: str = "user"
    reason: str = ""
    now: bool = False


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
