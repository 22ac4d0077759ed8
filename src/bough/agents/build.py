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
from bough.agents.skills.activation import Standing
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
"""PydanticAI's bound on consecutive bad calls, so high that the conversation's own detectors and limits apply first."""


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """Everything derived from a spec and a registry, independent of the model.

    Attributes:
        servers: The MCP servers of its skills; closed by `aclose`.
        remote: The remote agents of the spec; closed by `aclose`.
        pool: Runs the servers of the spec, `own_servers`; closed by `aclose` if `owns_pool`.
        toolset: Its skills as tools; None without skills.
        instructions: The system prompt, the always-active skills and the catalogue. A conversation records them once,
            so that the prompt stays byte-identical.
        paths: The skills that are activated by touched files.
    """

    spec: AgentSpec
    registry: SkillRegistry
    toolset: SkillToolset | None
    instructions: str
    servers: SkillServers
    paths: PathSkillIndex
    pool: McpPool
    own_servers: AgentServers
    remote: RemoteAgents
    owns_pool: bool

    @classmethod
    def of(cls, spec: AgentSpec, registry: SkillRegistry, *, pool: McpPool | None = None) -> Blueprint:
        """Create the blueprint. Without skills, it has no catalogue and no skill tools.

        Args:
            pool: Runs the spec's MCP servers and is closed by the caller; None creates a separate pool.
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
            own_servers=AgentServers(spec.mcp_servers, pool=server_pool, report=_report),
            remote=RemoteAgents(spec.a2a_clients, report=_report),
            owns_pool=pool is None,
            instructions=_render_instructions(spec, toolset),
        )

    def for_conversation(self, spec: AgentSpec, *, pool: McpPool | None, has_new_prompt: bool = False) -> Blueprint:
        """Return the blueprint of another conversation, which shares the rendered texts but no connection.

        Args:
            spec: With the same skills, executor and sub-agents; other fields may differ.
            pool: Runs the spec's MCP servers and is closed by the caller; None creates a separate pool.
            has_new_prompt: Whether its prompt differs too.
        """
        server_pool = pool or McpPool()
        return replace(
            self,
            spec=spec,
            instructions=_render_instructions(spec, self.toolset) if has_new_prompt else self.instructions,
            # Never shared: a skill's server sees the workspace and the secrets of the conversation that started it.
            servers=_make_skill_servers(self.registry),
            pool=server_pool,
            own_servers=AgentServers(spec.mcp_servers, pool=server_pool, report=_report),
            remote=RemoteAgents(spec.a2a_clients, report=_report),
            owns_pool=pool is None,
        )

    @property
    def standing(self) -> Standing:
        """The always-active skills, whose texts are part of the instructions."""
        return Standing() if self.toolset is None else self.toolset.standing

    def require_tools(self, names: Iterable[str]) -> None:
        """Check that the agent has these tools.

        Raises:
            InvalidInput: A tool is missing.
        """
        own = {tool.name if isinstance(tool, Tool) else tool.__name__ for tool in self.spec.tools}
        toolsets: list[AbstractToolset[Any]] = [*self._toolsets(), *self.spec.toolsets]
        toolsets += [self.own_servers] if self.spec.mcp_servers else []
        toolsets += [self.remote] if self.spec.a2a_clients else []
        if self.spec.agent is not None:
            toolsets += self.spec.agent.toolsets
        if not all(isinstance(toolset, FunctionToolset) for toolset in toolsets):
            return  # the tools of a server are known only during a run
        available = own.union(*(cast("FunctionToolset[Any]", toolset).tools for toolset in toolsets))
        for name in names:
            if name not in available:
                raise InvalidInput(
                    f"agent {self.spec.name!r} has no tool {name!r}, which an open call needs",
                    hint="add the tool, or close the open calls (pending=close)",
                )

    def _toolsets(self) -> list[FunctionToolset[Any]]:
        """Return the built-in toolsets, without empty ones: PydanticAI starts a task for each at every step."""
        access = self.spec.workspace_access
        workspace = [] if access == "none" else [workspace_toolset(access)]
        skills = [] if self.toolset is None else [self.toolset.toolset()]
        names = [agent.name for agent in self.spec.sub_agents]
        delegation = [delegation_toolset(names)] if names else []
        own = [*workspace, *skills, *delegation, *([ask_toolset()] if self.spec.ask else [])]
        return [*own, result_toolset()] if self._reads_results(own) else own

    def _reads_results(self, own: Sequence[FunctionToolset[Any]]) -> bool:
        """Whether to offer `read_result`: the agent has tools, and none of that name.

        Decided from the spec alone, because a tool added later would invalidate the provider's cached prefix.
        """
        toolsets = [*own, *self.spec.toolsets, *(() if self.spec.agent is None else self.spec.agent.toolsets)]
        tool_names = {name for toolset in toolsets if isinstance(toolset, FunctionToolset) for name in toolset.tools}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        tool_names |= {tool.name if isinstance(tool, Tool) else tool.__name__ for tool in self.spec.tools}
        other = bool(self.spec.mcp_servers) or any(not isinstance(toolset, FunctionToolset) for toolset in toolsets)
        return READ_RESULT not in tool_names and (bool(tool_names) or other)

    async def aclose(self) -> None:
        """Stop the MCP servers of its skills, and the pool if this blueprint owns it."""
        await self.servers.aclose()
        await self.remote.aclose()
        if self.owns_pool:
            await self.pool.aclose()

    def agent(self, model: Model, *, instructions: str | None = None) -> AbstractAgent[ToolContext, Any]:
        """Return the PydanticAI agent; `instructions` are those recorded by a conversation that continues."""
        instructions = self.instructions if instructions is None else instructions
        spec = self.spec
        # The order must be the same at every step: a provider's cached prefix starts with the tools. Toolsets that may
        # grow during a run go last, so that a new tool changes only the end of the prefix.
        own: list[AbstractToolset[Any]] = [*([FunctionToolset(spec.tools)] if spec.tools else []), *spec.toolsets]
        toolsets = [
            *self._toolsets(),
            *(own if spec.deps is None else [ToolsetWithDeps(toolset, spec.deps) for toolset in own]),
            *([self.own_servers] if spec.mcp_servers else []),
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
        """Return the capabilities that look at the files touched by tools; the first one is the outermost."""
        paths = [PathSkills(self.paths, context)] if self.paths.names else []
        # `RuleWatch` is the inner one: it records the changed rule files before `PathSkills` activates any of them.
        return [*paths, *([RuleWatch(context)] if _follows_rules(self.spec) else [])]


def _follows_rules(spec: AgentSpec) -> bool:
    """Whether an agent, or one of its sub-agents, follows rule files of the workspace."""
    own = spec.skills is None and spec.discover_skills
    return own or any(_follows_rules(sub_agent) for sub_agent in spec.sub_agents)


class AgentBuilder:
    """The spec of a conversation's agent, and its blueprint, which is built on first use.

    Opening or forking a conversation discovers no skill and renders no catalogue: its first run or message does.

    Args:
        spec: The current spec; `change_spec` replaces it.
        build: Returns the blueprint of a spec.
    """

    def __init__(self, spec: AgentSpec, build: Callable[[AgentSpec], Blueprint]) -> None:
        self.spec = spec
        self._build = build

    @classmethod
    def from_blueprint(cls, blueprint: Blueprint) -> AgentBuilder:
        """Return a builder whose blueprint exists already."""
        new = cls(blueprint.spec, lambda spec: replace(blueprint, spec=spec))
        new.blueprint = blueprint  # fills the cached property
        return new

    @property
    def is_built(self) -> bool:
        """Whether the blueprint exists."""
        return "blueprint" in vars(self)  # reading the property would build it

    @cached_property
    def blueprint(self) -> Blueprint:
        """The blueprint of the spec.

        Raises:
            InvalidInput: Two skills have one name, or the prompt cannot be read.
        """
        return self._build(self.spec)

    def change_spec(self, spec: AgentSpec) -> None:
        """Continue with another spec of the same prompt, tools and skills."""
        self.spec = spec
        if self.is_built:
            # Not built again: running MCP servers and the recorded instructions stay in use.
            self.blueprint = replace(self.blueprint, spec=spec)

    async def aclose(self) -> None:
        """Close the blueprint, if it was built."""
        if self.is_built:
            await self.blueprint.aclose()


class BlueprintCache:
    """Builds the blueprints of a worker's conversations, and renders common parts only once.

    Each call discovers the skills again, through the index and without reading any, so that changes are seen. As long
    as they are unchanged, conversations share registry, tools, catalogue and instructions.

    Args:
        pool: Runs the MCP servers of all conversations; the caller closes it.
        size: Maximum number of entries; the least recently used one is dropped first.
    """

    def __init__(self, pool: McpPool, *, size: int = 256, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._size = size
        self._monotonic = monotonic
        self._recheck_seconds = 0.0
        self._entries: OrderedDict[_Key, _CachedBlueprint] = OrderedDict()

    def recheck_every(self, seconds: float) -> BlueprintCache:
        """Return a view of this cache that discovers skills at most once in `seconds`.

        Its blueprints may be that old, unless `changed_rules` says that a rule changed.
        """
        view = BlueprintCache(self._pool, size=self._size, monotonic=self._monotonic)
        # The same dictionary, so that the view finds what the worker rendered, and the bound counts both.
        view._entries, view._recheck_seconds = self._entries, seconds
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
        """Return the blueprint of one conversation, to be closed with it.

        Args:
            roots: Configured folders, searched only if the spec discovers skills.
            changed_rules: Digests of the rule files that changed while tools of the conversation ran.

        Raises:
            InvalidInput: Two skills have one name, or the prompt cannot be read.
        """
        key, now = _Key.from_spec(spec, workspace, home, roots), self._monotonic()
        entry = self._entries.get(key)
        # With changed rules nothing old will do: a conversation must not follow a rule that its own tool wrote.
        if entry is None or changed_rules or now - entry.checked_at >= self._recheck_seconds:
            registry = open_registry(spec, workspace=workspace, home=home, roots=roots, changed_rules=changed_rules)
            contents = registry.contents()
            # An equal registry is dropped: a new one would render the same catalogue once more.
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
    """A blueprint, the contents of the skill folders it was built from, and when these were last compared."""

    contents: tuple[Any, ...]
    blueprint: Blueprint
    checked_at: float


class _Key(NamedTuple):
    """Everything that determines instructions, catalogue and skill tools, except the contents of the folders.

    Objects are identified by `id`. The blueprint in the entry refers to them, so no id is reused while it is cached.
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
    def from_spec(cls, spec: AgentSpec, workspace: Path, home: Path, roots: Sequence[Path]) -> _Key:
        return cls(
            prompt=spec.prompt(),
            sub_agents=tuple((agent.name, agent.description) for agent in spec.sub_agents),
            remote=tuple(client.config.name for client in spec.a2a_clients),
            skills=None if spec.skills is None else tuple(id(skill) for skill in spec.skills),
            executor=id(spec.executor),
            catalog_tokens=spec.catalog_tokens,
            home=home,
            skill_roots=tuple(spec.skill_roots),
            # Without discovery the workspace has no influence, so conversations in different folders share an entry.
            discovered=(workspace, *roots) if spec.discover_skills else (),
        )


