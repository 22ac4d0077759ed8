"""Finding the files that define skills under a root: folders with a `SKILL.md`, and flat `*.md` files.

A root may be a skill itself. Folders that are skills are not searched further; depth and count are bounded.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bough.skills.find.index import SkillIndex
from bough.skills.model import Diagnostic, Scope, SkillMetadata
from bough.skills.read.parse import HeadReading, read_head

MAX_DEPTH = 5
MAX_FOLDERS = 100_000
T = TypeVar("T")

_SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", "venv", "dist", "build"})
_NO_SKILL = frozenset(
    {"readme.md", "license.md", "changelog.md", "contributing.md", "security.md", "code_of_conduct.md"}
)


@dataclass(frozen=True, slots=True)
class Root:
    """A folder to look for skills in.

    Attributes:
        flat: Whether every `*.md` directly in it is a skill; else only those that begin with frontmatter.
        within: Links out of this folder are not followed; None follows links to folders anywhere, each once.
    """

    path: Path
    scope: Scope = "configured"
    flat: bool = False
    within: Path | None = None


@dataclass(slots=True)
class Found:
    """What a root holds, in order of path, and what was noticed; refused files are among the diagnostics."""

    skills: list[SkillMetadata] = field(default_factory=list[SkillMetadata])
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])


def discover(root: Root, index: SkillIndex | None = None) -> Found:
    """Return the skills under `root`. O(folders); of each file 4 KB are read, none of it when `index` knows it.

    A root that does not exist holds nothing. One unreadable or refused file is a diagnostic and harms no other.
    """
    found = Found()
    source = os.path.abspath(root.path)
    look = read_head if index is None else index.get

    def probe(path: str, home: str) -> HeadReading | None:
        return look(path, home, source, root.scope)

    with _collector_waiting():
        for metadata, diagnostics in walk(root, probe, found.diagnostics):
            if diagnostics:
                found.diagnostics.extend(diagnostics)
            if metadata is not None:
                found.skills.append(metadata)
    return found


@contextmanager
def _collector_waiting() -> Generator[None]:
    """Hold the garbage collector back: all that is made here is kept, and looking it over takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def skill_files(root: Root, notes: list[Diagnostic]) -> Iterator[tuple[str, str]]:
    """Yield (absolute path, name of the place) of every skill's file; `notes` takes what was passed over."""
    return walk(root, lambda path, home: (path, home) if os.path.lexists(path) else None, notes)


def walk(root: Root, probe: Callable[[str, str], T | None], notes: list[Diagnostic]) -> Iterator[T]:
    """Yield what `probe` returns for each file that could define a skill, in order of path.

    Args:
        probe: Called with a file's absolute path and its place's name; None where there is no such file.
        notes: Takes a diagnostic for what was passed over.
    """
    top = os.path.abspath(root.path)
    folders = 0
    seen = {os.path.realpath(top)}
    stack = [(top, 0)]
    while stack:
        folder, depth = stack.pop()
        entries = _scan(folder, notes, missing_is_fine=depth == 0)
        own = "SKILL.md" if "SKILL.md" in entries else "skill.md" if "skill.md" in entries else None
        if own is not None:
            yield from _present(probe(f"{folder}/{own}", os.path.basename(folder)))
            continue
        if depth == 0:
            for path, home in _flat_files(entries, root):
                yield from _present(probe(path, home))
        inner: list[tuple[str, int]] = []
        for name, entry in entries.items():
            is_own = entry.is_dir(follow_symlinks=False)
            if name in _SKIPPED or not (is_own or _is_followed(entry, root, seen, notes)):
                continue
            folders += 1
            if folders > MAX_FOLDERS:
                notes.append(_bound("too-many-folders", top, f"more than {MAX_FOLDERS} folders; the rest is not read"))
                return
            result = probe(f"{folder}/{name}/SKILL.md", name)
            if result is not None:
                yield result
            elif depth + 1 >= MAX_DEPTH:
                notes.append(_bound("too-deep", entry.path, f"more than {MAX_DEPTH} folders deep; not searched"))
            else:
                inner.append((f"{folder}/{name}", depth + 1))
        stack.extend(reversed(inner))


def _present(result: T | None) -> Iterator[T]:
    if result is not None:
        yield result


def _scan(folder: str, notes: list[Diagnostic], *, missing_is_fine: bool) -> dict[str, os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: entry for entry in entries}
            return {name: found[name] for name in sorted(found)}
    except (FileNotFoundError, NotADirectoryError):
        if not missing_is_fine:
            notes.append(Diagnostic("unreadable", "warning", "the folder has gone while it was read", path=folder))
    except OSError as error:
        notes.append(Diagnostic("unreadable", "warning", f"the folder cannot be read: {error.strerror}", path=folder))
    return {}


def _flat_files(entries: dict[str, os.DirEntry[str]], root: Root) -> Iterator[tuple[str, str]]:
    for name, entry in entries.items():
        if not name.endswith(".md") or name.lower() in _NO_SKILL or not entry.is_file():
            continue
        if root.flat or _begins_with_frontmatter(entry.path):
            yield entry.path, name.removesuffix(".md")


def _begins_with_frontmatter(path: str) -> bool:
    try:
        with open(path, "rb") as handle:
            return handle.read(16).lstrip(b"\xef\xbb\xbf\r\n ").startswith(b"---")
    except OSError:
        return False


def _is_followed(entry: os.DirEntry[str], root: Root, seen: set[str], notes: list[Diagnostic]) -> bool:
    if not entry.is_symlink():
        return False
    target = os.path.realpath(entry.path)
    if not os.path.isdir(target) or target in seen:
        return False
    if root.within is not None and not target.startswith(os.path.realpath(root.within) + os.sep):
        notes.append(_bound("link-out", entry.path, "a link out of the project; not followed"))
        return False
    seen.add(target)
    return True


def _bound(code: str, path: str, message: str) -> Diagnostic:
    return Diagnostic(code, "warning", message, path=path)
