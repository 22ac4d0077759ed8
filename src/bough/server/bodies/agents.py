"""Agents in a body: the name of a registered agent, an agent as data, or an agent of OpenHands."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, StringConstraints, ValidationError

from bough.errors import InvalidInput
from bough.server.bodies.base import Flag, Form, Integer, LenientForm
from bough.types import JsonObject

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class AgentForm(Form):
    """An agent as data. Only admins may set fields that name paths or hosts; no field names code."""

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
    catalog_tokens: Integer | None = Field(default=None, ge=0, le=1_000_000)


class LlmBody(Form):
    """A model in OpenHands' form. Other fields are stored, but those for hosts, files or accounts are refused."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=200)
    base_url: str | None = Field(default=None, max_length=2000)
    api_key: str | None = Field(default=None, max_length=10_000)


class ToolBody(LenientForm):
    """A tool by name."""

    name: str = Field(min_length=1, max_length=200)
    params: JsonObject = Field(default_factory=dict)


class AgentBody(LenientForm):
    """An agent in OpenHands' form."""

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


PostedAgent: TypeAlias = str | AgentForm | AgentBody
"""The agent of a body: the name of a registered agent, an agent in our form, or one in OpenHands' form."""


def is_openhands_agent(agent: Any) -> bool:
    """Whether the agent of a body is in OpenHands' form, which alone has a `kind` or an `llm`."""
    return isinstance(agent, AgentBody) or (isinstance(agent, dict) and ("llm" in agent or "kind" in agent))


def parse_agent(agent: str | JsonObject) -> PostedAgent:
    """Return the agent of a body, validated in the form that it has.

    Raises:
        InvalidInput: A field of the agent is invalid; the message names it.
    """
    if isinstance(agent, str):
        return agent
    form = AgentBody if is_openhands_agent(agent) else AgentForm
    try:
        return form.model_validate(agent)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(["agent", *map(str, first["loc"])])
        raise InvalidInput(f"{field}: {first['msg']}", hint="see /docs for the fields") from error