def _make_skill_servers(registry: SkillRegistry) -> SkillServers:
    return SkillServers(registry, active=_active, report=_report, trees=_trees)


def _render_instructions(spec: AgentSpec, toolset: SkillToolset | None) -> str:
    """Return prompt, always-active skills and catalogue in this order; placeholders in the prompt take catalogues."""
    remote = [(client.config.name, "a remote agent") for client in spec.a2a_clients if client.config.name]
    catalog = render_sub_agents([*((agent.name, agent.description) for agent in spec.sub_agents), *remote])
    if toolset is None:
        return render_prompt(spec.prompt(), sub_agents=catalog, skills="")
    if has_place_for_skills(prompt := spec.prompt()):
        rendered = render_prompt(prompt, sub_agents=catalog, skills=toolset.offer)
        return "\n\n".join(filter(None, (rendered, toolset.standing.text)))
    return render_prompt(prompt, sub_agents=catalog, skills=toolset.instructions)


def _active(deps: ToolContext | None) -> Mapping[str, str]:
    return {} if deps is None else deps.active_skills()


def _trees(deps: ToolContext | None) -> Mapping[str, str]:
    return {} if deps is None else deps.skill_trees()


async def _report(deps: ToolContext | None, error: BoughError) -> None:
    if deps is None:
        raise error
    await deps.emit(ErrorRaised(code=error.code, message=public_message(error), hint=error.hint))


