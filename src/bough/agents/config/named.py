"""Find in `config.yaml` the objects that a log records only by name: tools, hook functions, analyzers, secrets.

Code is imported only if the log names such an object and `CodeGate` allows the import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from bough.agents.config.agents import AgentConfig
from bough.agents.config.code import name_tool
from bough.agents.config.file import expand
from bough.guard import EnvSecret, FileSecret, Hook, HookSet, Secrets, SecurityAnalyzer
from bough.guard.hooks import HookKind
from bough.settings import Settings


class NamedParts:
    """Finds the objects of a configuration by the names that a log records.

    All methods raise `PermissionDenied` if the file that names code, a variable or a secret's file is not trusted, and
    `InvalidInput` if code cannot be imported.

    Args:
        config: The validated configuration.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config

    @classmethod
    def load(cls, settings: Settings) -> NamedParts:
        """Load the configuration that `AgentSpec.from_config` reads. Blocks.

        Raises:
            InvalidInput: The configuration is invalid.
        """
        return cls(AgentConfig.load(settings=settings))

    def find_tools(self, names: Iterable[str]) -> list[Any] | None:
        """Return the tools with these names (`module:function`), in this order; None if a tool is missing."""
        requested_names = list(names)
        tools = {name_tool(tool): tool for agent in self._config.names for tool in self._config.make_tools(agent)}
        return [tools[name] for name in requested_names] if tools.keys() >= set(requested_names) else None

    def find_hooks(self, recorded: Sequence[Mapping[str, Any]]) -> HookSet:
        """Return the recorded hooks for which the configuration has the hook itself or its function.

        An entry of `hooks` names a `Hook`, a list of hooks, a `HookSet`, or a function. Kind and matcher of a function
        are those in the log.
        """
        functions: dict[str, Callable[..., Any]] = {}
        hooks: list[Hook] = []
        for name, value in self._config.load_hooks():
            if isinstance(value, Hook | HookSet | list | tuple):
                hooks += _list_hooks(cast("Hook | HookSet | Sequence[Any]", value))
            elif callable(value):
                functions[str(getattr(value, "__qualname__", name))] = value
        function_hooks = [
            _make_hook(data, functions[label]) for data in recorded if (label := data.get("function")) in functions
        ]
        # Only recorded hooks: a hook that is added to the configuration must not change an old conversation.
        configured_hooks = [hook for hook in hooks if hook.to_json() in recorded]
        return HookSet((*configured_hooks, *function_hooks))

    def find_analyzer(self, description: Mapping[str, Any]) -> SecurityAnalyzer | None:
        """Return the analyzer with this recorded description; None if the configuration has none."""
        for analyzer in self._config.make_analyzers():
            if analyzer.to_json() == description:
                return analyzer
        return None

    def find_secrets(self, names: Iterable[str]) -> Secrets:
        """Return providers for those of the named secrets that the configuration has. Reads no value.

        Raises:
            Unavailable: A variable that an entry needs is not set.
        """
        return Secrets({name: self._make_provider(name) for name in names if name in self._config.config.secrets})

    def _make_provider(self, name: str) -> EnvSecret | FileSecret:
        file = self._config.require_secret(name)
        entry = self._config.config.secrets[name].model_dump(exclude_none=True)
        values = cast("dict[str, str]", expand(entry, env=self._config.env, subject=f"secrets.{name}"))
        if "env" in values:
            return EnvSecret(values["env"])
        return FileSecret(file.parent / Path(values["file"]).expanduser())


def _list_hooks(value: Hook | HookSet | Sequence[Any]) -> list[Hook]:
    if isinstance(value, Hook):
        return [value]
    hooks = value.hooks if isinstance(value, HookSet) else value
    return [hook for hook in cast("Sequence[Any]", hooks) if isinstance(hook, Hook)]


def _make_hook(recorded: Mapping[str, Any], function: Callable[..., Any]) -> Hook:
    """Return the hook that a log describes, with the given function."""
    return Hook(
        kind=HookKind(recorded["kind"]),
        matcher=str(recorded.get("matcher", "*")),
        timeout_seconds=float(recorded.get("timeout", 60.0)),
        on_failure="continue" if recorded.get("onFailure") == "continue" else "deny",
        source=str(recorded.get("source", "")),
        function=function,
    )
