"""Finding the files that define skills below a root: folders with a `SKILL.md`, and flat `*.md` files.

A root may itself be a skill, and a skill may contain other skills. The depth is unlimited. The number of names and the
time are limited; a diagnostic says when a limit is reached.
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

_NEVER_SEARCHED = frozenset({".git", ".hg", ".svn"})
_RARELY_SEARCHED = frozenset({"node_modules", "__pycache__", ".venv", "venv"})
"""Searched only if they are a skill themselves, because they contain thousands of generated or vendored folders."""

_SKILL_SUBFOLDERS = frozenset({"scripts", "references", "assets", "evals"})
_DOCUMENT_NAMES = frozenset(
    {"readme.md", "license.md", "changelog.md", "contributing.md", "security.md", "code_of_conduct.md"}
)


@dataclass(frozen=True, slots=True)
class Root:
    """A folder to search for skills.

    Attributes:
        flat: Whether every `*.md` file at its top is a skill; otherwise, only files that start with frontmatter are.
        within: The folder that links may not leave; None: links are followed anywhere, to each folder once.
    """

    path: Path
    scope: Scope = "configured"
    flat: bool = False
    within: Path | None = None


@dataclass(slots=True)
class Discovery:
    """The skills of a root, sorted by path, and diagnostics, including those of refused files."""

    skills: list[SkillMetadata] = field(default_factory=list[SkillMetadata])
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])


def discover(root: Root, index: SkillIndex | None = None) -> Discovery:
    """Return the skills below `root`. O(folders); reads 4 KB of each file, or nothing if `index` contains the file.

    A root that does not exist has no skills. An unreadable or refused file gives a diagnostic and affects no other.
    """
    result = Discovery()
    source = os.path.abspath(root.path)
    read_metadata = read_head if index is None else index.get

    def read_file(path: str, folder_name: str) -> HeadReading | None:
        return read_metadata(path, folder_name, source, root.scope)

    with _pause_collector():
        for metadata, diagnostics in walk(root, read_file, result.diagnostics):
            if diagnostics:
                result.diagnostics.extend(diagnostics)
            if metadata is not None:
                result.skills.append(metadata)
    return result


@contextmanager
def _pause_collector() -> Generator[None]:
    """Pause the garbage collector: discovery creates no cyclic garbage, and the collector takes a tenth of its time."""
    # The collector belongs to the process: it must run again after an error, and must stay off if it was off.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def find_skill_files(
    root: Root, notes: list[Diagnostic], *, limits: WalkLimits | None = None, thorough: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (absolute path, name of the folder) of every skill file; see `walk` for the arguments."""
    return walk(root, lambda path, folder_name: (path, folder_name), notes, limits=limits, thorough=thorough)


def walk(
    root: Root,
    read_file: Callable[[str, str], T | None],
    notes: list[Diagnostic],
    *,
    limits: WalkLimits | None = None,
    thorough: bool = False,
) -> Iterator[T]:
    """Yield what `read_file` returns for each file that may define a skill, breadth first, sorted by path.

    If a limit is reached, the remaining folders, which are the deepest, are skipped; a diagnostic gives their number.

    Args:
        read_file: Called with a file's absolute path and the name of its folder; returns None if the file is missing.
        notes: Receives a diagnostic for everything that is skipped.
        limits: When to stop; None: the limits of discovery.
        thorough: Whether to also search hidden folders, subfolders of skills such as `scripts`, and package folders.
    """
    used_limits = limits or WalkLimits()
    top = os.path.abspath(root.path)
    visited = _make_visited_set(top)
    deadline = time.monotonic() + used_limits.seconds
    pending: deque[tuple[str, str]] = deque([(top, "")])
    name_count = 0
    while pending:
        if name_count > used_limits.names or time.monotonic() > deadline:
            first_folder = os.path.relpath(pending[0][0], top)
            notes.append(describe_limit(name_count > used_limits.names, used_limits, top, first_folder, len(pending)))
            return
        current_folder, outer_skill = pending.popleft()
        entries = _scan_folder(current_folder, notes, missing_is_fine=current_folder == top)
        name_count += len(entries)
        skill_file = _find_skill_file(entries, notes)
        if skill_file is not None:
            path = f"{current_folder}/{skill_file}"
            notes += _list_location_notes(path, top, outer_skill)
            yield from _skip_none(read_file(path, os.path.basename(current_folder)))
        elif current_folder == top:
            for path, folder_name in _list_flat_files(entries, root, notes):
                yield from _skip_none(read_file(path, folder_name))
        for name, entry in entries.items():
            if name in _NEVER_SEARCHED or not (thorough or _is_searched(f"{current_folder}/{name}", name, skill_file)):
                continue
            if entry.is_dir(follow_symlinks=False) or _may_follow(entry, root, visited, notes):
                pending.append((f"{current_folder}/{name}", outer_skill if skill_file is None else current_folder))