_PLACEHOLDER = re.compile(r"\{(sub_agents|skills)_catalog\}")
_MAX_DESCRIPTION_CHARS = 1024

SUB_AGENTS_HEADING = "# Agents you can delegate to"
"""Heading of the list of sub-agents if the prompt has no placeholder for it."""


def render_prompt(prompt: str, *, sub_agents: str, skills: str) -> str:
    """Return the prompt with both catalogues. O(text).

    A catalogue without a placeholder is appended to the prompt, the sub-agents below `SUB_AGENTS_HEADING`. An empty
    catalogue adds nothing.
    """
    catalogs = {"sub_agents": sub_agents, "skills": skills}
    placed: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        placed.add(match[1])
        return catalogs[match[1]]

    text = _PLACEHOLDER.sub(fill, prompt)  # in one pass, so that braces in a catalogue are not replaced
    appended = [f"{SUB_AGENTS_HEADING}\n{sub_agents}"] if sub_agents and "sub_agents" not in placed else []
    appended += [skills] if skills and "skills" not in placed else []
    return "\n\n".join(filter(None, (text, *appended)))


def has_place_for_skills(prompt: str) -> bool:
    """Whether the prompt has a placeholder for the skills."""
    return "{skills_catalog}" in prompt


def render_sub_agents(agents: Iterable[tuple[str, str]]) -> str:
    """Return one line `- name: description` per agent, in the given order; empty without agents."""
    return "\n".join(f"- {name}: {_shorten(description)}" for name, description in agents)


