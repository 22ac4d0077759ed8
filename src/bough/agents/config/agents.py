"""Convert the agent entries of a configuration to the fields of an `AgentSpec`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from bough.agents.config.check import find_mistakes, find_nearest, validate
from bough.agents.config.code import CodeGate
from bough.agents.config.file import ConfigFile, Key, Place, Trust, expand, find_config, has_variables, read_beneath
from bough.agents.config.layers import is_narrow_policy, load_layers, narrow_limits
from bough.agents.config.models import check_settings, read_model
from bough.agents.config.schema import A2AClientEntry, AgentEntry, Config, LimitsEntry, McpServerEntry, PolicyEntry
from bough.errors import BoughError, InvalidInput, NotFound, PermissionDenied
from bough.guard import AllowList, Policy, limits_from_json, policy_from_json, policy_named
from bough.settings import Settings
from bough.skills import Skill, SkillRegistry

if TYPE_CHECKING:
    from bough.connect.a2a import A2AClientExtended
    from bough.connect.config import MCPClientConfig


class Unset(Enum):
    """The value of a parameter that was not given."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return self.value


UNSET: Final = Unset.UNSET
"""The default of an override: use the file's value. Any other value, also `[]`, `""` and None, replaces it."""

T = TypeVar("T")
SubAgent: TypeAlias = "AgentFields | Any"


@dataclass(frozen=True)
class AgentFields:
    """The fields of an `AgentSpec`.

    Attributes:
        values: The fields, except `sub_agents`.
        sub_agents: The fields of the sub-agents, or specs returned by code.
    """

    values: dict[str, Any]
    sub_agents: tuple[SubAgent, ...] = ()


