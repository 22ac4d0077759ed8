"""Building a PydanticAI agent from a spec: its instructions, skills and tools."""

from __future__ import annotations

import dataclasses
import re
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic_ai import Agent, RunContext
from pydantic_ai.agent import AbstractAgent, WrapperAgent
from pydantic_ai.capabilities import AbstractCapability, ReinjectSystemPrompt
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRun
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool, WrapperToolset
from typing_extensions import override

from bough.agents.a2a_tools import RemoteAgents
from bough.agents.context import ToolContext
from bough.agents.delegation_tools import ask_toolset, delegation_toolset
from bough.agents.result_tools import READ_RESULT, result_toolset
from bough.agents.skills.activation import AlwaysActiveSkills
from bough.agents.skills.path_skills import PathSkillIndex, PathSkills
from bough.agents.skills.rule_watch import RuleWatch
from bough.agents.skills.tools import SkillToolset, make_registry
from bough.agents.spec import AgentSpec
from bough.agents.workspace.tools import workspace_toolset
from bough.connect.mcp_pool import AgentServers, McpPool
from bough.connect.skill_mcp import SkillServers
from bough.errors import BoughError, InvalidInput, public_message
from bough.events.model import ErrorRaised
from bough.skills import SkillRegistry


def open_registry(
    spec: AgentSpec,
    *,
    workspace: Path,
    home: Path,
    roots: Sequence[Path] = (),
    changed_rules: Collection[str] = (),
) -> SkillRegistry:
    """Return the registry of the skills that `spec` uses.

    Args:
        roots: Configured folders, searched only if the spec discovers skills.
        changed_rules: Digests of the rule files that changed while tools of the conversation ran.
    """
    if spec.skills is not None:
        return make_registry(spec.skills)
    if spec.discover_skills:
        folders = (*spec.skill_roots, *roots)
        return SkillRegistry.open(workspace, home=home, roots=folders, changed_rules=changed_rules)
    registry = SkillRegistry(index=home / "cache", home=home)
    registry.discover(list(spec.skill_roots))
    return registry


