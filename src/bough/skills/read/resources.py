"""The files in a skill's folder: listing them, and reading one by its relative path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from bough.errors import InvalidInput, LimitExceeded, NotFound
from bough.skills.model import Resources, is_skill_file

MAX_FILES = 2_000
MAX_DEPTH = 8
_SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", ".DS_Store"})


def list_resources(folder: Path) -> Resources:
    """Return the files of a skill's folder except its `SKILL.md`. O(files), at most 2,000, 8 folders deep."""
    groups: dict[str, list[str]] = {"scripts": [], "references": [], "assets": [], "other": []}
    complete = True
    for count, name in enumerate(walk_files(folder)):
        if count >= MAX_FILES or name is None:
            complete = False
            break
        top = name.split("/", 1)[0] if "/" in name else ""
        groups[top if top in groups else "other"].append(name)
    parts = {key: tuple(sorted(names)) for key, names in groups.items()}
    return Resources(**parts, complete=complete)


def walk_files(folder: Path) -> Iterator[str | None]:
    """Yield the relative path of every file in a folder, sorted by folder; None for a folder that is too deep.

    Links to files inside the folder are followed; links to folders are not.
    """
    root = os.path.realpath(folder)
    stack = [("", 0)]
    while stack:
        inside, depth = stack.pop()
        for entry in _entries(os.path.join(root, inside)):
            name = f"{inside}/{entry.name}" if inside else entry.name
            if entry.is_dir(follow_symlinks=False):
                if depth + 1 >= MAX_DEPTH:
                    yield None
                else:
                    stack.append((name, depth + 1))
            elif _is_inside(entry, root) and not (not inside and is_skill_file(entry.name)):
                yield name


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if entry.name not in _SKIPPED), key=lambda entry: entry.name)
    except OSError:  # the folder is gone or unreadable
        return []


def _is_inside(entry: os.DirEntry[str], root: str) -> bool:
    if not entry.is_symlink():
        return entry.is_file(follow_symlinks=False)
    target = os.path.realpath(entry.path)
    return target.startswith(root + os.sep) and os.path.isfile(target)


def resolve(folder: Path, name: str) -> Path:
    """Return the absolute path of a file of the skill.

    Raises:
        InvalidInput: The path is absolute, or leaves the folder by `..` or a link.
        NotFound: There is no such file; the hint names the nearest.
    """
    parts = name.split("/")
    if not name or name.startswith("/") or "\\" in name or "\0" in name or ".." in parts:
        raise InvalidInput(
            f"not a path inside the skill: {name[:100]!r}", hint="pass a relative path, with / and no .."
        )
    root = os.path.realpath(folder)
    # Resolved before the check: a link inside the folder may lead out of it.
    target = os.path.realpath(os.path.join(root, *parts))
    if not target.startswith(root + os.sep):
        raise InvalidInput(f"{name[:100]!r} leaves the skill's folder", hint="pass a file of the skill's own folder")
    if os.path.isfile(target):
        return Path(target)
    raise NotFound(f"the skill has no file {name[:100]!r}", hint=suggest_nearest(name, list_resources(folder).all))


def suggest_nearest(name: str, names: tuple[str, ...]) -> str:
    """Return a hint that names the most similar of `names`, or the first few."""
    close = (
        get_close_matches(name, names, 1, 0.4)
        or [candidate for candidate in names if candidate.endswith("/" + name)][:1]
    )
    if close:
        return f"did you mean {close[0]!r}?"
    return f"available: {', '.join(names[:8])}" if names else "none are available"


@dataclass(frozen=True, slots=True)
class ResourcePart:
    """A part of a file.

    Attributes:
        size: Of the whole file, in bytes.
        next_line: The line at which to continue; None at the end of the file.
        is_binary: Whether the file is not text; then `text` is empty.
    """

    text: str
    size: int
    next_line: int | None = None
    is_binary: bool = False


def read_part(folder: Path, name: str, *, start_line: int = 1, max_bytes: int = 256 << 10) -> ResourcePart:
    """Return the lines of a file of the skill from `start_line` on, at most `max_bytes` of them. O(file).

    Raises:
        InvalidInput: The path is not one inside the skill.
        NotFound: There is no such file.
    """
    path = resolve(folder, name)
    lines: list[bytes] = []
    bytes_left, number = max_bytes, 0
    with path.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        if b"\0" in handle.read(8192):
            return ResourcePart("", size, is_binary=True)
        handle.seek(0)
        # Bounded: a file without line feeds is one line.
        while line := handle.readline(max_bytes):
            number += 1
            if number < start_line:
                continue
            if len(line) > bytes_left:
                text = b"".join(lines or [line[:bytes_left]]).decode("utf-8", "replace")
                return ResourcePart(text, size, number if lines else number + 1)
            lines.append(line)
            bytes_left -= len(line)
    return ResourcePart(b"".join(lines).decode("utf-8", "replace"), size)


def read_resource(folder: Path, name: str, *, max_bytes: int = 256 << 10) -> bytes:
    """Return the bytes of a file of the skill (tier 3).

    Raises:
        InvalidInput: The path is not one inside the skill.
        NotFound: There is no such file.
        LimitExceeded: It is longer than `max_bytes`.
    """
    path = resolve(folder, name)
    with path.open("rb") as handle:
        data = handle.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise LimitExceeded(f"{name!r} is longer than {max_bytes} bytes", hint="read it with a script of the skill")
    return data
