"""The Python code of a project that its configuration names: finding its files, copying them, importing the copy.

Python would import from folders that a script can write: a package beside a module, a module of a name that the code
imports, or bytecode beside unchanged source would run instead of the trusted code. So everything that the code can
import from the project is hashed and copied, and is imported only from the copy, without bytecode.
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
_IMPORTING = threading.Lock()
"""`sys.modules` and `sys.meta_path` belong to the process, and so does the order of changes to them."""


@dataclass(frozen=True)
class ProjectCode:
    """The modules of a project that its configuration's code consists of.

    Attributes:
        tree: Their files without bytecode; paths begin with the folder that Python would search.
        roots: That folder, relative to the project, by top-level name.
    """

    tree: SkillTree
    roots: Mapping[str, str]


def read_code(folder: Path, modules: Iterable[str], *, copy_to: Path | None = None) -> ProjectCode:
    """Return the named modules and, recursively, the modules of the project that they import. Runs nothing.

    Args:
        folder: The configuration's folder. It is searched, then its `src`, then folders of `sys.path` in the project.
        copy_to: An empty folder to which each file is copied while it is hashed.
    """
    project = Path(os.path.realpath(project_root(folder)))
    searched = [os.path.relpath(root, project) for root in _list_roots(folder, project)]
    waiting = sorted({module.partition(".")[0] for module in modules})
    roots: dict[str, str] = {}
    entries: list[SkillEntry] = []
    faults: list[Diagnostic] = []
    while waiting:
        name = waiting.pop()
        # The standard library has precedence over the project, as in `SnapshotFinder`.
        unit = None if name in roots or name in sys.stdlib_module_names else _find_unit(project, searched, name)
        if unit is None:
            continue
        roots[name], path = unit
        copy = None if copy_to is None else copy_to / roots[name]
        tree = _read_unit(project / roots[name] / path, copy)
        prefix = os.path.normpath(os.path.join(roots[name], path if (project / roots[name] / path).is_dir() else ""))
        inside = [entry for entry in tree.entries if not entry.is_bytecode]
        entries += [replace(entry, path=os.path.normpath(os.path.join(prefix, entry.path))) for entry in inside]
        faults += tree.faults
        # Imports are read from the copy: the project's file may have changed since it was hashed.
        source = project if copy_to is None else copy_to
        waiting += sorted(
            {name for entry in entries[len(entries) - len(inside) :] for name in _list_imports(source / entry.path)}
        )
    ordered = sorted(entries, key=lambda entry: os.fsencode(entry.path))
    return ProjectCode(SkillTree(tuple(ordered), tuple(faults)), roots)


def list_search_path(folder: Path) -> list[Path]:
    """Return the folders of `sys.path` that are not searched as part of the project."""
    project = Path(os.path.realpath(project_root(folder)))
    inside = _list_roots(folder, project)
    return [path for path in map(Path, sys.path) if Path(os.path.realpath(path)) not in inside]


def _list_roots(folder: Path, project: Path) -> list[Path]:
    """Return the folders of the project in which modules are searched for, in order, without links."""
    installed = tuple(os.path.realpath(path) for path in {sys.prefix, *sysconfig.get_paths().values()})
    roots = {Path(os.path.realpath(folder)): None, Path(os.path.realpath(folder / "src")): None}
    for entry in sys.path:
        path = Path(os.path.realpath(entry))
        if path.is_relative_to(project) and not any(path.is_relative_to(place) for place in installed):
            roots[path] = None
    return [path for path in roots if path.is_relative_to(project)]


def _find_unit(project: Path, searched: Sequence[str], name: str) -> tuple[str, str] | None:
    """Return root and path of a top-level package or module, as Python would find it; None if it does not exist."""
    # As in Python's import system, a namespace package is used only if no later folder has a package or a module.
    namespace = None
    for root in searched:
        place = project / root
        if (place / name / "__init__.py").is_file():
            return root, name
        for suffix in (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES):
            if (place / f"{name}{suffix}").is_file():
                return root, f"{name}{suffix}"
        if namespace is None and (place / name).is_dir():
            namespace = root, name
    return namespace


def _read_unit(path: Path, copy: Path | None) -> SkillTree:
    if not path.is_dir():
        if copy is not None:
            copy.mkdir(parents=True, exist_ok=True)
        return read_file_tree(path, copy_to=copy)
    target = None if copy is None else copy / path.name
    if target is not None:
        target.mkdir(parents=True)
    return read_tree(path, copy_to=target)


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
        return  # Python will not import it either
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


class SnapshotFinder(MetaPathFinder):
    """Imports modules from a copy of a project's code.

    Args:
        tree: The copy.
        roots: The folder in it that has a top-level name, by name.
    """

    def __init__(self, tree: Path, roots: Mapping[str, str]) -> None:
        self._tree = tree
        self._roots = roots

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module in the copy; None for other modules."""
        if path is None and fullname in sys.stdlib_module_names:
            # The project may precede the standard library in `sys.path`: a script could add a module such as `json.py`.
            return PathFinder.find_spec(fullname, _list_stdlib(), target)
        if path is None:
            places = [str(self._tree / self._roots[fullname])] if fullname in self._roots else []
        else:
            places = [place for place in path if self._has(place)]
        for place in places:
            finder = FileFinder(place, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_UncachedLoader, SOURCE_SUFFIXES))
            if spec := finder.find_spec(fullname, target):
                return spec
        return None

    def install(self) -> None:
        """Let this process import from the copy, and forget modules of the same names from other copies."""
        with _IMPORTING:
            # A module of the same name from another copy would otherwise be returned from `sys.modules`.
            others = [
                finder for finder in sys.meta_path if isinstance(finder, SnapshotFinder) and finder._tree != self._tree
            ]
            for name, module in list(sys.modules.items()):
                top = sys.modules.get(name.partition(".")[0], module)
                if name.partition(".")[0] in self._roots and any(other._owns(top) for other in others):
                    del sys.modules[name]
            finders = [finder for finder in sys.meta_path if not isinstance(finder, SnapshotFinder)]
            # Before Python's own finders, which would import from the project's folder.
            sys.meta_path[:] = [self, *others, *finders]

    def _owns(self, module: ModuleType) -> bool:
        spec = getattr(module, "__spec__", None)
        places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
        return any(self._has(place) for place in places)

    def _has(self, path: str) -> bool:
        return path == str(self._tree) or path.startswith(f"{self._tree}{os.sep}")


class _UncachedLoader(SourceFileLoader):
    """Compiles the source, and neither reads nor writes bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)
