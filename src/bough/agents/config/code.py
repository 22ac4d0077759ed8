"""`module:factory` in a configuration: deciding whether the code is trusted, and calling it.

A configuration that comes with a repository is not trusted. Its code is imported, its programs are started and its
variables are read only if the file is in bough's own folder, or the user has trusted the file and the modules it names
in their current state.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from bough.agents.config.file import NAME, Place
from bough.errors import InvalidInput, PermissionDenied
from bough.skills import TrustStore
from bough.skills.find.places import project_root


class CodeGate:
    """Decides which configuration files may name code.

    Args:
        home: bough's own folder.
        modules: All modules that the configuration names; their files are covered by its trust.
        is_named: Whether the user passed the file explicitly, instead of merely working in its folder.
    """

    def __init__(self, home: Path, modules: Iterable[str] = (), *, is_named: bool = False) -> None:
        self._home = home
        self._modules = tuple(modules)
        self._is_named = is_named

    def require_named(self, place: Place, what: str) -> None:
        """Check that the file of `place` may start programs, read the environment and use addresses.

        Raises:
            PermissionDenied: It was neither passed explicitly nor trusted in its current state.
        """
        if not self._is_named:
            self.require(place, what)

    def require(self, place: Place, what: str) -> None:
        """Check that the file of `place` may name code.

        Raises:
            PermissionDenied: It is not trusted in its current state.
        """
        file = Path(os.path.realpath(place.file))
        if file.is_relative_to(os.path.realpath(self._home)):
            return
        project = project_root(file.parent)
        name = os.path.relpath(file, os.path.realpath(project))
        if not TrustStore(self._home).remembers(project, name, config_digest(file, self._modules)):
            raise PermissionDenied(
                f"{place} uses {what}, but the file is not trusted in its current state",
                hint=f"review it, then run: cd {file.parent} && bough skills trust",
                details={"file": str(file), "line": place.line},
            )


def config_digest(file: Path, modules: Iterable[str]) -> str:
    """Return the hash of a configuration file and of the files of the modules it names. Imports nothing."""
    digest = hashlib.sha256()
    for each in (file, *(path for module in sorted(set(modules)) for path in _module_files(module, file.parent))):
        try:
            digest.update(hashlib.sha256(each.read_bytes()).digest())
        except OSError as error:
            digest.update(type(error).__name__.encode())
    return digest.hexdigest()


def project_configs(project: Path) -> dict[str, str]:
    """Return the hash of a project's configuration by its path below the project root; empty if it has none."""
    from bough.agents.config.file import read_config

    file = project / NAME
    if not file.is_file():
        return {}
    try:
        modules = list_modules(read_config([file]).data)
    except InvalidInput:
        modules = set[str]()  # the mistake is reported when the configuration is used
    top = os.path.realpath(project_root(project))
    return {os.path.relpath(os.path.realpath(file), top): config_digest(file, modules)}


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
