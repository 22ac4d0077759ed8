"""Checking that the code named by a configuration (`module:factory`) is trusted, and loading it from a copy.

A configuration that comes with a repository is not trusted. Its code is imported, its programs are started and its
variables are read only if it is the file in bough's own folder, or if the user trusted the file, the files it extends
and the modules it names in their current state.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from bough.agents.config.file import NAME, ConfigFile, Place, Trust, read_beneath, read_config
from bough.errors import InvalidInput, PermissionDenied
from bough.skills import TrustStore
from bough.skills.find.places import project_root
from bough.skills.trust.python_code import ProjectCode, SnapshotFinder, list_search_path, read_code
from bough.skills.trust.snapshot import SnapshotStore
from bough.skills.trust.tree import SkillTree


class CodeGate:
    """Checks what the values of a configuration may do, and loads the code that they name.

    Args:
        home: bough's own folder, which has the copies of code.
        config: The configuration; its code is not imported before `load`.
    """

    def __init__(self, home: Path, config: ConfigFile) -> None:
        self._home = home
        self._config = config
        self._loaded: set[Path | None] = set()

    def require_named(self, place: Place, subject: str) -> None:
        """Check that the file of `place` may start programs, read the environment, use addresses and set rules.

        Raises:
            PermissionDenied: It was neither passed explicitly nor trusted in its current state.
        """
        if place.trust < Trust.NAMED:
            raise _refuse(place, subject)

    def require(self, place: Place, subject: str) -> None:
        """Check that the file of `place` may name code.

        Raises:
            PermissionDenied: It is not trusted in its current state.
        """
        if place.trust < Trust.TRUSTED:
            raise _refuse(place, subject)

    def load(self, name: str, place: Place) -> Any:
        """Import `module:factory` from a copy of the project's code, else from what is installed; return the object.

        Raises:
            InvalidInput: It cannot be imported.
            PermissionDenied: The file of `place` and its code are not trusted in their current state.
        """
        self.require(place, f"the code {name!r}")
        module, _, attribute = name.partition(":")
        layer = next((candidate for candidate in self._config.layers if place.file in candidate.digests), self._config)
        if layer.path not in self._loaded:
            # Before the import: only from here on, the project's modules are found in the copy that was checked.
            self._copy(layer, place, name)
            self._loaded.add(layer.path)
        try:
            imported: Any = import_module(module)
            return getattr(imported, attribute)
        except (ImportError, AttributeError, SyntaxError) as error:
            raise InvalidInput(f"{place}: cannot import {name}: {error}", hint="check module and name") from error

    def call(self, name: str, place: Place) -> Any:
        """Call the factory `module:factory` and return its result; an object that is not callable is returned itself.

        Raises:
            InvalidInput: It cannot be imported, or it fails.
            PermissionDenied: The file of `place` and its code are not trusted in their current state.
        """
        factory = self.load(name, place)
        if not callable(factory):
            return factory
        try:
            result: Any = factory()
            return asyncio.run(result) if asyncio.iscoroutine(result) else result
        except Exception as error:
            raise InvalidInput(
                f"{place}: {name} failed: {type(error).__name__}: {error}", hint="fix the factory"
            ) from error

    def _copy(self, layer: ConfigFile, place: Place, name: str) -> None:
        """Copy the code that a file names, check that the copy is trusted, and import modules from it from now on."""
        roots: dict[str, str] = {}

        def copy(folder: Path) -> SkillTree:
            code = read_code(layer.folder, list_modules(layer.data), copy_to=folder)
            roots.update(code.roots)
            # The copy is hashed, not the project: code that changes there after this check is never run.
            if not is_own(layer, self._home) and not is_trusted(layer, self._home, code):
                raise _refuse(place, f"the code {name!r}")
            if faults := code.tree.faults:
                message = f"{place}: the code of {name!r} cannot be copied: {faults[0].message}"
                raise InvalidInput(message, hint=faults[0].fix)
            return code.tree

        snapshot = SnapshotStore(self._home / "snapshots").add(layer.folder, copy)
        if roots:
            SnapshotFinder(snapshot.folder, roots).install()


def is_own(config: ConfigFile, home: Path) -> bool:
    """Whether a configuration lies in bough's own folder."""
    return config.folder.is_relative_to(os.path.realpath(home))


def is_trusted(config: ConfigFile, home: Path, code: ProjectCode | None = None) -> bool:
    """Whether the user trusted a configuration and its code in their current state. O(bytes of its code).

    Args:
        code: The code, if it was read already.
    """
    file = config.folder / Path(os.path.realpath(config.path or NAME)).name
    project = project_root(config.folder)
    name = os.path.relpath(file, os.path.realpath(project))
    return TrustStore(home).trusts_file(project, name, config_digest(config, code))


def _refuse(place: Place, subject: str) -> PermissionDenied:
    return PermissionDenied(
        f"{place} uses {subject}, but the file is not trusted in its current state",
        hint=f"review it, then run: cd {place.file.parent} && bough skills trust",
        details={"file": str(place.file), "line": place.line},
    )


def config_digest(config: ConfigFile, code: ProjectCode | None = None) -> str:
    """Return the hash of a configuration: its files, its prompts, and the code it names. Imports nothing.

    Args:
        code: The code of the project, if it was read already.
    """
    # The order is part of what users have trusted: another one would ask all of them to trust their files again.
    digest = hashlib.sha256()
    for text in (*config.digests.values(), *_digest_prompts(config)):
        digest.update(text.encode())
    modules = list_modules(config.data)
    if not modules:
        return digest.hexdigest()
    code = code or read_code(config.folder, modules)
    digest.update(code.tree.digest.encode())
    for module in sorted(module for module in modules if module.partition(".")[0] not in code.roots):
        for file in _find_installed(module, config.folder):
            digest.update(hashlib.sha256(file.read_bytes()).digest())
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
            yield type(error).__name__  # a file that appears later changes the hash, and is not trusted


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


def list_code_files(project: Path) -> list[str]:
    """Return the files of the code that a project's configuration names, relative to the project root."""
    try:
        config = read_config(project / NAME)
    except InvalidInput:
        return []
    return [entry.path for entry in read_code(config.folder, list_modules(config.data)).tree.entries]


def list_modules(data: Any) -> set[str]:
    """Return the modules that a configuration names as `module:factory`, in all sections that allow code."""
    # Reads raw data, because files are hashed before they are validated.
    config = _mapping(data)
    sections: list[Any] = [config.get("hooks"), list(_mapping(config.get("analyzers")).values())]
    for agent in _mapping(config.get("agents")).values():
        sections += [_mapping(agent).get("tools"), _mapping(agent).get("sub_agents")]
    names = [str(name) for section in sections if isinstance(section, list) for name in cast("list[Any]", section)]
    return {name.partition(":")[0] for name in names if ":" in name}


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def name_tool(tool: Any) -> str:
    """Return the name under which a log records a function or a PydanticAI `Tool`: `module:function`."""
    function = tool if hasattr(tool, "__qualname__") else getattr(tool, "function", tool)
    return f"{function.__module__}:{getattr(function, '__qualname__', '?')}"


def _find_installed(module: str, folder: Path) -> list[Path]:
    """Return the file of an installed module, as a list of at most one, without importing it."""
    parts = module.split(".")
    for root in list_search_path(folder):
        for path in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
            if path.is_file():
                return [path]
    return []
