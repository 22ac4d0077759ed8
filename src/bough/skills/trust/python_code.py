"""The Python modules that a project's configuration names: finding their files, copying them, importing the copies.

A script can write to the folders from which Python imports. It could add a package beside a module of the same name, a
module with the name of an import, or bytecode beside unchanged source, and Python would run these instead of the
trusted code. So everything that the code can import from the project is hashed, copied, and imported only from the
copy, without bytecode.
"""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType, ModuleType

from bough.skills.find.places import project_root
from bough.skills.model import Diagnostic
from bough.skills.trust.tree import SkillEntry, SkillTree, read_file_tree, read_tree

_MAX_SOURCE_BYTES = 4 << 20
_IMPORT_LOCK = threading.Lock()
"""Held while `sys.modules` and `sys.meta_path` are changed, which all threads of the process share."""


@dataclass(frozen=True)
class ProjectCode:
    """The modules of a project that its configuration imports, directly or indirectly.

    Attributes:
        tree: The files of the modules, without bytecode; their paths are relative to the project.
        roots: The folder in which Python finds each top-level module, relative to the project, by module name.
    """

    tree: SkillTree
    roots: Mapping[str, str]


def read_code(folder: Path, modules: Iterable[str], *, copy_to: Path | None = None) -> ProjectCode:
    """Return the named modules and all modules of the project that they import, also indirectly. Runs nothing.

    Args:
        folder: The configuration's folder. It is searched first, then its `src`, then project folders in `sys.path`.
        copy_to: An empty folder to which each file is copied while it is hashed.
    """
    project = Path(os.path.realpath(project_root(folder)))
    search_roots = [os.path.relpath(root, project) for root in _list_roots(folder, project)]
    pending = sorted({module.partition(".")[0] for module in modules})
    roots: dict[str, str] = {}
    entries: list[SkillEntry] = []
    faults: list[Diagnostic] = []
    while pending:
        name = pending.pop()
        # The standard library takes precedence over the project, as in `SnapshotFinder`.
        if name in roots or name in sys.stdlib_module_names:
            continue
        location = _find_module(project, search_roots, name)
        if location is None:
            continue
        root, path = location
        roots[name] = root
        module = project / root / path
        tree = _read_module(module, None if copy_to is None else copy_to / root)
        # The tree of a package is relative to the package, the tree of a single module to the root.
        prefix = os.path.join(root, path) if module.is_dir() else root
        new_entries = [
            replace(entry, path=os.path.normpath(os.path.join(prefix, entry.path)))
            for entry in tree.entries
            if not entry.is_bytecode
        ]
        entries += new_entries
        faults += tree.faults
        # Imports are read from the copy: the project's file may have changed since it was hashed.
        source = project if copy_to is None else copy_to
        pending += sorted({imported for entry in new_entries for imported in _list_imports(source / entry.path)})
    ordered = sorted(entries, key=lambda entry: os.fsencode(entry.path))
    return ProjectCode(SkillTree(tuple(ordered), tuple(faults)), roots)


def list_search_path(folder: Path) -> list[Path]:
    """Return the folders of `sys.path` outside the project, and those of installed packages inside it."""
    project = Path(os.path.realpath(project_root(folder)))
    project_roots = _list_roots(folder, project)
    return [path for path in map(Path, sys.path) if Path(os.path.realpath(path)) not in project_roots]


def _list_roots(folder: Path, project: Path) -> list[Path]:
    """Return the folders of the project that are searched for modules, in order, with links resolved."""
    installed_folders = tuple(os.path.realpath(path) for path in {sys.prefix, *sysconfig.get_paths().values()})
    roots = {Path(os.path.realpath(folder)): None, Path(os.path.realpath(folder / "src")): None}
    for entry in sys.path:
        path = Path(os.path.realpath(entry))
        if path.is_relative_to(project) and not any(path.is_relative_to(other) for other in installed_folders):
            roots[path] = None
    return [path for path in roots if path.is_relative_to(project)]


