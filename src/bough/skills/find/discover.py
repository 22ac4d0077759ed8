"""Finding the files that define skills below a root: folders with a `SKILL.md`, and flat `*.md` files.

A root may itself be a skill, and a skill may contain others. There is no depth limit; the number of names and the time
are bounded, and a bound that is reached is reported.
"""

from __future__ import annotations

import gc
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bough.skills.find.index import SkillIndex
from bough.skills.model import Diagnostic, Scope, SkillMetadata, is_skill_file
from bough.skills.read.parse import HeadReading, read_head

T = TypeVar("T")

_NEVER_ENTERED = frozenset({".git", ".hg", ".svn"})
_RARELY_ENTERED = frozenset({"node_modules", "__pycache__", ".venv", "venv"})
"""Entered only if they are a skill themselves: they contain thousands of generated or vendored folders."""

_PARTS_OF_A_SKILL = frozenset({"scripts", "references", "assets", "evals"})
_NO_SKILL = frozenset(
    {"readme.md", "license.md", "changelog.md", "contributing.md", "security.md", "code_of_conduct.md"}
)


@dataclass(frozen=True, slots=True)
class Root:
    """A folder to search for skills.

    Attributes:
        flat: Whether every `*.md` directly in it is a skill; otherwise only those that start with frontmatter.
        within: Links that leave this folder are not followed; None follows links anywhere, each folder once.
    """

    path: Path
    scope: Scope = "configured"
    flat: bool = False
    within: Path | None = None


@dataclass(slots=True)
class Discovery:
    """The skills of a root, sorted by path, and the diagnostics, which include refused files."""

    skills: list[SkillMetadata] = field(default_factory=list[SkillMetadata])
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])


def discover(root: Root, index: SkillIndex | None = None) -> Discovery:
    """Return the skills below `root`. O(folders); reads 4 KB of each file, or nothing if `index` knows the file.

    A root that does not exist has no skills. An unreadable or refused file gives a diagnostic and affects no other.
    """
    result = Discovery()
    source = os.path.abspath(root.path)
    look = read_head if index is None else index.get

    def probe(path: str, home: str) -> HeadReading | None:
        return look(path, home, source, root.scope)

    with _pause_collector():
        for metadata, diagnostics in walk(root, probe, result.diagnostics):
            if diagnostics:
                result.diagnostics.extend(diagnostics)
            if metadata is not None:
                result.skills.append(metadata)
    return result


@contextmanager
def _pause_collector() -> Generator[None]:
    """Pause the garbage collector: nothing created here becomes garbage, and collecting takes a tenth of the time."""
    # The collector is part of the process: it must run again after an error, and must not start if it was off.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def find_skill_files(
    root: Root, notes: list[Diagnostic], *, bounds: WalkBounds | None = None, everything: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (absolute path, name of its folder) of every skill file; see `walk`."""
    return walk(root, lambda path, home: (path, home), notes, bounds=bounds, everything=everything)


def walk(
    root: Root,
    probe: Callable[[str, str], T | None],
    notes: list[Diagnostic],
    *,
    bounds: WalkBounds | None = None,
    everything: bool = False,
) -> Iterator[T]:
    """Yield what `probe` returns for each file that may define a skill, breadth first, sorted by path.

    If a bound is reached, the deepest folders are skipped, and their number is reported.

    Args:
        probe: Called with a file's absolute path and the name of its folder; returns None if there is no such file.
        notes: Receives a diagnostic for everything that is skipped.
        bounds: When to stop; None: the bounds of discovery.
        everything: Whether to enter hidden folders, the parts of skills and package folders as well.
    """
    limit = bounds or WalkBounds()
    top = os.path.abspath(root.path)
    visited = _identify(top)
    deadline = time.monotonic() + limit.seconds
    waiting: deque[tuple[str, str]] = deque([(top, "")])
    names = 0
    while waiting:
        if names > limit.names or time.monotonic() > deadline:
            first = os.path.relpath(waiting[0][0], top)
            notes.append(describe_bound(names > limit.names, limit, top, first, len(waiting)))
            return
        folder, outer = waiting.popleft()
        entries = _scan(folder, notes, missing_is_fine=folder == top)
        names += len(entries)
        own = _find_skill_file(entries, notes)
        if own is not None:
            path = f"{folder}/{own}"
            notes += _list_place_notes(path, top, outer)
            yield from _skip_none(probe(path, os.path.basename(folder)))
        elif folder == top:
            for path, home in _flat_files(entries, root, notes):
                yield from _skip_none(probe(path, home))
        for name, entry in entries.items():
            if name in _NEVER_ENTERED or not (everything or _is_entered(f"{folder}/{name}", name, own)):
                continue
            if entry.is_dir(follow_symlinks=False) or _is_followed(entry, root, visited, notes):
                waiting.append((f"{folder}/{name}", outer if own is None else folder))


def _identify(folder: str) -> set[tuple[int, int]]:
    """Return device and inode of a folder; empty if it does not exist."""
    try:
        info = os.stat(folder)
    except OSError:
        return set()
    return {(info.st_dev, info.st_ino)}


def _is_entered(path: str, name: str, own: str | None) -> bool:
    """Whether discovery searches a folder of this name."""
    if name.startswith(".") or (own is not None and name in _PARTS_OF_A_SKILL):
        return False
    return name not in _RARELY_ENTERED or _has_skill_file(path)


def _list_place_notes(path: str, top: str, outer: str) -> Iterator[Diagnostic]:
    """Yield notes about a skill's place: inside another skill, or in a hidden folder."""
    if outer:
        yield Diagnostic("skill-in-skill", "info", f"inside the folder of another skill: {outer}", None, "", path)
    if "/." in path[len(top) :]:
        yield Diagnostic("hidden", "info", "in a hidden folder, which discovery skips", None, "", path)


