"""The declarative description of an agent, which a conversation records at its start and builds its agent from.

Source: agentic_patterns `AgentSpec`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeAlias, cast

import pydantic_core
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    SkipValidation,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_ai import Tool
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.models import Model
from pydantic_ai.output import OutputSpec
from pydantic_ai.toolsets import AbstractToolset
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypeVar

from bough.agents.config.agents import UNSET, AgentConfig, AgentFields, Unset
from bough.agents.config.code import name_tool
from bough.agents.output_type import describe_output_type
from bough.agents.retry_policy import RetryPolicy
from bough.agents.workspace.tools import WorkspaceAccess
from bough.connect.a2a import A2AClientExtended
from bough.connect.config import MCPClientConfig
from bough.errors import InvalidInput
from bough.execution.base import CodeExecutor
from bough.guard import AllowList, Limits, Policy, allow_list_from_json, limits_from_json, policy_from_json
from bough.settings import Settings
from bough.skills import Skill
from bough.types import Json, JsonObject

_LOG = logging.getLogger("bough.config")

DEFAULT_PROMPT = (
    "You help with the files in the current working folder. Prefer a skill that fits over doing the work by hand: "
    "load it, follow its instructions, run its scripts. Say plainly when nothing fits; never invent a result."
)


MODEL_OBJECT = "object:"
"""Prefix in a snapshot for a model that was given as an object and cannot be recreated from its name."""

SubAgentWorkspace: TypeAlias = Literal["shared", "readonly", "copy", "worktree"]
"""A sub-agent's workspace: its parent's folder, that folder read-only, a copy, or a git worktree of it."""

_NAME = r"^[\w.-]+$"
_QUEUE = r"^[a-z0-9_.-]{1,64}$"


def _retry(value: Any) -> RetryPolicy | None:
    if value is None or isinstance(value, RetryPolicy):
        return value
    try:
        return RetryPolicy(**value)
    except TypeError as error:
        raise ValueError("not a RetryPolicy, nor the values of one") from error


def _settings(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("the model's settings are a mapping of names to values")  # noqa: TRY004 - pydantic's way
    return cast("Mapping[str, Any]", value)


def _output_type(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("the type itself is needed, not its name")  # noqa: TRY004 - pydantic's way
    return value


def _limits(value: Any) -> Limits | None:
    return value if value is None or isinstance(value, Limits) else limits_from_json(value)


def _policy(value: Any) -> Policy | None:
    return value if value is None or isinstance(value, Policy) else policy_from_json(value)


def _allow_list(value: Any) -> AllowList | None:
    return value if value is None or isinstance(value, AllowList) else allow_list_from_json(value)


UNRECORDED_SETTINGS = frozenset({"extra_headers", "extra_body"})
"""Settings that a log never holds: they may contain keys."""

T = TypeVar("T", default=Any)
_V = TypeVar("_V")


class _AsItIs:
    """Accepts a field's value unchecked, because pydantic has no schema for it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.any_schema()


_AS_IT_IS = _AsItIs()


