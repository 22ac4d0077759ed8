"""Bodies that start, change and fork conversations, in our form and in OpenHands'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag

from bough.conversation.log.recorded_tools import ToolSource
from bough.errors import InvalidInput
from bough.events.model import UserMessage
from bough.events.record import MAX_USD, SearchHit, Status
from bough.server.bodies.agents import AgentBody, AgentForm, ModelName, is_openhands_agent
from bough.server.bodies.base import (
    MAX_SEQ,
    Flag,
    Form,
    Integer,
    LenientForm,
    Moment,
    Reason,
    Stamp,
    Success,
    Tags,
    Title,
    stamp,
)
from bough.server.bodies.events import ContentItem, NewMessage
from bough.server.bodies.rules import AllowForm, BudgetForm, BudgetId, CondenserForm, LimitsForm, PolicyForm
from bough.types import JsonObject

_OURS, _OPENHANDS = "form:ours", "form:openhands"
_SECRET_FIELDS = frozenset({"api_key", "secrets"})

Message = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]


class WorkspaceForm(Form):
    """The folder that the tools of a conversation work in."""

    working_dir: str | None = Field(default=None, min_length=1, max_length=4096)
    policy: Literal["shared"] | None = None


class Deletion(Success):
    """The conversation was deleted; `erasure` is the receipt if it was erased."""

    erasure: JsonObject | None = None


_NEWER_FIELDS = frozenset({"allow_list", "budget", "condenser", "tools"})
"""Fields that older versions of bough did not have."""


def drop_unset(body: JsonObject) -> JsonObject:
    """Return a body without unset newer fields, so that its digest does not depend on the version of bough."""
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
    budget: BudgetId | BudgetForm | None = None
    allow_list: AllowForm | None = None
    condenser: CondenserForm | None = None
    secrets: Annotated[dict[str, str], Field(max_length=100)] | None = Field(default=None, repr=False)
    initial_message: Message | list[ContentItem] | None = None
    run: Flag = False

    def digestible(self) -> JsonObject:
        """Return the part of the body that its idempotency digest covers: everything but secrets."""
        return drop_unset(self.model_dump(mode="json", exclude={"secrets": True, "agent": {"api_key"}}))

    def message(self) -> UserMessage | None:
        """Return the first message.

        Raises:
            InvalidInput: An image is not a `data:` URL.
        """
        return None if self.initial_message is None else NewMessage(content=self.initial_message).event()

    def starts_run(self) -> bool:
        """Whether the request also starts a run."""
        return self.run

    def secret_values(self) -> dict[str, str]:
        """Return the secrets by name."""
        return self.secrets or {}


class WorkspaceBody(LenientForm):
    """A working folder in OpenHands' form."""

    kind: Literal["LocalWorkspace"] = "LocalWorkspace"
    working_dir: str | None = Field(default=None, min_length=1, max_length=4096)


class MessageBody(LenientForm):
    """The first message in OpenHands' form."""

    role: Literal["user"] = "user"
    content: list[ContentItem] = Field(default=[], max_length=1000)
    run: bool = False


class ThresholdsBody(LenientForm):
    """Thresholds at which an agent counts as stuck."""

    model_config = ConfigDict(extra="allow")