_RETRIES = 100
"""PydanticAI's limit on consecutive invalid calls. It is high, so that the conversation's own limits apply first."""


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """Everything that an agent needs besides its model, derived from a spec and a registry of skills.

    Attributes:
        toolset: The skills as tools; None without skills.
        instructions: The system prompt, the always-active skills and the catalogue. A conversation records them once,
            so that its prompt stays byte-identical.
        servers: The MCP servers of the skills; closed by `aclose`.
        paths: Finds the skills that touched files activate.
        pool: Runs `spec_servers`; closed by `aclose` if `owns_pool`.
        spec_servers: The MCP servers of the spec.
        remote: The remote agents of the spec; closed by `aclose`.
        owns_pool: Whether this blueprint created the pool.
    """

    spec: AgentSpec
    registry: SkillRegistry
    toolset: SkillToolset | None
    instructions: str
    servers: SkillServers
    paths: PathSkillIndex
    pool: McpPool
    spec_servers: AgentServers
    remote: RemoteAgents
    owns_pool: bool

    @classmethod
    def of(cls, spec: AgentSpec, registry: SkillRegistry, *, pool: McpPool | None = None) -> Blueprint:
        """Return the blueprint of a spec. Without skills, it has no catalogue and no skill tools.

        Args:
            pool: Runs the spec's MCP servers; the caller closes it. None creates a pool that the blueprint closes.
        """
        server_pool = pool or McpPool()
        toolset = None
        if registry.list_all():
            toolset = SkillToolset(registry, code_executor=spec.executor, catalog_tokens=spec.catalog_tokens)
        return cls(
            spec=spec,
            registry=registry,
            toolset=toolset,
            servers=_make_skill_servers(registry),
            paths=PathSkillIndex(registry),
            pool=server_pool,
            spec_servers=AgentServers(spec.mcp_servers, pool=server_pool, report=_report_error),
            remote=RemoteAgents(spec.a2a_clients, report=_report_error),
            owns_pool=pool is None,
            instructions=_render_instructions(spec, toolset),
        )

    def for_conversation(self, spec: AgentSpec, *, pool: McpPool | None, has_new_prompt: bool = False) -> Blueprint:
        """Return a blueprint for another conversation, with the same rendered texts but new connections.

        Args:
            spec: The spec of that conversation; its skills, executor and sub-agents must be the same.
            pool: Runs the spec's MCP servers; the caller closes it. None creates a pool that the blueprint closes.
            has_new_prompt: Whether `spec` also has another prompt.
        """
        server_pool = pool or McpPool()
        return replace(
            self,
            spec=spec,
            instructions=_render_instructions(spec, self.toolset) if has_new_prompt else self.instructions,
            # Never shared: a skill's server has the workspace and the secrets of the conversation that started it.
            servers=_make_skill_servers(self.registry),
            pool=server_pool,
            spec_servers=AgentServers(spec.mcp_servers, pool=server_pool, report=_report_error),
            remote=RemoteAgents(spec.a2a_clients, report=_report_error),
            owns_pool=pool is None,
        )

    @property
    def always_active(self) -> AlwaysActiveSkills:
        """The always-active skills, whose texts are part of the instructions."""
        return AlwaysActiveSkills() if self.toolset is None else self.toolset.always_active

    def require_tools(self, names: Iterable[str]) -> None:
        """Check that the agent has these tools.

        Raises:
            InvalidInput: A tool is missing.
        """
        spec_tools = {tool.name if isinstance(tool, Tool) else tool.__name__ for tool in self.spec.tools}
        toolsets: list[AbstractToolset[Any]] = [*self._toolsets(), *self.spec.toolsets]
        toolsets += [self.spec_servers] if self.spec.mcp_servers else []
        toolsets += [self.remote] if self.spec.a2a_clients else []
        if self.spec.agent is not None:
            toolsets += self.spec.agent.toolsets
        if not all(isinstance(toolset, FunctionToolset) for toolset in toolsets):
            return  # the tools of other toolsets, such as servers, are known only during a run
        available_tools = spec_tools.union(*(cast("FunctionToolset[Any]", toolset).tools for toolset in toolsets))
        for name in names:
            if name not in available_tools:
                raise InvalidInput(
                    f"agent {self.spec.name!r} has no tool {name!r}, which an open call needs",
                    hint="add the tool, or close the open calls (pending=close)",
                )

    def _toolsets(self) -> list[FunctionToolset[Any]]:
        """Return the built-in toolsets, without empty ones: PydanticAI starts a task for each at every step."""
        access = self.spec.workspace_access
        workspace_tools = [] if access == "none" else [workspace_toolset(access)]
        skill_tools = [] if self.toolset is None else [self.toolset.toolset()]
        agent_names = [agent.name for agent in self.spec.sub_agents]
        delegation_tools = [delegation_toolset(agent_names)] if agent_names else []
        ask_tools = [ask_toolset()] if self.spec.ask else []
        toolsets = [*workspace_tools, *skill_tools, *delegation_tools, *ask_tools]
        return [*toolsets, result_toolset()] if self._needs_read_result(toolsets) else toolsets

    def _needs_read_result(self, own_toolsets: Sequence[FunctionToolset[Any]]) -> bool:
        """Whether the agent gets the tool `read_result`: it has tools, and none of that name.

        Decided from the spec alone, because a tool that is added later would invalidate the provider's cached prefix.

        Args:
            own_toolsets: The other built-in toolsets.
        """
        toolsets = [*own_toolsets, *self.spec.toolsets, *(() if self.spec.agent is None else self.spec.agent.toolsets)]
        tool_names = {name for toolset in toolsets if isinstance(toolset, FunctionToolset) for name in toolset.tools}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        tool_names |= {tool.name if isinstance(tool, Tool) else tool.__name__ for tool in self.spec.tools}
        has_unlisted_tools = bool(self.spec.mcp_servers) or any(
            not isinstance(toolset, FunctionToolset) for toolset in toolsets
        )
        return READ_RESULT not in tool_names and (bool(tool_names) or has_unlisted_tools)

    async def aclose(self) -> None:
        """Close the connections to servers and remote agents, and the pool if this blueprint owns it."""
        await self.servers.aclose()
        await self.remote.aclose()
        if self.owns_pool:
            await self.pool.aclose()

    def agent(self, model: Model, *, instructions: str | None = None) -> AbstractAgent[ToolContext, Any]:
        """Return the PydanticAI agent for a model.

        Args:
            instructions: Those that a continued conversation has recorded; None uses the blueprint's.
        """
        instructions = self.instructions if instructions is None else instructions
        spec = self.spec
        # The order must be the same at every step, because a provider's cached prefix begins with the tools. Toolsets
        # that may grow during a run are last, so that a new tool changes only the end of the prefix.
        spec_toolsets: list[AbstractToolset[Any]] = [
            *([FunctionToolset(spec.tools)] if spec.tools else []),
            *spec.toolsets,
        ]
        if spec.deps is not None:
            spec_toolsets = [ToolsetWithDeps(toolset, spec.deps) for toolset in spec_toolsets]
        toolsets = [
            *self._toolsets(),
            *spec_toolsets,
            *([self.spec_servers] if spec.mcp_servers else []),
            *([self.remote] if spec.a2a_clients else []),
            *([] if self.toolset is None else [self.servers]),
        ]
        settings = cast("ModelSettings | None", dict(spec.settings) or None)
        if spec.agent is not None:
            return AdoptedAgent(
                spec.agent,
                own_deps=spec.deps,
                model=model,
                instructions=instructions,
                toolsets=toolsets,
                capabilities=self._capabilities,
                settings=settings,
            )
        return Agent(
            model,
            deps_type=ToolContext,
            name=spec.name,
            instructions=instructions,
            toolsets=toolsets,
            output_type=spec.output_type,
            model_settings=settings,
            capabilities=self._capabilities(),
            retries={"tools": _RETRIES, "output": _RETRIES if spec.output_type is str else spec.output_retries},
        )

    def _capabilities(self, context: ToolContext | None = None) -> list[AbstractCapability[Any]]:
        """Return the capabilities that examine the files that tools touch; the first one is the outermost."""
        path_capabilities = [PathSkills(self.paths, context)] if self.paths.names else []
        # `RuleWatch` is inside: it must record changed rule files before `PathSkills` activates any of them.
        return [*path_capabilities, *([RuleWatch(context)] if _follows_rules(self.spec) else [])]