def _explain(error: ValidationError, fields: Sequence[str]) -> InvalidInput:
    """Return the error of the first mistake in an agent."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        near = get_close_matches(field, fields, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"it has: {', '.join(fields)}"
        return InvalidInput(f"an agent has no field {field!r}", hint=hint)
    text = first["msg"].removeprefix("Value error, ")
    return InvalidInput(f"AgentSpec.{field}: {text}" if field else text, hint="fix this value")


class AgentSpec(BaseModel, Generic[T]):
    """A declarative agent; `T` is the type of its answers.

    Attributes:
        name: Its name for people and other agents.
        model: A model string, for example `openai:gpt-5`, or a PydanticAI model; None takes the settings' one,
            `models.default` of `config.yaml`, that of a provider whose key is set, or the offline one, in this order.
        base_url: Address of an OpenAI-format server for `openai:` models.
        system_prompt: The system prompt, used verbatim; braces have no special meaning.
        system_prompt_path: A file to read the system prompt from; excludes `system_prompt`.
        api_key: The key of its model's provider, or a function that returns it; never recorded. None takes that
            of `models.default` if this is its model at its address, else the provider's environment variable.
        tools: Functions, and PydanticAI's `Tool`s; after a crash, `Tool(f, metadata={"idempotent": True})` is run
            again without asking.
        toolsets: PydanticAI's toolsets.
        mcp_servers: MCP servers whose tools it has; started at the first step, on this machine, not in the sandbox.
        a2a_clients: Remote agents that it can ask; each becomes a tool, described by its card.
        settings: The model's settings, as PydanticAI names them: temperature, thinking, max_tokens.
        fallback: Model strings that are tried in this order when the model keeps failing.
        retry: How a request is repeated that failed for a while; None takes the defaults of `RetryPolicy`.
        output_type: What it answers with: text, a type, a union, or PydanticAI's `NativeOutput`, `ToolOutput`,
            `PromptedOutput`, `TextOutput` and output functions.
        output_retries: How many answers may not fit `output_type` before the run ends in an error.
        skills: Exactly these; None names none, `[]` means none.
        skill_roots: Folders to discover skills in.
        discover_skills: Look in the usual places too (project, user, installed); False never reads a folder
            behind the caller's back.
        executor: Runs scripts; None takes the conversation's.
        workspace_access: Tools of its own for the workspace: `none`, `read`, `write`, or `run` commands in the sandbox.
        catalog_tokens: How much of the prompt the skill catalogue may take, in tokens.
        result_tokens: How much of one result of a tool the model is shown, in tokens of four characters, and never
            more than an eighth of its window; it reads on by `read_result`.
        agent: A PydanticAI agent to run as it is, with its instructions, tools and settings; prompt, skills and tools
            that the spec gives are added, its `model` goes first, and it answers with its own `output_type`.
        deps: What the tools of the spec and of `agent` get as their deps; never recorded. None gives tools of the spec
            a `ToolContext`.
        sub_agents: Agents it may delegate to; running it then needs a broker. Their names are unique.
        limits: Bounds of its runs, kept with whatever bounds the caller gives.
        confirmation_policy: Which of its calls wait for a person, at least.
        allow_list: Which calls it may make at all.
        workspace: What it works on as a sub-agent; the tools of its own are `workspace_access`.
        queue: Which workers run its tasks.
        ask: Offer the tool `ask` without a parent too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str = Field(default="default", min_length=1, max_length=64, pattern=_NAME)
    description: str = ""
    model: str | Model | None = None
    base_url: str | None = None
    system_prompt: str = DEFAULT_PROMPT
    system_prompt_path: Path | None = None
    api_key: Annotated[str | Callable[[], str] | None, _AS_IT_IS] = Field(default=None, exclude=True, repr=False)
    tools: Annotated[Sequence[Callable[..., Any] | Tool[Any]], _AS_IT_IS] = ()
    toolsets: Annotated[Sequence[AbstractToolset[Any]], _AS_IT_IS] = ()
    mcp_servers: Sequence[MCPClientConfig] = ()
    a2a_clients: Annotated[Sequence[A2AClientExtended], _AS_IT_IS] = ()
    settings: Annotated[Mapping[str, Any], _AS_IT_IS, BeforeValidator(_settings)] = Field(
        default_factory=dict[str, Any]
    )
    fallback: Sequence[str] = ()
    retry: Annotated[RetryPolicy | None, _AS_IT_IS, BeforeValidator(_retry)] = None
    output_type: Annotated[OutputSpec[T], _AS_IT_IS, BeforeValidator(_output_type)] = Field(default=cast(Any, str))
    output_retries: int = Field(default=3, ge=0)
    skills: Sequence[Skill] | None = None
    skill_roots: Sequence[Path] = ()
    discover_skills: bool = False
    executor: SkipValidation[CodeExecutor | None] = None
    workspace_access: WorkspaceAccess = "none"
    catalog_tokens: int = 2000
    result_tokens: int = Field(default=8000, ge=100)
    agent: SkipValidation[AbstractAgent[Any, Any] | None] = None
    deps: Any = Field(default=None, exclude=True, repr=False)
    sub_agents: Sequence[AgentSpec] = ()
    limits: Annotated[SkipValidation[Limits | None], BeforeValidator(_limits)] = None
    confirmation_policy: Annotated[SkipValidation[Policy | None], BeforeValidator(_policy)] = None
    allow_list: Annotated[SkipValidation[AllowList | None], BeforeValidator(_allow_list)] = None
    workspace: SubAgentWorkspace = "shared"
    queue: str = Field(default="default", pattern=_QUEUE)
    ask: bool = False

    @classmethod
    def of(cls, agent: AbstractAgent[Any, _V], *, deps: Any = None, model: str | Model | None = None) -> AgentSpec[_V]:
        """Return the spec of a PydanticAI agent that is run as it is.

        Args:
            model: Takes the place of the agent's own.
        """
        name = agent.name if agent.name and re.match(_NAME, agent.name) else "agent"
        return AgentSpec(name=name[:64], agent=agent, deps=deps, model=model)

    @classmethod
    def from_config(
        cls,
        name: str,
        model_name: str | Unset | None = UNSET,
        system_prompt_path: Path | str | Unset | None = UNSET,
        tool_names: Sequence[str] | Unset | None = UNSET,
        mcp_server_names: Sequence[str] | Unset | None = UNSET,
        a2a_client_names: Sequence[str] | Unset | None = UNSET,
        skill_roots: Sequence[Path | str] | Unset | None = UNSET,
        skill_names: Sequence[str] | Unset | None = UNSET,
        *,
        description: str | Unset | None = UNSET,
        system_prompt: str | Unset | None = UNSET,
        sub_agent_names: Sequence[str] | Unset | None = UNSET,
        executor: CodeExecutor | Unset | None = UNSET,
        limits: Limits | Unset | None = UNSET,
        config_path: Path | str | None = None,
        settings: Settings | None = None,
    ) -> AgentSpec[Any]:
        """Return the agent `name` of `config.yaml`, with everything it refers to.

        Values of an untrusted file that would replace or widen those of the home are ignored, with a warning.
        Arguments take precedence over the file, including `[]`, `""` and None. If the file has no agent of that name,
        the agent is built from the arguments alone.

        Args:
            skill_names: None loads all skills of `skill_roots`.
            config_path: The file; else `BOUGH_CONFIG`, the nearest `config.yaml` upwards, that of bough's own folder.

        Raises:
            InvalidInput: The file has a mistake; `details` says where.
            NotFound: It refers to something that does not exist.
            PermissionDenied: The file names code, and it is not trusted.
            Unavailable: An environment variable is not set.

        Source: agentic_patterns `AgentSpec.from_config`.
        """
        path = None if config_path is None else Path(config_path)
        config = AgentConfig.load(path, settings=settings)
        for ignored in config.file.ignored:
            _LOG.warning("%s; %s", ignored.message, ignored.hint)
        given = {
            "model": model_name,
            "system_prompt_path": system_prompt_path,
            "tools": tool_names,
            "mcp_servers": mcp_server_names,
            "a2a_clients": a2a_client_names,
            "skill_roots": skill_roots,
            "skills": skill_names,
            "description": description,
            "system_prompt": system_prompt,
            "sub_agents": sub_agent_names,
            "executor": executor,
            "limits": limits,
        }
        return cls._from_fields(config.fields(name, {key: each for key, each in given.items() if each is not UNSET}))

    @classmethod
    def _from_fields(cls, fields: AgentFields) -> AgentSpec[Any]:
        below = [
            cls._from_fields(sub_agent) if isinstance(sub_agent, AgentFields) else sub_agent
            for sub_agent in fields.sub_agents
        ]
        return cls.model_validate({**fields.values, "sub_agents": below})

    @model_validator(mode="wrap")
    @classmethod
    def _explain_mistakes(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise the first mistake as `InvalidInput`."""
        try:
            return handler(data)
        except ValidationError as error:
            raise _explain(error, tuple(cls.model_fields)) from error

    @model_validator(mode="before")
    @classmethod
    def _with_model_of_agent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data  # which is refused below
        data = cast("dict[str, Any]", data)
        agent: object = data.get("agent")
        if isinstance(agent, AbstractAgent):
            own = cast("AbstractAgent[Any, Any]", agent)
            data = {**data, "output_type": own.output_type}
            return data if data.get("model") is not None else {**data, "model": own.model}
        return data

    @field_validator(
        "tools",
        "toolsets",
        "mcp_servers",
        "a2a_clients",
        "fallback",
        "skills",
        "skill_roots",
        "sub_agents",
        mode="before",
    )
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, list | tuple):
            raise ValueError("a list is needed")
        return None if value is None else tuple(cast("list[Any]", value))

    @model_validator(mode="after")
    def _fits(self) -> AgentSpec:
        if self.executor is not None and not hasattr(self.executor, "execute"):
            raise InvalidInput("the executor executes nothing", hint="for example LocalSandboxCodeExecutor()")
        if self.system_prompt_path is not None and "system_prompt" in self.model_fields_set:
            raise InvalidInput("the system prompt is given twice", hint="give system_prompt or system_prompt_path")
        for tool in self.tools:
            check_tool(tool)
        check_tool_names(self.tools)
        self.check_sub_agents()
        return self

    @field_serializer("model")
    def _model_name(self, model: str | Model | None) -> str | None:
        return f"{MODEL_OBJECT}{model.model_name}" if isinstance(model, Model) else model

    @field_serializer("tools")
    def _tool_names(self, tools: Sequence[Callable[..., Any] | Tool[Any]]) -> list[str]:
        return [name_tool(tool) for tool in tools]

    @field_serializer("toolsets")
    def _toolset_names(self, toolsets: Sequence[AbstractToolset[Any]]) -> list[str]:
        return [toolset.id or type(toolset).__name__ for toolset in toolsets]

    @field_serializer("mcp_servers")
    def _server_names(self, servers: Sequence[MCPClientConfig]) -> list[str]:
        return [server.name for server in servers]

    @field_serializer("a2a_clients")
    def _client_names(self, clients: Sequence[A2AClientExtended]) -> list[str]:
        return [client.config.name or client.config.url for client in clients]

    @field_serializer("settings")
    def _settings_json(self, settings: Mapping[str, Any]) -> JsonObject:
        """Return the settings as JSON, without custom headers and bodies, which may contain keys."""
        data = {name: value for name, value in settings.items() if name not in UNRECORDED_SETTINGS}
        return pydantic_core.from_json(pydantic_core.to_json(data, serialize_unknown=True))

    @field_serializer("retry")
    def _retry_json(self, retry: RetryPolicy | None) -> JsonObject | None:
        return None if retry is None else asdict(retry)

    @field_serializer("output_type")
    def _output_type_json(self, output_type: Any) -> JsonObject | None:
        return None if output_type is str else describe_output_type(output_type)

    @field_serializer("skills")
    def _skill_names(self, skills: Sequence[Skill] | None) -> list[str] | None:
        return None if skills is None else [skill.name for skill in skills]

    @field_serializer("executor")
    def _executor_name(self, executor: CodeExecutor | None) -> str | None:
        return None if executor is None else executor.name

    @field_serializer("agent")
    def _agent_name(self, agent: AbstractAgent[Any, str] | None) -> str | None:
        return None if agent is None else agent.name or type(agent).__name__

    @field_serializer("limits", "confirmation_policy", "allow_list")
    def _rule_json(self, rule: Limits | Policy | AllowList | None) -> Json:
        return None if rule is None else rule.to_json()

    @field_serializer("sub_agents")
    def _sub_agent_names(self, sub_agents: Sequence[AgentSpec]) -> list[str]:
        return [agent.name for agent in sub_agents]

    @property
    def model_name(self) -> str | None:
        """The model's name, whether it was given by name or as an object."""
        return self.model.model_name if isinstance(self.model, Model) else self.model

    def check_sub_agents(self, *, above: tuple[AgentSpec, ...] = ()) -> None:
        """Check the tree of agents below this one. O(agents).

        Args:
            above: The agents on the way down to this one.

        Raises:
            InvalidInput: Two sub-agents of one agent share a name, or an agent is its own sub-agent.
        """
        path = (*above, self)
        if any(agent is self or agent.name == self.name for agent in above):
            names = " > ".join(agent.name for agent in path)
            raise InvalidInput(
                f"agent {self.name!r} is its own sub-agent: {names}",
                hint="remove it from sub_agents, or rename one of them",
                details={"path": [agent.name for agent in path]},
            )
        names = [agent.name for agent in self.sub_agents]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidInput(
                f"two sub-agents of {self.name!r} are called {twice!r}", hint="give each a name of its own"
            )
        for agent in self.sub_agents:
            agent.check_sub_agents(above=path)

    def prompt(self) -> str:
        """Return the system prompt; empty for a PydanticAI agent, unless the spec sets one.

        Raises:
            InvalidInput: `system_prompt_path` cannot be read.
        """
        if self.agent is not None and not self.model_fields_set & {"system_prompt", "system_prompt_path"}:
            return ""
        if self.system_prompt_path is None:
            return self.system_prompt
        try:
            return self.system_prompt_path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"cannot read the system prompt of agent {self.name!r}: {error}",
                hint=f"check system_prompt_path: {self.system_prompt_path}",
            ) from error

    def snapshot(self) -> JsonObject:
        """Return the spec as JSON for the log: tools, skills and executor by name; never a secret."""
        return self.model_dump(mode="json")


_TOOL_NAME = r"[A-Za-z0-9_.:-]{1,128}"


def check_tool(tool: object) -> None:
    """Raise `InvalidInput` for what is neither a named function nor a `Tool`."""
    if isinstance(tool, Tool):
        return
    if not callable(tool):
        raise InvalidInput(f"not a tool: {tool!r}", hint="pass functions, or PydanticAI's Tool(function)")
    if not hasattr(tool, "__qualname__") or not hasattr(tool, "__name__"):
        raise InvalidInput(
            f"a tool of type {type(tool).__name__} has no name",
            hint='name it with Tool(f, name="…"), or pass a function',
        )


def check_tool_names(tools: Sequence[Callable[..., Any] | Tool[Any]]) -> None:
    """Raise `InvalidInput` for names that models do not take, and for two tools with one name."""
    names = [tool.name if isinstance(tool, Tool) else tool.__name__ for tool in tools]
    for name in names:
        if not re.fullmatch(_TOOL_NAME, name):
            raise InvalidInput(
                f"{name!r} is not a name that models take for a tool", hint='name it with Tool(f, name="…")'
            )
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise InvalidInput(f"two tools are named {twice!r}", hint='name one of them otherwise: Tool(f, name="…")')