@dataclass(frozen=True, slots=True)
class WalkBounds:
    """How much of a root is searched: a number of file and folder names, and seconds."""

    names: int = 200_000
    seconds: float = 30.0


THOROUGH = WalkBounds(1_000_000, 120.0)
"""For commands about one named folder: `check -r`, `add`, `lock`."""


def describe_bound(by_names: bool, limit: WalkBounds, top: str, first: str, count: int) -> Diagnostic:
    """Return the diagnostic of a walk that a bound ended: how many folders were skipped, and the first of them."""
    reached = f"{limit.names} names" if by_names else f"{limit.seconds:.0f} s"
    code = "bound-files" if by_names else "bound-seconds"
    message = f"search stopped after {reached}; folders skipped: {count}, starting with {first}"
    return Diagnostic(code, "warning", message, None, "pass a folder further down", top)


def _find_skill_file(entries: dict[str, os.DirEntry[str]], notes: list[Diagnostic]) -> str | None:
    """Return the name of the file that makes a folder a skill: `SKILL.md`, else one spelled in another case."""
    names = [name for name in entries if is_skill_file(name)]
    if not names:
        return None
    own = "SKILL.md" if "SKILL.md" in names else names[0]
    for other in names:
        if other != own:
            message = f"{other} is ignored: the folder has {own}"
            note = Diagnostic("duplicate-skill-file", "warning", message, None, "remove one", entries[other].path)
            notes.append(note)
    return own


def _has_skill_file(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(is_skill_file(entry.name) for entry in entries)
    except OSError:
        return False


def _skip_none(result: T | None) -> Iterator[T]:
    if result is not None:
        yield result


def _scan(folder: str, notes: list[Diagnostic], *, missing_is_fine: bool) -> dict[str, os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            # Sorted: of two skills with one name the first wins, and the file system's order is arbitrary.
            entries_by_name = {entry.name: entry for entry in entries}
            return {name: entries_by_name[name] for name in sorted(entries_by_name)}
    except (FileNotFoundError, NotADirectoryError):
        if not missing_is_fine:
            notes.append(Diagnostic("unreadable", "warning", "the folder disappeared during the search", path=folder))
    except OSError as error:
        notes.append(Diagnostic("unreadable", "warning", f"the folder cannot be read: {error.strerror}", path=folder))
    return {}


def _flat_files(entries: dict[str, os.DirEntry[str]], root: Root, notes: list[Diagnostic]) -> Iterator[tuple[str, str]]:
    for name, entry in entries.items():
        if not name.endswith(".md") or name.lower() in _NO_SKILL:
            continue
        try:
            if not entry.is_file():
                continue
        except OSError as error:  # a circular link
            notes.append(Diagnostic("unreadable", "warning", f"cannot be read: {error.strerror}", path=entry.path))
            continue
        if root.flat or _begins_with_frontmatter(entry.path):
            yield entry.path, name.removesuffix(".md")


def _begins_with_frontmatter(path: str) -> bool:
    try:
        with open(path, "rb") as handle:
            return handle.read(16).lstrip(b"\xef\xbb\xbf\r\n ").startswith(b"---")
    except OSError:
        return False


def _is_followed(entry: os.DirEntry[str], root: Root, visited: set[tuple[int, int]], notes: list[Diagnostic]) -> bool:
    """Whether to follow a link to a folder: each folder once, and none outside the project."""
    # Folders are compared by device and inode, since several links may lead to one of them.
    if not entry.is_symlink():
        return False
    try:
        info = os.stat(entry.path)
    except OSError:
        notes.append(Diagnostic("link-dangling", "warning", "a dangling link", None, "remove it", entry.path))
        return False
    if not stat.S_ISDIR(info.st_mode) or (info.st_dev, info.st_ino) in visited:
        return False
    target = os.path.realpath(entry.path)
    if root.within is not None and not target.startswith(os.path.realpath(root.within) + os.sep):
        notes.append(Diagnostic("link-out", "warning", "not followed: the link leaves the project", path=entry.path))
        return False
    if _is_above(target, entry.path) or _is_inside_root(target, root):
        return False
    visited.add((info.st_dev, info.st_ino))
    return True


def _is_above(target: str, path: str) -> bool:
    """Whether a link points to a folder that contains it, which is already being searched."""
    return os.path.realpath(os.path.dirname(path)).startswith(target.rstrip(os.sep) + os.sep)


def _is_inside_root(target: str, root: Root) -> bool:
    """Whether a folder is inside the root and not hidden, so that it is found without the link."""
    top = os.path.realpath(root.path) + os.sep
    return target.startswith(top) and "/." not in target[len(top) - 1 :]
