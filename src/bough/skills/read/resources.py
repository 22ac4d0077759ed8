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
    """Return the files of a skill's folder except its `SKILL.md`: at most 2,000, 8 folders deep. O(files)."""
    names_by_group: dict[str, list[str]] = {"scripts": [], "references": [], "assets": [], "other": []}
    complete = True
    for count, name in enumerate(walk_files(folder)):
        if count >= MAX_FILES or name is None:
            complete = False
            break
        top_folder = name.split("/", 1)[0] if "/" in name else ""
        names_by_group[top_folder if top_folder in names_by_group else "other"].append(name)
    paths_by_group = {key: tuple(sorted(names)) for key, names in names_by_group.items()}
    return Resources(**paths_by_group, complete=complete)


def walk_files(folder: Path) -> Iterator[str | None]:
    """Yield the relative path of every file in a folder, sorted by folder; None for a folder that is too deep.

    Links to files inside the folder are followed; links to folders are not.
    """
    root = os.path.realpath(folder)
    pending = [("", 0)]
    while pending:
        subfolder, depth = pending.pop()
        for entry in _list_entries(os.path.join(root, subfolder)):
            name = f"{subfolder}/{entry.name}" if subfolder else entry.name
            if entry.is_dir(follow_symlinks=False):
                if depth + 1 >= MAX_DEPTH:
                    yield None
                else:
                    pending.append((name, depth + 1))
            elif not subfolder and is_skill_file(entry.name):
                continue
            elif _is_file_inside(entry, root):
                yield name


def _list_entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if entry.name not in _SKIPPED), key=lambda entry: entry.name)
    except OSError:  # the folder was removed or is unreadable
        return []


def _is_file_inside(entry: os.DirEntry[str], root: str) -> bool:
    """Whether an entry is a file, or a link to a file inside `root`."""
    if not entry.is_symlink():
        return entry.is_file(follow_symlinks=False)
    target = os.path.realpath(entry.path)
    return target.startswith(root + os.sep) and os.path.isfile(target)


def resolve(folder: Path, name: str) -> Path:
    """Return the absolute path of a file of the skill.

    Raises:
        InvalidInput: The path is absolute, or leads out of the folder by `..` or a link.
        NotFound: The skill has no such file; the hint suggests a similar name.
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
    """Return a hint with the one of `names` that is most similar to `name`, or with the first eight of them."""
    similar = get_close_matches(name, names, 1, 0.4)
    similar += [candidate for candidate in names if candidate.endswith("/" + name)]
    if similar:
        return f"did you mean {similar[0]!r}?"
    return f"available: {', '.join(names[:8])}" if names else "none are available"


@dataclass(frozen=True, slots=True)
class ResourcePart:
    """A part of a file.

    Attributes:
        size: Length of the whole file, in bytes.
        next_line: The line after this part, 1-based; None if the part ends the file.
        is_binary: Whether the file is not text; if so, `text` is empty.
    """

    text: str
    size: int
    next_line: int | None = None
    is_binary: bool = False


def read_part(folder: Path, name: str, *, start_line: int = 1, max_bytes: int = 256 << 10) -> ResourcePart:
    """Return the lines of a skill's file from `start_line` on, up to `max_bytes` in total. O(file).

    Raises:
        InvalidInput: The path leads out of the skill.
        NotFound: The skill has no such file.
    """
    path = resolve(folder, name)
    lines: list[bytes] = []
    bytes_left = max_bytes
    line_number = 0
    with path.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        if b"\0" in handle.read(8192):
            return ResourcePart("", size, is_binary=True)
        handle.seek(0)
        # With a limit, because a file without line feeds is a single line.
        while line := handle.readline(max_bytes):
            line_number += 1
            if line_number < start_line:
                continue
            if len(line) > bytes_left:
                return ResourcePart(b"".join(lines).decode("utf-8", "replace"), size, line_number)
            lines.append(line)
            bytes_left -= len(line)
    return ResourcePart(b"".join(lines).decode("utf-8", "replace"), size)


def read_resource(folder: Path, name: str, *, max_bytes: int = 256 << 10) -> bytes:
    """Return the bytes of a skill's file (tier 3).

    Raises:
        InvalidInput: The path leads out of the skill.
        NotFound: The skill has no such file.
        LimitExceeded: The file is longer than `max_bytes`.
    """
    path = resolve(folder, name)
    with path.open("rb") as handle:
        data = handle.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise LimitExceeded(f"{name!r} is longer than {max_bytes} bytes", hint="read it with a script of the skill")
    return data