def _shorten(description: str) -> str:
    line = " ".join(description.split())
    return line if len(line) <= _MAX_DESCRIPTION_CHARS else f"{line[: _MAX_DESCRIPTION_CHARS - 1]}…"


class AdoptedAgent(WrapperAgent[Any, Any]):
    """Runs the wrapped agent unchanged; `iter` adds the conversation's instructions and tools.

    The agent's tools get `own_deps`; bough's tools get the context passed to `iter` as `deps`. Instructions, toolsets,
    capabilities, output validators and settings of the wrapped agent stay in force.
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
    async def iter(  # pyright: ignore[reportIncompatibleMethodOverride] - only what the loop gives
        self,
        *,
        deps: ToolContext,
        model: Model | None = None,
        capabilities: Sequence[AbstractCapability[Any]] = (),
        **options: Any,
    ) -> AsyncGenerator[AgentRun[Any, Any]]:
        """Run the wrapped agent on a message history, with the deps of both sides."""
        async with self.wrapped.iter(
            deps=self._own_deps,
            model=model or self._model,
            instructions=self._added_instructions or None,
            toolsets=[ToolsetWithDeps(toolset, deps) for toolset in self._added_toolsets],
            model_settings=self._added_settings,
            # A log holds no system prompt, so the history lacks the agent's own: PydanticAI adds it at each request.
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
