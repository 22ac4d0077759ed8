"""Bodies that start, change and fork conversations. `is_openhands_agent` tells OpenHands' form from ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from fastapi import Body
from pydantic import ConfigDict, Discriminator, Field, StringConstraints, Tag

from bough.errors import InvalidInput
from bough.events.model import UserMessage
from bough.events.record import Status
from bough.server.bodies.agents import AgentBody, AgentForm, ModelName, is_openhands_agent
from bough.server.bodies.base import MAX_PLACE, Flag, Form, LenientForm, Moment, Reason, Tags, Title, Whole
from bough.server.bodies.events import ContentItem, NewMessage
from bough.server.bodies.rules import AllowForm, CondenserForm, LimitsForm, PolicyForm
from bough.types import JsonObject

_OURS, _OPENHANDS = "form:ours", "form:openhands"
_SECRET_FIELDS = frozenset({"api_key", "secrets"})

Message = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]


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

    def starts_run(self) -> bool:
        """Whether a run is started."""
        return self.run

    def secret_values(self) -> dict[str, str]:
        """Return the secrets by name."""
        return self.secrets or {}


class WorkspaceBody(LenientForm):
    """A working folder."""

    kind: Literal["LocalWorkspace"] = "LocalWorkspace"
    working_dir: str | None = Field(default=None, min_length=1, max_length=4096)


class MessageBody(LenientForm):
    """The first message."""

    role: Literal["user"] = "user"
    content: list[ContentItem] = Field(default=[], max_length=1000)
    run: bool = False


class ThresholdsBody(LenientForm):
    """When an agent counts as stuck."""

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
        """Return the part of the body that its idempotency digest covers: no secrets, nothing for observers."""
        return _without_secrets(self.model_dump(mode="json", exclude={"secrets"})) | {
            "secrets": sorted(self.secrets),
            **{name: None for name in type(self).model_fields if name.startswith("observability_")},
        }

    def secret_values(self) -> dict[str, str]:
        """Return the secrets by name.

        Raises:
            InvalidInput: One is looked up elsewhere.
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
        """Whether a run is started."""
        return self.initial_message is not None and self.initial_message.run


def _form_tag(body: Any) -> str:
    agent = cast("JsonObject", body).get("agent") if isinstance(body, dict) else getattr(body, "agent", None)
    return _OPENHANDS if is_openhands_agent(agent) else _OURS


AnyStart = Annotated[
    Annotated[NewConversation, Tag(_OURS)] | Annotated[StartConversation, Tag(_OPENHANDS)],
    Discriminator(_form_tag),
    Body(),
]
"""The body of `POST /api/conversations`: the form of its agent is the form of the body."""


def read_secrets(secrets: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of posted secrets: strings, or `StaticSecret`s.

    Raises:
        InvalidInput: One is looked up elsewhere: the server calls no address of a body.
    """
    values: dict[str, str] = {}
    for name, secret in secrets.items():
        data: JsonObject = cast("JsonObject", secret) if isinstance(secret, dict) else {"value": secret}
        if data.get("kind", "StaticSecret") != "StaticSecret" or not isinstance(data.get("value"), str):
            raise InvalidInput(f"secrets.{name}: not a text", hint="a text, or a StaticSecret; LookupSecret is refused")
        values[name] = data["value"]
    return values


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        pairs: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {name: _without_secrets(item) for name, item in pairs.items() if name not in _SECRET_FIELDS}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


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
