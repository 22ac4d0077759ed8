"""`module:factory` in a configuration: deciding whether the code is trusted, and calling it.

A configuration that comes with a repository is not trusted. Its code is imported, its programs are started and its
variables are read only if it is the file of bough's own folder, or the user has trusted the file, what it extends and
the modules it names in their current state.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from bough.agents.config.file import NAME, ConfigFile, Place, Trust, read_beneath, read_config
from bough.errors import InvalidInput, PermissionDenied
from bough.skills.find.places import project_root


class CodeGate:
    """Refuses what the file of a value may not do."""

    def require_named(self, place: Place, what: str) -> None:
        """Check that the file of `place` may start programs, read the environment, use addresses and set rules.

        Raises:
            PermissionDenied: It was neither passed explicitly nor trusted in its current state.
        """
        if place.trust < Trust.NAMED:
            raise _refuse(place, what)

    def require(self, place: Place, what: str) -> None:
        """Check that the file of `place` may name code.

        Raises:
            PermissionDenied: It is not trusted in its current state.
        """
        if place.trust < Trust.TRUSTED:
            raise _refuse(place, what)


def _refuse(place: Place, what: str) -> PermissionDenied:
    return PermissionDenied(
        f"{place} uses {what}, but the file is not trusted in its current state",
        hint=f"review it, then run: cd {place.file.parent} && bough skills trust",
        details={"file": str(place.file), "line": place.line},
    )


def config_digest(config: ConfigFile) -> str:
    """Return the hash of a configuration: its files, its prompts, and the modules it names. Imports nothing."""
    digest = hashlib.sha256()
    for text in (*config.digests.values(), *_digest_prompts(config)):
        digest.update(text.encode())
    for each in (path for module in sorted(list_modules(config.data)) for path in _module_files(module, config.folder)):
        try:
            digest.update(hashlib.sha256(each.read_bytes()).digest())
        except OSError as error:
            digest.update(type(error).__name__.encode())
    return digest.hexdigest()


def _digest_prompts(config: ConfigFile) -> Iterator[str]:
    """Yield the hash of each prompt below the configuration's folder that an agent names."""
    agents = _mapping(config.data.get("agents"))
    for name in sorted(agents):
        path: Any = _mapping(agents[name]).get("system_prompt_path")
        if not isinstance(path, str):
            continue
        folder = config.place(("agents", name, "system_prompt_path")).file.parent
        try:
            inside = os.path.relpath(os.path.realpath(folder / path), folder)
            yield hashlib.sha256(read_beneath(folder, inside).encode()).hexdigest()
        except (OSError, ValueError) as error:
            yield type(error).__name__


def project_configs(project: Path) -> dict[str, str]:
    """Return the hash of a project's configuration by its path below the project root; empty if it has none."""
    file = project / NAME
    if not file.is_file():
        return {}
    try:
        config = read_config(file)
    except InvalidInput:
        return {}  # the mistake is reported when the configuration is used
    top = os.path.realpath(project_root(project))
    return {os.path.relpath(os.path.realpath(file), top): config_digest(config)}


def list_modules(data: Any) -> set[str]:
    """Return the modules that a configuration names as `module:factory`, in all places that allow code."""
    whole = _mapping(data)
    places: list[Any] = [whole.get("hooks"), list(_mapping(whole.get("analyzers")).values())]
    for agent in _mapping(whole.get("agents")).values():
        places += [_mapping(agent).get("tools"), _mapping(agent).get("sub_agents")]
    names = [str(name) for place in places if isinstance(place, list) for name in cast("list[Any]", place)]
    return {name.partition(":")[0] for name in names if ":" in name}


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def load_code(name: str, place: Place) -> Any:
    """Import `module:factory` and return the object.

    Raises:
        InvalidInput: It cannot be imported.
    """
    module, _, attribute = name.partition(":")
    try:
        found: Any = import_module(module)
        found = getattr(found, attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InvalidInput(f"{place}: cannot import {name}: {error}", hint="check module and name") from error
    return found


def call_factory(name: str, place: Place) -> Any:
    """Call the factory `module:factory` and return its result; a list or a PydanticAI tool is returned itself.

    Raises:
        InvalidInput: It cannot be imported, or it fails.
    """
    found = load_code(name, place)
    if not callable(found):
        return found
    try:
        made: Any = found()
        return asyncio.run(made) if asyncio.iscoroutine(made) else made
    except Exception as error:
        raise InvalidInput(
            f"{place}: {name} failed: {type(error).__name__}: {error}", hint="fix the factory"
        ) from error


def name_tool(tool: Any) -> str:
    """Return the name under which a log has a tool: `module:function`, also of PydanticAI's `Tool`."""
    function = tool if hasattr(tool, "__qualname__") else getattr(tool, "function", tool)
    return f"{function.__module__}:{getattr(function, '__qualname__', '?')}"


def _module_files(module: str, folder: Path) -> list[Path]:
    """Return the file of a module, without importing it: below the configuration's folder, else in `sys.path`."""
    parts = module.split(".")
    for root in (folder, folder / "src", *map(Path, sys.path)):
        for path in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
            if path.is_file():
                return [path]
    return []