def _follows_rules(spec: AgentSpec) -> bool:
    """Whether an agent, or one of its sub-agents, follows rule files of the workspace."""
    follows_own_rules = spec.skills is None and spec.discover_skills
    return follows_own_rules or any(_follows_rules(sub_agent) for sub_agent in spec.sub_agents)


class AgentBuilder:
    """The spec of a conversation's agent, and the blueprint, which is built on first use.

    So opening or forking a conversation discovers no skills and renders no catalogue; its first run or message does.

    Args:
        spec: The current spec; `change_spec` replaces it.
        build: Builds the blueprint of a spec.
    """

    def __init__(self, spec: AgentSpec, build: Callable[[AgentSpec], Blueprint]) -> None:
        self.spec = spec
        self._build = build

    @classmethod
    def from_blueprint(cls, blueprint: Blueprint) -> AgentBuilder:
        """Return a builder with an existing blueprint."""
        builder = cls(blueprint.spec, lambda spec: replace(blueprint, spec=spec))
        builder.blueprint = blueprint  # fills the cached property
        return builder

    @property
    def is_built(self) -> bool:
        """Whether the blueprint exists."""
        return "blueprint" in vars(self)  # reading the property would build it

    @cached_property
    def blueprint(self) -> Blueprint:
        """The blueprint of the spec.

        Raises:
            InvalidInput: Two skills have the same name, or the prompt cannot be read.
        """
        return self._build(self.spec)

    def change_spec(self, spec: AgentSpec) -> None:
        """Replace the spec with one that has the same prompt, tools and skills."""
        self.spec = spec
        if self.is_built:
            # Not built again: running MCP servers and the recorded instructions remain in use.
            self.blueprint = replace(self.blueprint, spec=spec)

    async def aclose(self) -> None:
        """Close the blueprint, if it was built."""
        if self.is_built:
            await self.blueprint.aclose()


