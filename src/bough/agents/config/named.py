"""What a log only names, found in `config.yaml`: tools, functions of hooks, analyzers, secrets.

Code is imported only where a log names something of that kind, and only as `CodeGate` lets it.
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
    """The parts of a configuration by the names that a log has for them.

    Args:
        config: Checked, from which its agents are made too.

    All methods raise `PermissionDenied` where nobody has trusted the file that names code, a variable or a secret's
    file, and `InvalidInput` where code cannot be imported.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config

    @classmethod
    def load(cls, settings: Settings) -> NamedParts:
        """Read the configuration that `AgentSpec.from_config` finds. Blocks.

        Raises:
            InvalidInput: It has a mistake.
        """
        return cls(AgentConfig.load(settings=settings))

    def find_tools(self, names: Iterable[str]) -> list[Any] | None:
        """Return the tools of these names (`module:function`), in their order; None where an agent has not all."""
        requested = list(names)
        tools = {name_tool(tool): tool for name in self._config.names for tool in self._config.make_tools(name)}
        return [tools[name] for name in requested] if tools.keys() >= set(requested) else None

    def find_hooks(self, recorded: Sequence[Mapping[str, Any]]) -> HookSet:
        """Return those recorded hooks whose functions the configuration names, and the hooks that it holds whole.

        An entry of `hooks` is a `Hook`, several, a `HookSet`, or a function, which is asked when the log says so.
        """
        functions: dict[str, Callable[..., Any]] = {}
        whole: list[Hook] = []
        for name, value in self._config.load_hooks():
            if isinstance(value, Hook | HookSet | list | tuple):
                whole += _list_hooks(cast("Hook | HookSet | Sequence[Any]", value))
            elif callable(value):
                functions[str(getattr(value, "__qualname__", name))] = value
        from_functions = [
            _make_hook(data, functions[label]) for data in recorded if (label := data.get("function")) in functions
        ]
        configured = [hook for hook in whole if hook.to_json() in recorded]
        return HookSet((*configured, *from_functions))

    def find_analyzer(self, recorded: Mapping[str, Any]) -> SecurityAnalyzer | None:
        """Return the analyzer that a log describes so; None where the configuration has none."""
        for analyzer in self._config.make_analyzers():
            if analyzer.to_json() == recorded:
                return analyzer
        return None

    def find_secrets(self, names: Iterable[str]) -> Secrets:
        """Return providers of those secrets that the configuration has; no value is read.

        Raises:
            Unavailable: A variable that an entry needs is not set.
        """
        entries = {name: entry for name in names if (entry := self._config.config.secrets.get(name)) is not None}
        return Secrets({name: self._provider(name) for name in entries})

    def _provider(self, name: str) -> EnvSecret | FileSecret:
        file = self._config.require_secret(name)
        stated = self._config.config.secrets[name].model_dump(exclude_none=True)
        values = cast("dict[str, str]", expand(stated, env=self._config.env, where=f"secrets.{name}"))
        if "env" in values:
            return EnvSecret(values["env"])
        return FileSecret(file.parent / Path(values["file"]).expanduser())


def _list_hooks(value: Hook | HookSet | Sequence[Any]) -> list[Hook]:
    if isinstance(value, Hook):
        return [value]
    hooks = value.hooks if isinstance(value, HookSet) else value
    return [hook for hook in cast("Sequence[Any]", hooks) if isinstance(hook, Hook)]


def _make_hook(recorded: Mapping[str, Any], function: Callable[..., Any]) -> Hook:
    """Return the hook that a log describes, with its function."""
    return Hook(
        kind=HookKind(recorded["kind"]),
        matcher=str(recorded.get("matcher", "*")),
        timeout_seconds=float(recorded.get("timeout", 60.0)),
        on_failure="continue" if recorded.get("onFailure") == "continue" else "deny",
        source=str(recorded.get("source", "")),
        function=function,
    )