class AgentConfig:
    """A fully validated configuration, from which agents are built by name."""

    def __init__(self, file: ConfigFile, *, home: Path, env: Mapping[str, str], policy: str | None = None) -> None:
        self.file = file
        self.config: Config = validate(file)
        self._gate = CodeGate(home, file)
        self._policy = policy
        self.env = env

    @classmethod
    def load(
        cls, path: Path | None = None, *, settings: Settings | None = None, cwd: Path | None = None
    ) -> AgentConfig:
        """Read and validate the configuration. Without a file, the result is empty.

        Values of an untrusted file that would replace or widen the home's are ignored and listed in `file.ignored`.

        Raises:
            InvalidInput: The configuration has a mistake.
            PermissionDenied: An untrusted file is a link out of its project, or extends a file outside of it.
        """
        settings = settings or Settings.load()
        return cls(
            _load_file(path, settings, cwd or Path.cwd()), home=settings.home, env=os.environ, policy=settings.policy
        )

    def make_tools(self, name: str) -> tuple[Any, ...]:
        """Return the tools of an agent, created by the factories that it names.

        Raises:
            InvalidInput: Code cannot be imported, or fails.
            PermissionDenied: The file is not trusted.
        """
        return self._make_tools(self.entry(name), ("agents", name))

    def load_hooks(self) -> Iterator[tuple[str, Any]]:
        """Yield the names in `hooks`, each with the object that it names.

        Raises:
            InvalidInput: Code cannot be imported.
            PermissionDenied: The file is not trusted.
        """
        for index, name in enumerate(self.config.hooks):
            yield name, self._gate.load(name, self.file.place(("hooks", index)))

    def make_analyzers(self) -> Iterator[Any]:
        """Yield the analyzers, created by the factories in `analyzers`. Raises what `make_tools` raises."""
        for name, code in self.config.analyzers.items():
            yield self._gate.call(code, self.file.place(("analyzers", name)))

    def require_secret(self, name: str) -> Path:
        """Check that the secret `name` may be read, and return the configuration file with its entry.

        Raises:
            PermissionDenied: The file was neither passed by the user nor trusted.
        """
        place = self.file.place(("secrets", name))
        self._gate.require_named(place, f"the secret {name}")
        return Path(place.file)

    @property
    def names(self) -> list[str]:
        """The names of the agents, in the order of the file."""
        return list(self.config.agents)

    def entry(self, name: str) -> AgentEntry:
        """Return an agent's entry.

        Raises:
            NotFound: No agent has this name; `details` has `known` and `nearest`.
        """
        if name not in self.config.agents:
            nearest = find_nearest(name, self.names)
            raise NotFound(
                f"no agent named {name!r}" + (f"; did you mean {nearest!r}?" if nearest else ""),
                hint=f"there are: {', '.join(self.names) or 'none'} ({self.file.path or 'no config.yaml'})",
                details={"known": self.names, "nearest": nearest},
            )
        return self.config.agents[name]

    def fields(self, name: str, overrides: Mapping[str, Any] | None = None) -> AgentFields:
        """Return the fields of the agent `name` and its sub-agents.

        Args:
            overrides: Values by key that replace those of the file. If not empty, the agent needs no entry.

        Raises:
            NotFound: The agent, or a name that it refers to, does not exist.
            InvalidInput: Code or a skill cannot be loaded, or the agent is its own sub-agent.
            PermissionDenied: The agent names code, and the file is not trusted.
            Unavailable: An environment variable is not set.
        """
        entry = AgentEntry() if overrides and name not in self.config.agents else self.entry(name)
        overrides = _normalize(overrides or {})
        return self._make_fields(name, entry.model_copy(update=overrides), overrides)

    def _make_fields(self, name: str, entry: AgentEntry, overrides: Mapping[str, Any]) -> AgentFields:
        key: Key = ("agents", name)
        self._check_untrusted(entry, key, overrides)  # before any factory is called or any file read
        values: dict[str, Any] = {"name": name, "description": entry.description}
        values |= self.model_fields(entry.model)
        values |= self._make_prompt_fields(entry, key, overrides)
        values |= self._make_skill_fields(entry, key, overrides)
        values |= {
            "tools": self._make_tools(entry, key),
            "mcp_servers": tuple(self._make_server(server) for server in entry.mcp_servers),
            "a2a_clients": tuple(self._make_remote_agent(client) for client in entry.a2a_clients),
            "workspace_access": entry.workspace_access,
            "workspace": entry.workspace,
            "queue": entry.queue,
            "ask": entry.ask,
            "fallback": tuple(entry.fallback),
            "confirmation_policy": _parse_policy(entry.confirmation_policy),
            "allow_list": None if entry.allow_list is None else AllowList.of(*entry.allow_list),
            "limits": _parse_limits(entry.limits),
        }
        if entry.settings:
            values["settings"] = {**values.get("settings", {}), **entry.settings}
        values |= {field: overrides[field] for field in ("executor",) if field in overrides}
        sub_agents = [
            self._resolve_sub_agent(agent, (*key, "sub_agents", index)) for index, agent in enumerate(entry.sub_agents)
        ]
        return AgentFields(values, tuple(sub_agents))

    def model_fields(self, name: str | None) -> dict[str, Any]:
        """Return the fields `model`, `base_url`, `api_key`, `settings` of a spec that uses the model `name`.

        Raises:
            NotFound: The model is unknown.
            PermissionDenied: The model uses environment variables or an address, and the file is not trusted.
            Unavailable: An environment variable is not set.
        """
        if name is not None and name not in self.config.models and ":" not in name and name != "offline":
            raise NotFound(
                f"no model named {name!r}",
                hint=f"there are: {', '.join(self.config.models) or 'none'}",
                details={"known": list(self.config.models), "nearest": find_nearest(name, list(self.config.models))},
            )
        return read_model(name, self.config, self.file, gate=self._gate, env=self.env)

    def _check_untrusted(self, entry: AgentEntry, key: Key, overrides: Mapping[str, Any]) -> None:
        """Check that the agent's file may set its rules and its access, and use entries of other files.

        Raises:
            PermissionDenied: The file is not trusted, and a value needs trust.
        """
        limits = entry.limits
        needs_trust_by_field: dict[str, bool] = {
            "confirmation_policy": self._is_wide_policy(entry.confirmation_policy),
            "limits": isinstance(limits, LimitsEntry)
            and narrow_limits(None, limits.model_dump(exclude_unset=True)) is None,
            "workspace_access": entry.workspace_access in ("write", "run"),
            "skill_roots": bool(entry.skill_roots),
        }
        for field, needs_trust in needs_trust_by_field.items():
            if needs_trust and field not in overrides:
                subject = f"{field} {self._quote_field(key, field)}".rstrip()
                self._gate.require_named(self.file.place((*key, field)), subject)
        if "settings" not in overrides:
            check_settings(entry.settings, self.file.place((*key, "settings")), self._gate)
        for field, section, names in (
            ("mcp_servers", ("mcp_servers",), entry.mcp_servers),
            ("a2a_clients", ("a2a", "clients"), entry.a2a_clients),
            ("sub_agents", ("agents",), entry.sub_agents),
        ):
            if field in overrides:
                continue
            place = self.file.place((*key, field))
            for name in names:
                # An untrusted agent that used a server of the home would act with the user's credentials.
                if self.file.place((*section, name)).trust > place.trust:
                    self._gate.require_named(place, f"{name!r} of another file")

    def _is_wide_policy(self, policy: str | PolicyEntry | None) -> bool:
        """Return whether a policy asks less often than the settings' policy."""
        if policy is None:
            return False
        value = policy if isinstance(policy, str) else policy.model_dump(exclude_none=True)
        return not is_narrow_policy(value, None, self._policy)

    def _quote_field(self, key: Key, field: str) -> str:
        """Return a field of an agent, quoted for a message; empty if it is not text."""
        value = getattr(self.config.agents[str(key[-1])], field)
        return repr(value) if isinstance(value, str) else ""

    def _make_prompt_fields(self, entry: AgentEntry, key: Key, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the field for the agent's prompt. The prompt of an untrusted file is read now, below its folder."""
        if entry.system_prompt_path is not None:
            place = self.file.place((*key, "system_prompt_path"))
            if overrides.get("system_prompt_path"):
                return {"system_prompt_path": Path(entry.system_prompt_path)}
            if place.trust is not Trust.UNTRUSTED:
                return {"system_prompt_path": place.file.parent / entry.system_prompt_path}
            return {"system_prompt": self._read_prompt(place, entry.system_prompt_path)}
        return {} if entry.system_prompt is None else {"system_prompt": entry.system_prompt}

    def _read_prompt(self, place: Place, name: str) -> str:
        """Return the text of a prompt of an untrusted file; follows no link out of the file's folder."""
        folder = place.file.parent
        path = os.path.relpath(os.path.realpath(folder / name), folder)
        if path.split(os.sep)[0] == os.pardir:
            self._gate.require_named(place, f"the prompt {name!r} outside its folder")
        try:
            return read_beneath(folder, path)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{place}: cannot read the prompt {name!r}: {error}", hint="check the path") from error

    def _make_skill_fields(self, entry: AgentEntry, key: Key, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the agent's skills, or its `skill_roots` if it names no skills."""
        base = Path() if "skill_roots" in overrides else self.file.place((*key, "skill_roots")).file.parent
        roots = tuple(base / root for root in entry.skill_roots)
        if entry.skills is None:
            return {"skill_roots": roots}
        registry = SkillRegistry()
        registry.discover(list(roots))
        return {"skills": tuple(self._find_skill(registry, name, key) for name in entry.skills)}

    def _find_skill(self, registry: SkillRegistry, name: str, key: Key) -> Skill:
        if name not in registry:
            names = [skill.name for skill in registry.list_all()]
            raise InvalidInput(
                f"{self.file.place((*key, 'skills'))}: no skill named {name!r} in the agent's skill_roots",
                hint=f"there are: {', '.join(names[:20]) or 'none'}",
                details={"known": names, "nearest": find_nearest(name, names)},
            )
        return registry.get(name)

    def _make_tools(self, entry: AgentEntry, key: Key) -> tuple[Any, ...]:
        """Return the tools created by the factories of an entry; a factory returns one tool or several."""
        tools: list[Any] = []
        for index, factory in enumerate(entry.tools):
            created = self._gate.call(factory, self.file.place((*key, "tools", index)))
            tools += cast("Sequence[Any]", created) if isinstance(created, list | tuple) else (created,)
        return tuple(tools)

    def _make_server(self, name: str) -> Any:
        entry = _find_entry(self.config.mcp_servers, name, "MCP server")
        return make_server(name, entry, self.file, gate=self._gate, env=self.env)

    def _make_remote_agent(self, name: str) -> Any:
        entry = _find_entry(self.config.a2a.clients, name, "A2A client")
        return make_remote_agent(name, entry, self.file, gate=self._gate, env=self.env)

    def _resolve_sub_agent(self, name: str, key: Key) -> SubAgent:
        if name in self.config.agents:
            return self.fields(name)
        if ":" not in name:
            self.entry(name)  # raises NotFound
        return self._gate.call(name, self.file.place(key))


def _load_file(path: Path | None, settings: Settings, cwd: Path) -> ConfigFile:
    files = find_config(path, home=settings.home, cwd=cwd, env=os.environ)
    is_named = path is not None or bool(os.environ.get("BOUGH_CONFIG"))
    return load_layers(files, home=settings.home, is_named=is_named, policy=settings.policy)


def _find_entry(entries: Mapping[str, T], name: str, noun: str) -> T:
    """Return the entry `name`, or raise `NotFound` with the known names and the nearest one."""
    if name not in entries:
        names = list(entries)
        raise NotFound(
            f"no {noun} named {name!r}",
            hint=f"there are: {', '.join(names) or 'none'}",
            details={"known": names, "nearest": find_nearest(name, names)},
        )
    return entries[name]


_LIST_FIELDS = frozenset({"tools", "mcp_servers", "a2a_clients", "skill_roots", "sub_agents"})


def _normalize(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides with None replaced by an empty list or text; either kind of prompt replaces the other kind."""
    values: dict[str, Any] = {}
    for key, value in overrides.items():
        if value is None and key in _LIST_FIELDS:
            values[key] = []
        elif value is None and key == "description":
            values[key] = ""
        else:
            values[key] = value
    if "system_prompt" in values:
        values.setdefault("system_prompt_path", None)
    elif "system_prompt_path" in values:
        values["system_prompt"] = None
    return values


def _parse_policy(entry: str | PolicyEntry | None) -> Policy | None:
    match entry:
        case None:
            return None
        case str():
            return policy_named(entry)
        case PolicyEntry():
            return policy_from_json(entry.model_dump(exclude_none=True))


def _parse_limits(entry: Any) -> Any:
    if not isinstance(entry, LimitsEntry):
        return entry  # None, or limits given as an override
    return limits_from_json(entry.model_dump(exclude_unset=True))


def find_faults(path: Path | None, *, settings: Settings, only: str | None = None) -> list[BoughError]:
    """Return all mistakes in the configuration; if there are none, the missing requirements of its agents.

    Starts no server.

    Args:
        only: Check this agent only; None checks all.

    Raises:
        NotFound: The agent `only` does not exist.
    """
    try:
        file = _load_file(path, settings, Path.cwd())
    except (InvalidInput, PermissionDenied) as error:
        return [error]
    _, mistakes = find_mistakes(file)
    if mistakes:
        return [*mistakes]
    config = AgentConfig(file, home=settings.home, env=os.environ, policy=settings.policy)
    faults: list[BoughError] = [*file.ignored]
    for name in config.names if only is None else [only]:
        try:
            config.fields(name)
        except NotFound:
            if only is not None:
                raise
        except BoughError as error:
            faults.append(error)
    return faults


def make_server(
    name: str, entry: McpServerEntry, file: ConfigFile, *, gate: CodeGate, env: Mapping[str, str]
) -> MCPClientConfig:
    """Return the configuration of an MCP server.

    Raises:
        PermissionDenied: The file, which names a program or an address, is not trusted.
        Unavailable: An environment variable is not set.
    """
    from bough.connect.config import MCPClientConfig

    place = file.place(("mcp_servers", name))
    values: dict[str, Any] = entry.model_dump(exclude_unset=True)
    if entry.command is not None:
        gate.require_named(place, f"the program {entry.command!r}")
    else:
        gate.require_named(place, f"the address {entry.url!r}, to which calls would be sent")
    if has_variables(values):
        gate.require_named(place, "environment variables")
    # After the checks, because `expand` reads the environment.
    expanded = expand(values, env=env, subject=f"mcp_servers.{name}")
    return MCPClientConfig.model_validate({"name": name, **expanded})


def make_remote_agent(
    name: str, entry: A2AClientEntry, file: ConfigFile, *, gate: CodeGate, env: Mapping[str, str]
) -> A2AClientExtended:
    """Return the client of a remote agent; it connects on first use.

    Raises:
        PermissionDenied: The file, which names the address to which prompts would be sent, is not trusted.
        Unavailable: An environment variable is not set.
    """
    from bough.connect.a2a import A2AClientExtended
    from bough.connect.config import A2AClientConfig

    place = file.place(("a2a", "clients", name))
    values: dict[str, Any] = entry.model_dump(exclude_unset=True)
    # This check also covers the environment variables below, because every entry has a URL.
    gate.require_named(place, f"the address {entry.url!r}, to which prompts would be sent")
    expanded = expand(values, env=env, subject=f"a2a.clients.{name}")
    return A2AClientExtended(A2AClientConfig.model_validate({"name": name, **expanded}))