class BlueprintCache:
    """Builds the blueprints of a worker's conversations, and renders common parts only once.

    To notice changes, each call discovers the skills again; the index saves reading unchanged files. While the skills
    are unchanged, conversations share the registry, skill tools, catalogue and instructions.

    Args:
        pool: Runs the MCP servers of all conversations; the caller closes it.
        size: Maximum number of entries; the least recently used entry is evicted.
    """

    def __init__(self, pool: McpPool, *, size: int = 256, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._size = size
        self._monotonic = monotonic
        self._recheck_seconds = 0.0
        self._entries: OrderedDict[_CacheKey, _CachedBlueprint] = OrderedDict()

    def recheck_every(self, seconds: float) -> BlueprintCache:
        """Return a view of this cache that discovers the skills of an entry at most every `seconds`.

        So its skills may be that old. If `changed_rules` is not empty, they are always discovered again.
        """
        view = BlueprintCache(self._pool, size=self._size, monotonic=self._monotonic)
        # The same dictionary, so that both use the same blueprints, and `size` limits their total.
        view._entries = self._entries
        view._recheck_seconds = seconds
        return view

    def make(
        self,
        spec: AgentSpec,
        *,
        workspace: Path,
        home: Path,
        roots: Sequence[Path] = (),
        changed_rules: Collection[str] = (),
    ) -> Blueprint:
        """Return a blueprint for one conversation; the caller closes it with the conversation.

        Args:
            roots: Configured folders, searched only if the spec discovers skills.
            changed_rules: Digests of the rule files that changed while tools of the conversation ran.

        Raises:
            InvalidInput: Two skills have the same name, or the prompt cannot be read.
        """
        key = _CacheKey.from_spec(spec, workspace, home, roots)
        now = self._monotonic()
        entry = self._entries.get(key)
        # With changed rules, skills are always discovered: a conversation must not follow a rule that its tool wrote.
        if entry is None or changed_rules or now - entry.checked_at >= self._recheck_seconds:
            registry = open_registry(spec, workspace=workspace, home=home, roots=roots, changed_rules=changed_rules)
            contents = registry.contents()
            # If the contents are equal, the old blueprint is used: a new one would render the same texts.
            if entry is None or entry.contents != contents:
                entry = _CachedBlueprint(contents, Blueprint.of(spec, registry, pool=self._pool), now)
            entry = self._entries[key] = entry._replace(checked_at=now)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        return entry.blueprint.for_conversation(spec, pool=self._pool)

    def __len__(self) -> int:
        return len(self._entries)


class _CachedBlueprint(NamedTuple):
    """A blueprint, the contents of the skill folders from which it was built, and the time of the last check."""

    contents: tuple[Any, ...]
    blueprint: Blueprint
    checked_at: float


class _CacheKey(NamedTuple):
    """Everything that determines instructions, catalogue and skill tools, except the contents of the folders.

    Objects are identified by `id`. The cached blueprint refers to these objects, so their ids are not reused.
    """

    prompt: str
    sub_agents: tuple[tuple[str, str], ...]
    remote: tuple[str, ...]
    skills: tuple[int, ...] | None
    executor: int
    catalog_tokens: int
    home: Path
    skill_roots: tuple[Path, ...]
    discovered: tuple[Path, ...]

    @classmethod
    def from_spec(cls, spec: AgentSpec, workspace: Path, home: Path, roots: Sequence[Path]) -> _CacheKey:
        """Return the key of a spec and its folders."""
        return cls(
            prompt=spec.prompt(),
            sub_agents=tuple((agent.name, agent.description) for agent in spec.sub_agents),
            remote=tuple(client.config.name for client in spec.a2a_clients),
            skills=None if spec.skills is None else tuple(id(skill) for skill in spec.skills),
            executor=id(spec.executor),
            catalog_tokens=spec.catalog_tokens,
            home=home,
            skill_roots=tuple(spec.skill_roots),
            # Without discovery, the workspace is irrelevant, so conversations in different folders share an entry.
            discovered=(workspace, *roots) if spec.discover_skills else (),
        )


def _make_skill_servers(registry: SkillRegistry) -> SkillServers:
    return SkillServers(registry, active=_get_active_skills, report=_report_error, trees=_get_skill_trees)


def _render_instructions(spec: AgentSpec, toolset: SkillToolset | None) -> str:
    """Return the prompt, always-active skills and catalogues; catalogues replace placeholders in the prompt."""
    remote_agents = [(client.config.name, "a remote agent") for client in spec.a2a_clients if client.config.name]
    catalog = render_sub_agents([*((agent.name, agent.description) for agent in spec.sub_agents), *remote_agents])
    prompt = spec.prompt()
    if toolset is None:
        return render_prompt(prompt, sub_agents=catalog, skills="")
    if has_skills_placeholder(prompt):
        rendered = render_prompt(prompt, sub_agents=catalog, skills=toolset.usage_instructions)
        return "\n\n".join(filter(None, (rendered, toolset.always_active.text)))
    return render_prompt(prompt, sub_agents=catalog, skills=toolset.instructions)


def _get_active_skills(deps: ToolContext | None) -> Mapping[str, str]:
    return {} if deps is None else deps.active_skills()


def _get_skill_trees(deps: ToolContext | None) -> Mapping[str, str]:
    return {} if deps is None else deps.skill_trees()


async def _report_error(deps: ToolContext | None, error: BoughError) -> None:
    """Record an error in the conversation's log; outside a run, raise it."""
    if deps is None:
        raise error
    await deps.emit(ErrorRaised(code=error.code, message=public_message(error), hint=error.hint))


_PLACEHOLDER = re.compile(r"\{(sub_agents|skills)_catalog\}")
_MAX_DESCRIPTION_CHARS = 1024

SUB_AGENTS_HEADING = "# Agents you can delegate to"
"""Heading of the list of sub-agents if the prompt has no placeholder for it."""


def render_prompt(prompt: str, *, sub_agents: str, skills: str) -> str:
    """Return the prompt with both catalogues. O(text).

    A catalogue replaces its placeholder. Without a placeholder, it is appended to the prompt, the one of the sub-agents
    below `SUB_AGENTS_HEADING`. An empty catalogue adds no text.
    """
    catalogs = {"sub_agents": sub_agents, "skills": skills}
    inserted: set[str] = set()

    def insert_catalog(match: re.Match[str]) -> str:
        inserted.add(match[1])
        return catalogs[match[1]]

    text = _PLACEHOLDER.sub(insert_catalog, prompt)  # in one pass, so that braces in a catalogue are not replaced
    appended = [f"{SUB_AGENTS_HEADING}\n{sub_agents}"] if sub_agents and "sub_agents" not in inserted else []
    appended += [skills] if skills and "skills" not in inserted else []
    return "\n\n".join(filter(None, (text, *appended)))


def has_skills_placeholder(prompt: str) -> bool:
    """Whether the prompt has a placeholder for the catalogue of skills."""
    return "{skills_catalog}" in prompt


def render_sub_agents(agents: Iterable[tuple[str, str]]) -> str:
    """Return one line `- name: description` per agent, in the given order; empty if there are none."""
    return "\n".join(f"- {name}: {_shorten(description)}" for name, description in agents)


def _shorten(description: str) -> str:
    line = " ".join(description.split())
    return line if len(line) <= _MAX_DESCRIPTION_CHARS else f"{line[: _MAX_DESCRIPTION_CHARS - 1]}…"


class AdoptedAgent(WrapperAgent[Any, Any]):
    """Runs the wrapped agent unchanged; `iter` adds the conversation's instructions and tools.

    The wrapped agent's tools get `own_deps`; the added tools get the `deps` that are passed to `iter`. Instructions,
    toolsets, capabilities, output validators and settings of the wrapped agent still apply.
    """

    def __init__(
        self,
        wrapped: AbstractAgent[Any, Any],
        *,
        own_deps: Any,
        model: Model,
        instructions: str,
        toolsets: Sequence[AbstractToolset[Any]],
        capabilities: Callable[[ToolContext], Sequence[AbstractCapability[Any]]],
        settings: ModelSettings | None = None,
    ) -> None:
        super().__init__(wrapped)
        self._own_deps = own_deps
        self._model = model
        self._added_instructions = instructions
        self._added_toolsets = toolsets
        self._capabilities = capabilities
        self._added_settings = settings

    @asynccontextmanager
    async def iter(  # pyright: ignore[reportIncompatibleMethodOverride] - only what the loop passes
        self,
        *,
        deps: ToolContext,
        model: Model | None = None,
        capabilities: Sequence[AbstractCapability[Any]] = (),
        **options: Any,
    ) -> AsyncGenerator[AgentRun[Any, Any]]:
        """Run the wrapped agent on a message history, with the added instructions and tools."""
        async with self.wrapped.iter(
            deps=self._own_deps,
            model=model or self._model,
            instructions=self._added_instructions or None,
            toolsets=[ToolsetWithDeps(toolset, deps) for toolset in self._added_toolsets],
            model_settings=self._added_settings,
            # A log contains no system prompt, so the history lacks the agent's own: this adds it to each request.
            capabilities=[ReinjectSystemPrompt(), *self._capabilities(deps), *capabilities],
            **options,
        ) as run:
            yield run


@dataclass
class ToolsetWithDeps(WrapperToolset[Any]):
    """A toolset whose tools get `deps` instead of the deps of the run."""

    deps: Any

    @override
    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return await super().for_run(self._with_deps(ctx))

    @override
    async def for_run_step(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return await super().for_run_step(self._with_deps(ctx))

    @override
    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return await super().get_tools(self._with_deps(ctx))

    @override
    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        return await super().call_tool(name, tool_args, self._with_deps(ctx), tool)

    def _with_deps(self, ctx: RunContext[Any]) -> RunContext[Any]:
        return dataclasses.replace(ctx, deps=self.deps)