def _find_module(project: Path, search_roots: Sequence[str], name: str) -> tuple[str, str] | None:
    """Return (root, path) of a top-level package or module, as Python would find it; None if it does not exist."""
    # As in Python's import system, a namespace package is used only if no later folder has a package or a module.
    namespace = None
    for root in search_roots:
        folder = project / root
        if (folder / name / "__init__.py").is_file():
            return root, name
        for suffix in (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES):
            if (folder / f"{name}{suffix}").is_file():
                return root, f"{name}{suffix}"
        if namespace is None and (folder / name).is_dir():
            namespace = root, name
    return namespace


def _read_module(path: Path, copy_root: Path | None) -> SkillTree:
    """Return the tree of a package or a single module; copy it into `copy_root` unless that is None."""
    if not path.is_dir():
        if copy_root is not None:
            copy_root.mkdir(parents=True, exist_ok=True)
        return read_file_tree(path, copy_to=copy_root)
    package_copy = None if copy_root is None else copy_root / path.name
    if package_copy is not None:
        package_copy.mkdir(parents=True)
    return read_tree(path, copy_to=package_copy)


def _list_stdlib() -> list[str]:
    paths = sysconfig.get_paths()
    return [paths["stdlib"], paths["platstdlib"], os.path.join(paths["platstdlib"], "lib-dynload")]


def _list_imports(file: Path) -> Iterator[str]:
    """Yield the top-level names that a source file imports; nothing for other kinds of files."""
    if file.suffix != ".py":
        return
    try:
        with file.open("rb") as handle:
            nodes = ast.walk(ast.parse(handle.read(_MAX_SOURCE_BYTES)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # Python cannot import it either
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


class SnapshotFinder(MetaPathFinder):
    """Imports modules from a copy of a project's code.

    Args:
        tree: The folder of the copy.
        roots: The folder of each top-level module, relative to `tree`, by module name.
    """

    def __init__(self, tree: Path, roots: Mapping[str, str]) -> None:
        self._tree = tree
        self._roots = roots

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module in the copy; None for other modules."""
        if path is None and fullname in sys.stdlib_module_names:
            # The project may precede the standard library in `sys.path`, so a script could add a module like `json.py`.
            return PathFinder.find_spec(fullname, _list_stdlib(), target)
        if path is None:
            search_folders = [str(self._tree / self._roots[fullname])] if fullname in self._roots else []
        else:
            search_folders = [search_folder for search_folder in path if self._contains(search_folder)]
        for search_folder in search_folders:
            finder = FileFinder(
                search_folder, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_UncachedLoader, SOURCE_SUFFIXES)
            )
            if spec := finder.find_spec(fullname, target):
                return spec
        return None

    def install(self) -> None:
        """Add this finder to `sys.meta_path`, and remove modules of the same names that came from other copies."""
        with _IMPORT_LOCK:
            # Otherwise `sys.modules` would still return the module of another copy.
            other_finders = [
                finder for finder in sys.meta_path if isinstance(finder, SnapshotFinder) and finder._tree != self._tree
            ]
            for name, module in list(sys.modules.items()):
                top_name = name.partition(".")[0]
                top_module = sys.modules.get(top_name, module)
                if top_name in self._roots and any(finder._has_imported(top_module) for finder in other_finders):
                    del sys.modules[name]
            python_finders = [finder for finder in sys.meta_path if not isinstance(finder, SnapshotFinder)]
            # Before Python's own finders, because those would import from the project's folder.
            sys.meta_path[:] = [self, *other_finders, *python_finders]

    def _has_imported(self, module: ModuleType) -> bool:
        """Whether a module was imported from this copy."""
        spec = getattr(module, "__spec__", None)
        origins = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
        return any(self._contains(origin) for origin in origins)

    def _contains(self, path: str) -> bool:
        return path == str(self._tree) or path.startswith(f"{self._tree}{os.sep}")


class _UncachedLoader(SourceFileLoader):
    """Compiles the source, and neither reads nor writes bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)
