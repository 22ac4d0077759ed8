"""Bodies of OpenHands 1.58. What is honoured has a field here; what is kept or refused is named in a list."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import ConfigDict, Field

from bough.server.forms.base import Form, LenientForm, Tags
from bough.server.forms.events import ContentItem
from bough.types import JsonObject

SECRET_FIELDS = frozenset({"api_key", "secrets"})


class LlmBody(Form):
    """A model; its other fields are kept, but for those that reach for the operator's hosts, files or accounts."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=200)
    base_url: str | None = Field(default=None, max_length=2000)
    api_key: str | None = Field(default=None, max_length=10_000)


class ToolBody(LenientForm):
    """A tool by name."""

    name: str = Field(min_length=1, max_length=200)
    params: JsonObject = Field(default_factory=dict)


class AgentBody(LenientForm):
    """An agent."""

    kind: str = "Agent"
    llm: LlmBody
    tools: list[ToolBody] = Field(default=[], max_length=200)
    system_prompt: str | None = Field(default=None, max_length=1 << 20)
    condenser: JsonObject | None = None
    agent_context: JsonObject | None = None
    include_default_tools: Any = None
    system_prompt_filename: Any = None
    security_policy_filename: Any = None
    system_prompt_kwargs: Any = None
    tool_concurrency_limit: Any = None
    mcp_config: Any = None
    filter_tools_regex: Any = None
    critic: Any = None
    persona: Any = None


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
        """Return what says whether two requests are the same: no secret, nothing that is told to observers."""
        return _without_secrets(self.model_dump(mode="json", exclude={"secrets"})) | {
            "secrets": sorted(self.secrets),
            **{name: None for name in type(self).model_fields if name.startswith("observability_")},
        }


FIELDS = frozenset(StartConversation.model_fields) - {"agent", "workspace"}
"""Fields of the body that a body of our own form cannot have, unless it has them as well."""


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        pairs: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return {name: _without_secrets(each) for name, each in pairs.items() if name not in SECRET_FIELDS}
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value


class PolicyBody(LenientForm):
    """`POST {id}/confirmation_policy`."""

    policy: JsonObject


class AnalyzerBody(LenientForm):
    """`POST {id}/security_analyzer`."""

    security_analyzer: JsonObject | None


class SecretsBody(LenientForm):
    """`POST {id}/secrets`."""

    secrets: dict[str, Any] = Field(max_length=100)


class QuestionBody(LenientForm):
    """`POST {id}/ask_agent`."""

    question: str = Field(min_length=1, max_length=1 << 20, pattern=r"\S")
