"""The declarative description of an agent. A conversation records it at its start, and builds the agent from it.

Source: agentic_patterns `AgentSpec`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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
"""Prefix in a snapshot for a model that was passed as an object, so that its name cannot recreate it."""

SubAgentWorkspace: TypeAlias = Literal["shared", "readonly", "copy", "worktree"]
"""A sub-agent's workspace: its parent's folder, the same folder read-only, a copy, or a git worktree of it."""

_NAME = r"^[\w.-]+$"
_QUEUE = r"^[a-z0-9_.-]{1,64}$"


def _parse_retry(value: Any) -> RetryPolicy | None:
    if value is None or isinstance(value, RetryPolicy):
        return value
    try:
        return RetryPolicy(**value)
    except TypeError as error:
        raise ValueError("expected a RetryPolicy, or a mapping with its fields") from error


def _parse_settings(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping of names to values")  # noqa: TRY004 - pydantic's way
    return cast("Mapping[str, Any]", value)


def _parse_output_type(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("expected a type, not its name")  # noqa: TRY004 - pydantic's way
    return value


def _parse_limits(value: Any) -> Limits | None:
    return value if value is None or isinstance(value, Limits) else limits_from_json(value)


def _parse_policy(value: Any) -> Policy | None:
    return value if value is None or isinstance(value, Policy) else policy_from_json(value)


def _parse_allow_list(value: Any) -> AllowList | None:
    return value if value is None or isinstance(value, AllowList) else allow_list_from_json(value)


UNRECORDED_SETTINGS = frozenset({"extra_headers", "extra_body"})
"""Settings that are not written to a log, because they may contain keys."""

T = TypeVar("T", default=Any)
_V = TypeVar("_V")


class _Unchecked:
    """Marks a field whose value pydantic does not validate, because it has no schema for the type."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.any_schema()


_UNCHECKED = _Unchecked()


def _convert_validation_error(error: ValidationError, fields: Sequence[str]) -> InvalidInput:
    """Return the first mistake in an agent's fields as an error with a hint."""
    first_error = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(map(str, first_error["loc"]))
    if first_error["type"] == "extra_forbidden":
        similar_fields = get_close_matches(field, fields, 1)
        hint = f"did you mean `{similar_fields[0]}`?" if similar_fields else f"known fields: {', '.join(fields)}"
        return InvalidInput(f"an agent has no field {field!r}", hint=hint)
    text = first_error["msg"].removeprefix("Value error, ")
    return InvalidInput(f"AgentSpec.{field}: {text}" if field else text, hint="fix this value")


