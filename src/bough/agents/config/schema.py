"""The schema of `config.yaml` as pydantic models, from which the JSON schema is generated."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from bough.types import JsonObject

Name: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,64}$")]
_ONE_WAY: JsonObject = {"oneOf": [{"required": ["url"]}, {"required": ["command"]}]}
_ONE_PROMPT: JsonObject = {"not": {"required": ["system_prompt", "system_prompt_path"]}}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelEntry(_Strict):
    """A model: a model string, or a family and a name."""

    model: str | None = None
    model_family: Literal["openai", "azure", "bedrock", "ollama", "openrouter"] | None = None
    model_name: str | None = None
    api_key: str | None = None
    base_url: str | None = None
    endpoint: str | None = None
    api_version: str | None = None
    timeout: float | None = Field(default=None, gt=0)
    parallel_tool_calls: bool | None = None
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])


class PolicyEntry(_Strict):
    """A confirmation policy with its fields."""

    kind: Literal["AlwaysConfirm", "NeverConfirm", "ConfirmRisky"]
    threshold: Literal["LOW", "MEDIUM", "HIGH"] | None = None
    confirm_unknown: bool | None = None


class LimitsEntry(_Strict):
    """Limits of an agent's runs; None means no limit."""

    requests: int | None = Field(default=None, ge=0)
    input_tokens: int | None = Field(default=None, ge=0)
    output_tokens: int | None = Field(default=None, ge=0)
    total_tokens: int | None = Field(default=None, ge=0)
    cost_usd: float | None = Field(default=None, ge=0)
    wall_seconds: float | None = Field(default=None, ge=0)
    steps: int | None = Field(default=None, ge=0)
    tasks: int | None = Field(default=None, ge=0)
    depth: int | None = Field(default=None, ge=0)
    per: Literal["run", "conversation"] | None = None
    unpriced: Literal["refuse", "allow"] | None = None


class AgentEntry(_Strict):
    """An agent."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_ONE_PROMPT)

    description: str = ""
    model: str | None = None
    system_prompt: str | None = None
    system_prompt_path: str | None = None
    tools: list[str] = Field(default_factory=list[str])
    mcp_servers: list[str] = Field(default_factory=list[str])
    a2a_clients: list[str] = Field(default_factory=list[str])
    skill_roots: list[str] = Field(default_factory=list[str])
    skills: list[str] | None = None
    sub_agents: list[str] = Field(default_factory=list[str])
    workspace_access: Literal["none", "read", "write", "run"] = "none"
    workspace: Literal["shared", "readonly", "copy", "worktree"] = "shared"
    queue: str = Field(default="default", pattern=r"^[a-z0-9_.-]{1,64}$")
    ask: bool = False
    confirmation_policy: Literal["allow", "ask", "rules"] | PolicyEntry | None = None
    allow_list: list[str] | None = None
    limits: LimitsEntry | None = None
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    fallback: list[str] = Field(default_factory=list[str])


class McpServerEntry(_Strict):
    """An MCP server, with the fields of `MCPClientConfig`."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_ONE_WAY)

    type: Literal["client"] = "client"
    url: str | None = None
    command: str | None = None
    args: list[str] = Field(default_factory=list[str])
    env: dict[str, str] = Field(default_factory=dict[str, str])
    cwd: str | None = None
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    bearer_token: str | None = None
    read_timeout: float = Field(default=60, gt=0)
    start_timeout: float = Field(default=30, gt=0)
    tool_prefix: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,32}$")
    allowed_tools: list[str] | None = None


class A2AClientEntry(_Strict):
    """A remote agent, with the fields of `A2AClientConfig`."""

    url: str
    timeout: float = Field(default=300, gt=0)
    poll_interval: float = Field(default=1.0, gt=0)
    max_retries: int = Field(default=3, ge=0)
    retry_delay: float = Field(default=1.0, ge=0)
    bearer_token: str | None = None
    allow_hosts: list[str] = Field(default_factory=list[str])


class A2AEntry(_Strict):
    """Remote agents by name."""

    clients: dict[Name, A2AClientEntry] = Field(default_factory=dict[str, A2AClientEntry])


class SecretEntry(_Strict):
    """The source of a secret: an environment variable, or a file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"oneOf": [{"required": ["env"]}, {"required": ["file"]}]}
    )

    env: str | None = None
    file: str | None = None


class Config(_Strict):
    """A `config.yaml`, merged with the files that it extends."""

    extends: str | list[str] | None = None
    models: dict[Name, str | ModelEntry] = Field(default_factory=dict[str, str | ModelEntry])
    agents: dict[Name, AgentEntry] = Field(default_factory=dict[str, AgentEntry])
    mcp_servers: dict[Name, McpServerEntry] = Field(default_factory=dict[str, McpServerEntry])
    a2a: A2AEntry = Field(default_factory=A2AEntry)
    hooks: list[str] = Field(default_factory=list[str])
    analyzers: dict[Name, str] = Field(default_factory=dict[str, str])
    secrets: dict[Name, SecretEntry] = Field(default_factory=dict[str, SecretEntry])


def json_schema() -> JsonObject:
    """Return the JSON schema (2020-12) of `config.yaml`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}
