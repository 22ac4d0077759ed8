"""Bodies that make, change and fork conversations, in our form; OpenHands' form is in `openhands.bodies`."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, StringConstraints

from bough.conversation.log.condenser import Condenser, NoCondenser, condenser_from_json
from bough.errors import InvalidInput
from bough.events.model import UserMessage
from bough.events.record import Status
from bough.guard import AllowList, Limits
from bough.server.forms.base import MAX_PLACE, Flag, Form, Moment, Number, Reason, Tags, Title, Whole
from bough.server.forms.events import ContentItem, NewMessage
from bough.types import JsonObject

Message = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class PolicyForm(Form):
    """When a call waits for a person."""

    kind: Literal["AlwaysConfirm", "NeverConfirm", "ConfirmRisky"]
    threshold: Literal["LOW", "MEDIUM", "HIGH"] | None = None
    confirm_unknown: Flag | None = None

    def as_json(self) -> JsonObject:
        """Return it as the guard reads it."""
        return self.model_dump(exclude_none=True)


class LimitsForm(Form):
    """Bounds of a run; what is left out has its default, null is unbounded."""

    requests: Whole | None = Field(default=None, ge=0)
    input_tokens: Whole | None = Field(default=None, ge=0)
    output_tokens: Whole | None = Field(default=None, ge=0)
    total_tokens: Whole | None = Field(default=None, ge=0)
    cost_usd: Number | None = Field(default=None, ge=0)
    wall_seconds: Number | None = Field(default=None, ge=0)
    steps: Whole | None = Field(default=None, ge=0)
    tasks: Whole | None = Field(default=None, ge=0)
    depth: Whole | None = Field(default=None, ge=0)
    unpriced: Literal["refuse", "allow"] = "refuse"

    def limits(self) -> Limits:
        """Return it as the guard has it."""
        return Limits(**self.model_dump(exclude_unset=True))


AllowEntry = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
AllowEntries = Annotated[list[AllowEntry], Field(max_length=200)]
AllowForm = AllowEntries | Annotated[list[AllowEntries], Field(max_length=20)]
"""Which calls may be made at all: `["Read", "Bash(git:*)"]`, or several such lists, each of which must allow a call."""


def read_allow_list(given: list[str] | list[list[str]]) -> AllowList:
    """Return the allow-list of a body.

    Raises:
        InvalidInput: An entry is neither `Tool` nor `Tool(pattern)`.
    """
    entries = [each for each in given if isinstance(each, str)]
    lists = [each for each in given if not isinstance(each, str)] or [entries]  # one empty list allows nothing
    if any(not AllowList.of(entry).lists[0] for entries in lists for entry in entries):
        raise InvalidInput("allow_list: an entry names no tool", hint='for example ["Read", "Bash(git:*)"]')
    return AllowList(tuple(AllowList.of(*entries).lists[0] for entries in lists))


class CondenserForm(Form):
    """How the model's context is kept short; the conversation's own model writes summaries."""

    kind: Literal["SummarizingCondenser", "KeepFirstCondenser"]
    max_events: Whole = Field(default=120, ge=4, le=MAX_PLACE)
    keep_first: Whole = Field(default=2, ge=0, le=MAX_PLACE)
    max_tokens: Whole | None = Field(default=None, ge=1, le=MAX_PLACE)

    def condenser(self) -> Condenser:
        """Return it as a conversation has it.

        Raises:
            InvalidInput: `keep_first` is too large for `max_events`, or the kind has no `max_tokens`.
        """
        if self.kind == "KeepFirstCondenser" and self.max_tokens is not None:
            raise InvalidInput(
                "condenser.max_tokens: KeepFirstCondenser counts messages, not tokens", hint="leave it out"
            )
        recorded = self.model_dump(exclude=set() if self.kind == "SummarizingCondenser" else {"max_tokens"})
        return condenser_from_json(recorded, NoCondenser())


class AgentForm(Form):
    """An agent as data: what anybody may say of one. Everything that names code, paths or hosts is for admins."""

    name: str = Field(default="default", min_length=1, max_length=64, pattern=r"^[\w.-]+$")
    description: str = Field(default="", max_length=2000)
    model: ModelName | None = None
    base_url: str | None = Field(default=None, max_length=2000)
    api_key: str | None = Field(default=None, min_length=1, max_length=4096, repr=False)
    system_prompt: str | None = Field(default=None, max_length=1 << 20)
    system_prompt_path: str | None = Field(default=None, max_length=4096)
    skill_roots: list[str] | None = Field(default=None, max_length=100)
    discover_skills: Flag | None = None
    workspace_access: Literal["none", "read", "write", "run"] | None = None
    catalog_tokens: Whole | None = Field(default=None, ge=0, le=1_000_000)


class WorkspaceForm(Form):
    """Where the tools of a conversation work."""

    working_dir: str | None = Field(default=None, min_length=1, max_length=4096)
    policy: Literal["shared"] | None = None


_NEWER_FIELDS = frozenset({"allow_list", "condenser"})


def drop_unset(body: JsonObject) -> JsonObject:
    """Return a body without newer fields that are not set: its digest is as it was before these fields existed."""
    return {name: value for name, value in body.items() if value is not None or name not in _NEWER_FIELDS}


class NewConversation(Form):
    """A new conversation, in our form."""

    id: UUID | None = None
    title: Title | None = None
    tags: Tags = Field(default_factory=dict)
    agent: str | AgentForm | None = None
    workspace: WorkspaceForm | None = None
    confirmation_policy: PolicyForm | None = None
    security_analyzer: dict[str, Any] | None = None
    limits: LimitsForm | None = None
    allow_list: AllowForm | None = None
    condenser: CondenserForm | None = None
    secrets: Annotated[dict[str, str], Field(max_length=100)] | None = Field(default=None, repr=False)
    initial_message: Message | list[ContentItem] | None = None
    run: Flag = False

    def digestible(self) -> JsonObject:
        """Return what makes two requests the same: everything but secrets."""
        return drop_unset(self.model_dump(mode="json", exclude={"secrets": True, "agent": {"api_key"}}))

    def message(self) -> UserMessage | None:
        """Return the first message.

        Raises:
            InvalidInput: An image is no `data:` URL.
        """
        return None if self.initial_message is None else NewMessage(content=self.initial_message).event()


class Change(Form):
    """What PATCH changes; what is left out stays."""

    title: Title | None = None
    tags: Tags | None = None


class Overrides(Form):
    """What a fork does otherwise; rules only get stricter."""

    model: ModelName | None = None
    system_prompt: str | None = Field(default=None, max_length=1 << 20)
    confirmation_policy: PolicyForm | None = None
    security_analyzer: dict[str, Any] | None = None
    limits: LimitsForm | None = None
    allow_list: AllowForm | None = None


class Fork(Form):
    """How to fork: OpenHands' fields, then ours. `agent` is a registered name, an `AgentForm`, or OpenHands' form.

    Source: OpenHands `POST /api/conversations/{id}/fork`.
    """

    id: UUID | None = None
    title: Title | None = None
    tags: Tags | None = None
    agent: str | dict[str, Any] | None = None
    reset_metrics: Flag = True
    from_event_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F-]{36}(\.\w+)?$")] | None = None
    at: Whole | None = Field(default=None, ge=0)
    snap: Literal["exact", "turn"] = "exact"
    pending: Literal["close", "drop", "carry"] = "close"
    overrides: Overrides | None = None
    inherit_tags: Flag = True
    workspace: Literal["shared", "readonly", "copy", "worktree"] = "shared"
    moment: Literal["then", "now"] | None = None
    reason: Reason | None = None


class Graft(Form):
    """What to tell a conversation of another one."""

    source: UUID
    start: Whole | None = Field(default=None, ge=0, le=MAX_PLACE)
    stop: Whole | None = Field(default=None, ge=0, le=MAX_PLACE)
    summary: str = Field(default="", max_length=1 << 20)


class ConversationQuery(Form):
    """Which conversations to list, and in which order."""

    status: Status | None = None
    text: str | None = Field(default=None, max_length=200)
    agent: str | None = Field(default=None, max_length=64)
    root: UUID | None = None
    tag: list[str] = Field(default=[], max_length=100)
    created_after: Moment | None = None
    created_before: Moment | None = None
    updated_after: Moment | None = None
    updated_before: Moment | None = None


class ConversationPage(ConversationQuery):
    """One page of such a list."""

    page_id: str | None = Field(default=None, max_length=200)
    limit: int = Field(default=100, ge=1, le=100)
    sort_order: Literal["CREATED_AT", "CREATED_AT_DESC", "UPDATED_AT", "UPDATED_AT_DESC"] = "CREATED_AT_DESC"
    full: bool = False