class AgentSpec(BaseModel, Generic[T]):
    """A declarative agent; `T` is the type of its answers.

    Attributes:
        name: Its name for people and other agents.
        model: A model string, for example `openai:gpt-5`, or a PydanticAI model. None uses the first of these that
            exists: the model of the settings, `models.default` of `config.yaml`, the default model of a provider
            with a key, the offline model.
        base_url: Address of an OpenAI-format server for `openai:` models.
        system_prompt: The system prompt, used verbatim; braces have no special meaning.
        system_prompt_path: A file that contains the system prompt; cannot be set together with `system_prompt`.
        api_key: The key for the model's provider, or a function that returns it; never recorded. None uses the key of
            `models.default` if model and address are the same, else the provider's environment variable.
        tools: Functions, and PydanticAI's `Tool` objects. After a crash, calls of `Tool(f, metadata={"idempotent":
            True})` are run again without asking. After each call, the workspace is searched for changed files; with
            `"writes": False` it is not, and with `"writes": "told"` only the paths of `ToolContext.wrote` are read.
        toolsets: PydanticAI's toolsets.
        mcp_servers: MCP servers that provide tools; started at the first step, outside the sandbox.
        a2a_clients: Remote agents that it can ask; each becomes a tool, which its card describes.
        settings: Settings of the model by their names in PydanticAI: temperature, thinking, max_tokens.
        fallback: Model strings that are tried in this order if all attempts with the model fail.
        retry: How failed model requests are repeated; None uses the defaults of `RetryPolicy`.
        output_type: The type of its answers: text, a type, a union, or PydanticAI's `NativeOutput`, `ToolOutput`,
            `PromptedOutput`, `TextOutput` and output functions.
        output_retries: How many answers may fail the validation of `output_type` before the run ends in an error.
        skills: Exactly the skills to use, `[]` for none; None discovers skills by `skill_roots` and `discover_skills`.
        skill_roots: Folders that are searched for skills.
        discover_skills: Whether the standard folders (project, user, installed) are searched too.
        executor: Runs scripts; None uses the executor of the conversation.
        workspace_access: Built-in workspace tools: `none`, `read`, `write`, or `run` for commands in the sandbox.
        catalog_tokens: Budget of the skill catalogue in the prompt, in tokens.
        result_tokens: How much of a tool result the model sees, in tokens of four characters; at most an eighth of its
            context window. It reads the rest with the tool `read_result`.
        agent: A PydanticAI agent to run unchanged, with its own instructions, tools, settings and `output_type`. The
            spec's prompt, skills and tools are added, and its `model` takes precedence.
        deps: The deps for the tools of the spec and of `agent`; never recorded. None: tools of the spec get a
            `ToolContext`.
        sub_agents: Agents to which it may delegate, with unique names; runs of an agent with sub-agents need a broker.
        limits: Limits of its runs, in addition to those of the caller.
        confirmation_policy: Which of its calls need approval; the caller's policy can only add calls.
        allow_list: The only calls that it may make; None allows all calls.
        workspace: The workspace that it gets as a sub-agent.
        queue: The queue of its tasks.
        ask: Whether it has the tool `ask` even if no other agent started it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str = Field(default="default", min_length=1, max_length=64, pattern=_NAME)
    description: str = ""
    model: str | Model | None = None
    base_url: str | None = None
    system_prompt: str = DEFAULT_PROMPT
    system_prompt_path: Path | None = None
    api_key: Annotated[str | Callable[[], str] | None, _UNCHECKED] = Field(default=None, exclude=True, repr=False)
    tools: Annotated[Sequence[Callable[..., Any] | Tool[Any]], _UNCHECKED] = ()
    toolsets: Annotated[Sequence[AbstractToolset[Any]], _UNCHECKED] = ()
    mcp_servers: Sequence[MCPClientConfig] = ()
    a2a_clients: Annotated[Sequence[A2AClientExtended], _UNCHECKED] = ()
    settings: Annotated[Mapping[str, Any], _UNCHECKED, BeforeValidator(_parse_settings)] = Field(
        default_factory=dict[str, Any]
    )
    fallback: Sequence[str] = ()
    retry: Annotated[RetryPolicy | None, _UNCHECKED, BeforeValidator(_parse_retry)] = None
    output_type: Annotated[OutputSpec[T], _UNCHECKED, BeforeValidator(_parse_output_type)] = Field(
        default=cast(Any, str)
    )
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
    limits: Annotated[SkipValidation[Limits | None], BeforeValidator(_parse_limits)] = None
    confirmation_policy: Annotated[SkipValidation[Policy | None], BeforeValidator(_parse_policy)] = None
    allow_list: Annotated[SkipValidation[AllowList | None], BeforeValidator(_parse_allow_list)] = None
    workspace: SubAgentWorkspace = "shared"
    queue: str = Field(default="default", pattern=_QUEUE)
    ask: bool = False

    @classmethod
    def of(
        cls, agent: AbstractAgent[Any, _V], *, deps: object = None, model: str | Model | None = None
    ) -> AgentSpec[_V]:
        """Return the spec that runs a PydanticAI agent unchanged.

        Args:
            model: Replaces the agent's own model.
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
        """Return the agent `name` of `config.yaml`, with everything to which it refers.

        If the file is not trusted, values that would replace or widen those in bough's own folder are ignored, with a
        warning. Arguments take precedence over the file, including `[]`, `""` and None. If the file has no agent of
        that name, the agent is built from the arguments only.

        Args:
            skill_names: Names of the skills to load; None loads all skills of `skill_roots`.
            config_path: The file. None uses `BOUGH_CONFIG`, else the nearest `config.yaml` in this folder or above,
                merged with the one in bough's own folder, over which it takes precedence.

        Raises:
            InvalidInput: The file has a mistake; `details` contains the file and the line.
            NotFound: The agent refers to something that does not exist.
            PermissionDenied: The file names code and is not trusted.
            Unavailable: An environment variable is not set.

        Source: agentic_patterns `AgentSpec.from_config`.
        """
        path = None if config_path is None else Path(config_path)
        config = AgentConfig.load(path, settings=settings)
        for error in config.file.ignored:
            _LOG.warning("%s; %s", error.message, error.hint)
        overrides = {
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
        overrides = {field: value for field, value in overrides.items() if value is not UNSET}
        return cls._from_fields(config.fields(name, overrides))

    @classmethod
    def _from_fields(cls, fields: AgentFields) -> AgentSpec[Any]:
        sub_agents = [
            cls._from_fields(sub_agent) if isinstance(sub_agent, AgentFields) else sub_agent
            for sub_agent in fields.sub_agents
        ]
        return cls.model_validate({**fields.values, "sub_agents": sub_agents})

    @model_validator(mode="wrap")
    @classmethod
    def _explain_mistakes(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise the first mistake as `InvalidInput`."""
        try:
            return handler(data)
        except ValidationError as error:
            raise _convert_validation_error(error, tuple(cls.model_fields)) from error

    @model_validator(mode="before")
    @classmethod
    def _adopt_agent_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data  # pydantic reports a value that is not a mapping
        data = cast("dict[str, Any]", data)
        agent: object = data.get("agent")
        if isinstance(agent, AbstractAgent):
            adopted_agent = cast("AbstractAgent[Any, Any]", agent)
            # The log records the spec, so the spec must contain the agent's model and output type.
            data = {**data, "output_type": adopted_agent.output_type}
            return data if data.get("model") is not None else {**data, "model": adopted_agent.model}
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
            raise ValueError("expected a list")
        # A tuple, because the caller could still change a list, and with it the frozen spec.
        return None if value is None else tuple(cast("list[Any]", value))

    @model_validator(mode="after")
    def _check_spec(self) -> AgentSpec:
        if self.executor is not None and not hasattr(self.executor, "execute"):
            raise InvalidInput("the executor has no method `execute`", hint="for example LocalSandboxCodeExecutor()")
        # `model_fields_set`, because `system_prompt` also has a value, its default, if only a path is set.
        if self.system_prompt_path is not None and "system_prompt" in self.model_fields_set:
            raise InvalidInput("system_prompt and system_prompt_path are both set", hint="set only one of them")
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
        """The model's name, also if the model is an object; None if the spec sets none."""
        return self.model.model_name if isinstance(self.model, Model) else self.model

    def check_sub_agents(self, *, ancestors: tuple[AgentSpec, ...] = ()) -> None:
        """Check the tree of agents below this one. O(agents).

        Args:
            ancestors: The agents on the path from the top agent to this one.

        Raises:
            InvalidInput: Two sub-agents of an agent have the same name, or an agent is its own sub-agent.
        """
        path = (*ancestors, self)
        if any(agent is self or agent.name == self.name for agent in ancestors):
            names = " > ".join(agent.name for agent in path)
            raise InvalidInput(
                f"agent {self.name!r} is its own sub-agent: {names}",
                hint="remove it from sub_agents, or rename one of them",
                details={"path": [agent.name for agent in path]},
            )
        names = [agent.name for agent in self.sub_agents]
        duplicate_name = next((name for name in names if names.count(name) > 1), None)
        if duplicate_name is not None:
            raise InvalidInput(
                f"two sub-agents of {self.name!r} are called {duplicate_name!r}", hint="give one of them another name"
            )
        for agent in self.sub_agents:
            agent.check_sub_agents(ancestors=path)

    def prompt(self) -> str:
        """Return the system prompt. For a PydanticAI agent it is empty, unless the spec sets one.

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
        """Return the spec as JSON for the log, without secrets; tools, skills and executor are names."""
        return self.model_dump(mode="json")


_TOOL_NAME = r"[A-Za-z0-9_.:-]{1,128}"


def check_tool(tool: object) -> None:
    """Raise `InvalidInput` unless a value is a function with a name, or a `Tool`."""
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
    """Raise `InvalidInput` if a model would refuse a tool's name, or if two tools have the same name."""
    names = [tool.name if isinstance(tool, Tool) else tool.__name__ for tool in tools]
    for name in names:
        if not re.fullmatch(_TOOL_NAME, name):
            raise InvalidInput(f"invalid tool name {name!r}", hint='name it with Tool(f, name="…")')
    if len(set(names)) < len(names):
        duplicate_name = next(name for position, name in enumerate(names) if name in names[:position])
        raise InvalidInput(f"two tools are named {duplicate_name!r}", hint='rename one of them: Tool(f, name="…")')


KEYS = (
    "name", "description", "model", "base_url", "system_prompt", "system_prompt_path", "skill_roots",
    "discover_skills", "workspace_access", "catalog_tokens",
)  # fmt: skip
"""The fields of an agent that can be set without code."""


def spec_from_data(
    values: Mapping[str, Any], *, base: Path, subject: str, allowed: Collection[str] = KEYS
) -> AgentSpec:
    """Return the agent that a mapping describes, such as the content of a file or the body of a request.

    Args:
        base: The folder to which paths are relative.
        subject: The name of the mapping in error messages.
        allowed: The allowed keys.

    Raises:
        InvalidInput: A key is unknown, or a value is invalid.
    """
    unknown_keys = [key for key in values if key not in allowed]
    if unknown_keys:
        similar_keys = get_close_matches(unknown_keys[0], allowed, 1)
        hint = f"did you mean `{similar_keys[0]}`?" if similar_keys else f"known keys: {', '.join(allowed)}"
        names = ", ".join(unknown_keys)
        raise InvalidInput(f"{subject}: unknown keys: {names if len(names) <= 60 else names[:59] + '…'}", hint=hint)
    try:
        return AgentSpec.model_validate(_resolve_paths(values, base))
    except InvalidInput as error:
        raise InvalidInput(f"{subject}: {error.message.removeprefix('AgentSpec.')}", hint=error.hint) from error


def _resolve_paths(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the values with paths resolved against `folder`."""
    resolved = dict(values)
    if isinstance(path := resolved.get("system_prompt_path"), str):
        resolved["system_prompt_path"] = folder / path
    if isinstance(roots := resolved.get("skill_roots"), list):
        resolved["skill_roots"] = [folder / str(root) for root in cast("list[Any]", roots)]
    return resolved