class StartConversation(LenientForm):
    """The body of `POST /api/conversations` as OpenHands' client sends it."""

    agent: AgentBody
    workspace: WorkspaceBody = WorkspaceBody()
    conversation_id: UUID | None = None
    confirmation_policy: JsonObject | None = None
    security_analyzer: JsonObject | None = None
    max_iterations: int = Field(default=500, ge=1, le=1_000_000)
    stuck_detection: bool = True
    stuck_detection_thresholds: ThresholdsBody | None = None
    initial_message: MessageBody | None = None
    tags: Tags = Field(default_factory=dict)
    secrets: dict[str, Any] = Field(default={}, max_length=100)
    tool_module_qualnames: dict[str, str] = Field(default={}, max_length=1000)
    observability_metadata: Any = None
    observability_tags: Any = None
    observability_span_name: Any = None
    observability_parent_span_context: Any = None
    user_id: Any = None
    autotitle: Any = None
    title_llm_profile: Any = None
    agent_definitions: Any = None
    hook_config: Any = None
    plugins: Any = None
    client_tools: Any = None
    agent_launch_additions: Any = None
    worktree: Any = None
    worktree_options: Any = None
    agent_settings: Any = None
    agent_profile_id: Any = None
    parent_conversation_id: Any = None
    secrets_encrypted: bool = False
    conversation_runtime: Any = None
    container: Any = None

    def digestible(self) -> JsonObject:
        """Return the part of the body that its idempotency digest covers: no values of secrets, no tracing fields."""
        return _without_secrets(self.model_dump(mode="json", exclude={"secrets"})) | {
            "secrets": sorted(self.secrets),
            **{name: None for name in type(self).model_fields if name.startswith("observability_")},
        }

    def secret_values(self) -> dict[str, str]:
        """Return the secrets by name.

        Raises:
            InvalidInput: A secret is not a text, or must be looked up elsewhere.
        """
        return read_secrets(self.secrets)

    def message(self) -> UserMessage | None:
        """Return the first message; None if it is empty.

        Raises:
            InvalidInput: An image is not a `data:` URL.
        """
        message = self.initial_message
        if message is None or not message.content:
            return None
        return UserMessage(content=tuple(part for item in message.content for part in item.parts()))

    def starts_run(self) -> bool:
        """Whether the request also starts a run."""
        return self.initial_message is not None and self.initial_message.run


def _form_tag(body: Any) -> str:
    """Return the tag of a body's form, for pydantic's discriminator."""
    agent = cast("JsonObject", body).get("agent") if isinstance(body, dict) else getattr(body, "agent", None)
    return _OPENHANDS if is_openhands_agent(agent) else _OURS


AnyStart = Annotated[
    Annotated[NewConversation, Tag(_OURS)] | Annotated[StartConversation, Tag(_OPENHANDS)],
    Discriminator(_form_tag),
    Body(),
]
"""The body of `POST /api/conversations`. The form of its agent decides the form of the body."""


def read_secrets(secrets: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of posted secrets, each of which is a string or a `StaticSecret`.

    Raises:
        InvalidInput: A secret is of another kind. `LookupSecret` is refused, because the server calls no address from a
            body.
    """
    values: dict[str, str] = {}
    for name, secret in secrets.items():
        fields: JsonObject = cast("JsonObject", secret) if isinstance(secret, dict) else {"value": secret}
        if fields.get("kind", "StaticSecret") != "StaticSecret" or not isinstance(fields.get("value"), str):
            raise InvalidInput(f"secrets.{name}: not a text", hint="send a text or a StaticSecret, not a LookupSecret")
        values[name] = fields["value"]
    return values


def _without_secrets(value: Any) -> Any:
    """Return a JSON value without the fields in `_SECRET_FIELDS`, at any depth."""
    if isinstance(value, dict):
        pairs: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {name: _without_secrets(item) for name, item in pairs.items() if name not in _SECRET_FIELDS}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


class Change(Form):
    """The changes of a PATCH; missing fields remain unchanged."""

    title: Title | None = None
    tags: Tags | None = None


class Overrides(Form):
    """Settings in which a fork differs from its source; rules can only become stricter."""

    model: ModelName | None = None
    system_prompt: str | None = Field(default=None, max_length=1 << 20)
    tools: ToolSource | None = None
    confirmation_policy: PolicyForm | None = None
    security_analyzer: dict[str, Any] | None = None
    limits: LimitsForm | None = None
    budget: BudgetId | BudgetForm | None = None
    allow_list: AllowForm | None = None


class Fork(Form):
    """How to fork: OpenHands' fields, then ours. `agent` is a registered name, or an agent in either form.

    Source: OpenHands `POST /api/conversations/{id}/fork`.
    """

    id: UUID | None = None
    title: Title | None = None
    tags: Tags | None = None
    agent: str | dict[str, Any] | None = None
    reset_metrics: Flag = True
    from_event_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F-]{36}(\.\w+)?$")] | None = None
    at: Integer | None = Field(default=None, ge=0)
    snap: Literal["exact", "turn"] = "exact"
    pending: Literal["close", "drop", "carry"] = "close"
    overrides: Overrides | None = None
    inherit_tags: Flag = True
    workspace: Literal["shared", "readonly", "copy", "worktree"] = "shared"
    moment: Literal["then", "now"] | None = None
    reason: Reason | None = None


class Repeat(Form):
    """The turn whose message is sent again: of `conversation`, or of the one that is addressed."""

    turn: Integer = Field(ge=1, le=MAX_SEQ)
    conversation: UUID | None = None
    id: UUID | None = None
    run: Flag = False


class TurnPage(Form):
    """Which page of a conversation's turns to return. `page_id` is the number of its first turn."""

    page_id: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,14}$")] = "1"
    limit: int = Field(default=20, ge=1, le=100)


