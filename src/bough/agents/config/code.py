"""Check that the code that a configuration names (`module:factory`) is trusted, and load it from a copy.

The configuration of a repository is not trusted by default. Its code is imported only if the user has trusted the
file, the files that it extends and the modules that it names, all in their current state. The file in bough's
own folder is always trusted.
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
    """Checks whether a configuration may do what it asks for, and loads the code that it names.

    Args:
        home: bough's own folder, which contains the copies of code.
        config: The configuration. Its code is imported only by `load` and `call`.
    """

    def __init__(self, home: Path, config: ConfigFile) -> None:
        self._home = home
        self._config = config
        self._loaded: set[Path | None] = set()

    def require_named(self, place: Place, subject: str) -> None:
        """Check that the file of `place` may start programs, read the environment, use addresses and set rules.

        Raises:
            PermissionDenied: The file was neither passed explicitly nor trusted in its current state.
        """
        if place.trust < Trust.NAMED:
            raise _make_refusal(place, subject)

    def require(self, place: Place, subject: str) -> None:
        """Check that the file of `place` may name code.

        Raises:
            PermissionDenied: The file is not trusted in its current state.
        """
        if place.trust < Trust.TRUSTED:
            raise _make_refusal(place, subject)

    def load(self, name: str, place: Place) -> Any:
        """Import and return `module:factory`, from a copy of the project's code or from an installed package.

        Raises:
            InvalidInput: The object cannot be imported.
            PermissionDenied: The file of `place` and its code are not trusted in their current state.
        """
        self.require(place, f"the code {name!r}")
        module, _, attribute = name.partition(":")
        layer = next((candidate for candidate in self._config.layers if place.file in candidate.digests), self._config)
        if layer.path not in self._loaded:
            # Before the import, so that the project's modules are imported from the copy that was checked.
            self._copy(layer, place, name)
            self._loaded.add(layer.path)
        try:
            imported: Any = import_module(module)
            return getattr(imported, attribute)
        except (ImportError, AttributeError, SyntaxError) as error:
            raise InvalidInput(f"{place}: cannot import {name}: {error}", hint="check module and name") from error

    def call(self, name: str, place: Place) -> Any:
        """Return the result of the factory `module:factory`, or the object itself if it is not callable.

        Raises:
            InvalidInput: The object cannot be imported, or the factory fails.
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
        """Copy the code that a file names, check that the copy is trusted, and make later imports use the copy."""
        roots: dict[str, str] = {}

        def copy(folder: Path) -> SkillTree:
            code = read_code(layer.folder, list_modules(layer.data), copy_to=folder)
            roots.update(code.roots)
            # The copy is hashed, not the project, because the project's code could change after this check.
            if not is_own(layer, self._home) and not is_trusted(layer, self._home, code):
                raise _make_refusal(place, f"the code {name!r}")
            if faults := code.tree.faults:
                message = f"{place}: the code of {name!r} cannot be copied: {faults[0].message}"
                raise InvalidInput(message, hint=faults[0].fix)
            return code.tree

        snapshot = SnapshotStore(self._home / "snapshots").add(layer.folder, copy)
        if roots:
            SnapshotFinder(snapshot.folder, roots).install()


def is_own(config: ConfigFile, home: Path) -> bool:
    """Return whether a configuration is in bough's own folder."""
    return config.folder.is_relative_to(os.path.realpath(home))


def is_trusted(config: ConfigFile, home: Path, code: ProjectCode | None = None) -> bool:
    """Return whether the user trusted a configuration and its code in their current state. O(bytes of its code).

    Args:
        code: The code, if it has already been read.
    """
    file = config.folder / Path(os.path.realpath(config.path or NAME)).name
    project = project_root(config.folder)
    name = os.path.relpath(file, os.path.realpath(project))
    return TrustStore(home).trusts_file(project, name, compute_config_digest(config, code))


def _make_refusal(place: Place, subject: str) -> PermissionDenied:
    return PermissionDenied(
        f"{place} uses {subject}, but the file is not trusted in its current state",
        hint=f"review it, then run: cd {place.file.parent} && bough skills trust",
        details={"file": str(place.file), "line": place.line},
    )


def compute_config_digest(config: ConfigFile, code: ProjectCode | None = None) -> str:
    """Return the hash of a configuration: of its files, its prompts and the code that it names. Imports nothing.

    Args:
        code: The code of the project, if it has already been read.
    """
    # The order must not change: every user would have to trust every configuration again.
    digest = hashlib.sha256()
    for text in (*config.digests.values(), *_digest_prompts(config)):
        digest.update(text.encode())
    modules = list_modules(config.data)
    if not modules:
        return digest.hexdigest()
    code = code or read_code(config.folder, modules)
    digest.update(code.tree.digest.encode())
    for module in sorted(module for module in modules if module.partition(".")[0] not in code.roots):
        file = _find_installed(module, config.folder)
        if file is not None:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _digest_prompts(config: ConfigFile) -> Iterator[str]:
    """Yield the hash of each prompt below the configuration's folder that an agent names."""
    agents = _as_mapping(config.data.get("agents"))
    for name in sorted(agents):
        path: Any = _as_mapping(agents[name]).get("system_prompt_path")
        if not isinstance(path, str):
            continue
        folder = config.place(("agents", name, "system_prompt_path")).file.parent
        try:
            relative_path = os.path.relpath(os.path.realpath(folder / path), folder)
            yield hashlib.sha256(read_beneath(folder, relative_path).encode()).hexdigest()
        except (OSError, ValueError) as error:
            yield type(error).__name__  # so that a file created later changes the hash, and is not trusted


def digest_project_configs(project: Path) -> dict[str, str]:
    """Return the path of a project's configuration below the project root and its hash; empty if it has none."""
    file = project / NAME
    if not file.is_file():
        return {}
    try:
        config = read_config(file)
    except InvalidInput:
        return {}  # the mistake is reported when the configuration is used
    root = os.path.realpath(project_root(project))
    return {os.path.relpath(os.path.realpath(file), root): compute_config_digest(config)}


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
    config = _as_mapping(data)
    sections: list[Any] = [config.get("hooks"), list(_as_mapping(config.get("analyzers")).values())]
    for agent in _as_mapping(config.get("agents")).values():
        sections += [_as_mapping(agent).get("tools"), _as_mapping(agent).get("sub_agents")]
    names = [str(name) for section in sections if isinstance(section, list) for name in cast("list[Any]", section)]
    return {name.partition(":")[0] for name in names if ":" in name}


def _as_mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def name_tool(tool: Any) -> str:
    """Return the name `module:function` that the log records for a function or a PydanticAI `Tool`."""
    function = tool if hasattr(tool, "__qualname__") else getattr(tool, "function", tool)
    return f"{function.__module__}:{getattr(function, '__qualname__', '?')}"


def _find_installed(module: str, folder: Path) -> Path | None:
    """Return the file of an installed module, without importing it; None if it is not installed."""
    parts = module.split(".")
    for root in list_search_path(folder):
        for path in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
            if path.is_file():
                return path
    return None