def _make_visited_set(folder: str) -> set[tuple[int, int]]:
    """Return the set of visited folders at the start: device and inode of the top folder, if it exists."""
    try:
        info = os.stat(folder)
    except OSError:
        return set()
    return {(info.st_dev, info.st_ino)}


def _is_searched(path: str, name: str, skill_file: str | None) -> bool:
    """Whether discovery searches a folder of this name."""
    if name.startswith(".") or (skill_file is not None and name in _SKILL_SUBFOLDERS):
        return False
    return name not in _RARELY_SEARCHED or _has_skill_file(path)


def _list_location_notes(path: str, top: str, outer_skill: str) -> Iterator[Diagnostic]:
    """Yield a note if a skill is inside another skill, and one if it is in a hidden folder."""
    if outer_skill:
        yield Diagnostic("skill-in-skill", "info", f"inside the folder of another skill: {outer_skill}", None, "", path)
    if "/." in path[len(top) :]:
        yield Diagnostic("hidden", "info", "in a hidden folder, which discovery skips", None, "", path)


@dataclass(frozen=True, slots=True)
class WalkLimits:
    """When a search stops: after a number of file and folder names, or of seconds."""

    names: int = 200_000
    seconds: float = 30.0


THOROUGH = WalkLimits(1_000_000, 120.0)
"""For commands on a folder that the user named: `check -r`, `add`, `lock`."""


def describe_limit(
    is_name_limit: bool, limits: WalkLimits, top: str, first_folder: str, folder_count: int
) -> Diagnostic:
    """Return the diagnostic of a walk that reached a limit: how many folders were skipped, and the first one."""
    reached = f"{limits.names} names" if is_name_limit else f"{limits.seconds:.0f} s"
    code = "bound-files" if is_name_limit else "bound-seconds"
    message = f"search stopped after {reached}; folders skipped: {folder_count}, starting with {first_folder}"
    return Diagnostic(code, "warning", message, None, "pass a folder further down", top)


def _find_skill_file(entries: dict[str, os.DirEntry[str]], notes: list[Diagnostic]) -> str | None:
    """Return the name of the file that makes a folder a skill: `SKILL.md`, else a spelling in another case."""
    names = [name for name in entries if is_skill_file(name)]
    if not names:
        return None
    skill_file = "SKILL.md" if "SKILL.md" in names else names[0]
    for name in names:
        if name != skill_file:
            message = f"{name} is ignored: the folder has {skill_file}"
            note = Diagnostic("duplicate-skill-file", "warning", message, None, "remove one", entries[name].path)
            notes.append(note)
    return skill_file


def _has_skill_file(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(is_skill_file(entry.name) for entry in entries)
    except OSError:
        return False


def _skip_none(result: T | None) -> Iterator[T]:
    if result is not None:
        yield result


def _scan_folder(folder: str, notes: list[Diagnostic], *, missing_is_fine: bool) -> dict[str, os.DirEntry[str]]:
    """Return the entries of a folder by name, sorted; empty, with a diagnostic, if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            # Sorted: the first of two skills with the same name is used, and the file system's order is arbitrary.
            entries_by_name = {entry.name: entry for entry in entries}
            return {name: entries_by_name[name] for name in sorted(entries_by_name)}
    except (FileNotFoundError, NotADirectoryError):
        if not missing_is_fine:
            notes.append(Diagnostic("unreadable", "warning", "the folder disappeared during the search", path=folder))
    except OSError as error:
        notes.append(Diagnostic("unreadable", "warning", f"the folder cannot be read: {error.strerror}", path=folder))
    return {}


def _list_flat_files(
    entries: dict[str, os.DirEntry[str]], root: Root, notes: list[Diagnostic]
) -> Iterator[tuple[str, str]]:
    """Yield (path, name without extension) of every flat file that is a skill."""
    for name, entry in entries.items():
        if not name.endswith(".md") or name.lower() in _DOCUMENT_NAMES:
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


def _may_follow(entry: os.DirEntry[str], root: Root, visited: set[tuple[int, int]], notes: list[Diagnostic]) -> bool:
    """Whether to follow a link: only to a folder inside the project that is not in `visited`, to which it is added."""
    # Folders are compared by device and inode, because several links may lead to the same folder.
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
    """Whether a link leads to a folder that contains the link; that folder is already being searched."""
    return os.path.realpath(os.path.dirname(path)).startswith(target.rstrip(os.sep) + os.sep)


def _is_inside_root(target: str, root: Root) -> bool:
    """Whether a folder is inside the root and not hidden, so that the walk finds it without the link."""
    top = os.path.realpath(root.path) + os.sep
    return target.startswith(top) and "/." not in target[len(top) - 1 :]