class ComparedTurnPage(Form):
    """Which page of the turns of two conversations to return.

    `page_id` is the number of its first turn; without it, the page begins after the common events. Texts and results
    of more than `cut` characters are cut.
    """

    page_id: Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,14}$")] | None = None
    limit: int = Field(default=20, ge=1, le=20)
    cut: int = Field(default=8192, ge=0, le=1 << 20)


class Graft(Form):
    """The events of another conversation that a message describes; `summary` replaces the description."""

    source: UUID
    start: Integer | None = Field(default=None, ge=0, le=MAX_SEQ)
    stop: Integer | None = Field(default=None, ge=0, le=MAX_SEQ)
    summary: str = Field(default="", max_length=1 << 20)


class ConversationQuery(Form):
    """Which conversations to list."""

    status: Status | None = None
    text: str | None = Field(default=None, max_length=200)
    agent: str | None = Field(default=None, max_length=64)
    root: UUID | None = None
    project: str | None = Field(default=None, max_length=4096)
    tag: list[str] = Field(default=[], max_length=100)
    created_after: Moment | None = None
    created_before: Moment | None = None
    updated_after: Moment | None = None
    updated_before: Moment | None = None
    min_cost_usd: float | None = Field(default=None, ge=0, le=MAX_USD, allow_inf_nan=False)


class ConversationPage(ConversationQuery):
    """Which page of the list of conversations to return, and in which order."""

    page_id: str | None = Field(default=None, max_length=200)
    limit: int = Field(default=100, ge=1, le=100)
    sort_order: Literal["CREATED_AT", "CREATED_AT_DESC", "UPDATED_AT", "UPDATED_AT_DESC", "COST", "COST_DESC"] = (
        "CREATED_AT_DESC"
    )
    full: bool = False


class ConversationSearch(ConversationPage):
    """Which conversations to list, or with `q`, which messages to find in all of them.

    Attributes:
        q: Words, all of which are required; quotes make a phrase, `-word` excludes, `word*` is a prefix. The items of
            the page are then messages, the newest first, and only `tag`, `project`, `since`, `limit` and `page_id` may
            be given.
        since: Only messages at this time or later.
    """

    q: str | None = Field(default=None, max_length=2000)
    since: Moment | None = None


class MessageHit(BaseModel):
    """A message that matches `q`.

    Attributes:
        matches: The ranges of `snippet` that match, in code points.
    """

    conversation: UUID
    title: str | None
    seq: int
    who: Literal["user", "assistant"]
    when: Stamp
    snippet: str
    matches: list[tuple[int, int]]

    @classmethod
    def of(cls, hit: SearchHit) -> MessageHit:
        """Return the document of a hit."""
        return cls(
            conversation=hit.conversation,
            title=hit.title,
            seq=hit.seq,
            who=hit.who,
            when=stamp(hit.when),
            snippet=hit.snippet,
            matches=list(hit.matches),
        )
