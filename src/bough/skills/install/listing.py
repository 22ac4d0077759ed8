"""The contents of a source before anything is installed: names, kinds and how to read them."""

from __future__ import annotations

import os
import posixpath
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bough.errors import InvalidInput, LimitExceeded
from bough.skills.model import Diagnostic, is_skill_file

MAX_NAMES: Final = 1_000_000
MAX_SECONDS: Final = 20.0
MAX_FILES: Final = 5_000
MAX_BYTES: Final = 100 << 20
_NEVER_ENTERED = frozenset({".git", ".hg", ".svn"})
_MAX_LINKS = 40
_LFS = b"version https://git-lfs.github.com/spec/v1"


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """A name in a source.

    Attributes:
        kind: `file`, `link`, or `other` for entries that are never installed, such as submodules.
        read: Returns a file's bytes.
        target: The link's target, verbatim.
    """

    kind: Literal["file", "link", "other"]
    executable: bool = False
    size: int = 0
    read: Callable[[], bytes] = bytes
    target: str = ""


@dataclass(frozen=True)
class SourceListing:
    """The contents of a source.

    Attributes:
        entries: By path, with forward slashes.
        name: The name of its top folder.
        origin: Recorded as the source in the lock file.
        owner: Its owner; empty if unknown.
        commit: The commit of a git repository; `ref`: the requested ref.
        below: Only skills at or below this folder are requested; empty for all.
    """

    entries: Mapping[str, SourceEntry]
    name: str
    origin: str
    owner: str = ""
    commit: str = ""
    ref: str = ""
    below: str = ""
    notes: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def list_skills(self) -> list[str]:
        """Return the folders that have a `SKILL.md`, at any depth, sorted; the top folder is the empty text."""
        folders = {posixpath.dirname(path) for path in self.entries if is_skill_file(posixpath.basename(path))}
        return sorted(folder for folder in folders if _is_below(folder, self.below))

    def list_files(self, skill: str, skills: list[str]) -> list[str]:
        """Return the paths of a skill's own files, without those of skills inside it."""
        inner = tuple(f"{other}/" for other in skills if other != skill and _is_below(other, skill))
        start = f"{skill}/" if skill else ""
        return sorted(path for path in self.entries if path.startswith(start) and not path.startswith(inner))

    def write_skill(self, skill: str, skills: list[str], target: Path) -> list[Diagnostic]:
        """Write a skill's own files into `target`, and return a diagnostic for each entry that was skipped.

        A link to a file of the same skill stays a link; a link to another file of the source becomes that file.

        Raises:
            InvalidInput: Its `SKILL.md` would be skipped.
            LimitExceeded: It is too large.
        """
        notes: list[Diagnostic] = []
        paths = self.list_files(skill, skills)
        own = set(paths)
        size = 0
        for path in paths:
            entry = self.entries[path]
            inside = path[len(skill) :].lstrip("/")
            real = self.find_target(path) if entry.kind == "link" else path
            if entry.kind == "other" or real is None:
                notes.append(_describe_skipped(entry, inside, path))
                if "/" not in inside and is_skill_file(inside):
                    raise InvalidInput(f"{path} {notes[-1].message}", hint=notes[-1].fix)
                continue
            goal = target / inside
            goal.parent.mkdir(parents=True, exist_ok=True)
            # A link to another file of the source would dangle after the installation, so that file is written instead.
            if entry.kind == "link" and real in own:
                goal.symlink_to(entry.target)
                continue
            source_entry = self.entries[real]
            size += source_entry.size
            if size > MAX_BYTES or len(paths) > MAX_FILES:
                raise LimitExceeded(
                    f"skill {skill or self.name} has more than {MAX_FILES} files or {MAX_BYTES >> 20} MB",
                    hint="leave large data out of skills",
                )
            data = source_entry.read()
            goal.write_bytes(data)
            # Only the executable bit is taken from the source: never setuid, never writable for others.
            goal.chmod(0o755 if source_entry.executable else 0o644)
            if data.startswith(_LFS):
                message = "a Git LFS pointer; the file itself was not fetched"
                notes.append(Diagnostic("lfs-pointer", "warning", message, None, "commit the file itself", path))
        return notes

    def find_target(self, path: str) -> str | None:
        """Return the file that a link finally points to; None if it leaves the source, dangles or is a folder."""
        for _ in range(_MAX_LINKS):
            entry = self.entries.get(path)
            if entry is None or entry.kind == "other":
                return None
            if entry.kind == "file":
                return path
            if entry.target.startswith("/"):
                return None
            # Resolved as text: looking it up would follow links of this machine's file system.
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), entry.target))
            if path.startswith("../") or path == "..":
                return None
        return None


def list_folder(folder: Path) -> SourceListing:
    """Return the contents of a local folder; links are listed, not followed. O(names), bounded.

    Raises:
        LimitExceeded: It has more than a million names, or listing them takes too long.
    """
    entries: dict[str, SourceEntry] = {}
    deadline = time.monotonic() + MAX_SECONDS
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        for name, entry in _scan(folder, inside):
            if entry is None:
                waiting.append(name)
            else:
                entries[name] = entry
        if len(entries) > MAX_NAMES or time.monotonic() > deadline:
            raise LimitExceeded(
                f"{folder} has more than {MAX_NAMES} names, or takes more than {MAX_SECONDS:.0f} s to list",
                hint="pass a folder further down",
            )
    return SourceListing(entries, folder.resolve().name or "skill", str(folder.absolute()))


def _scan(folder: Path, inside: str) -> Iterator[tuple[str, SourceEntry | None]]:
    """Yield the entries of one folder; None for a folder."""
    try:
        children = sorted(os.scandir(folder / inside), key=lambda child: child.name)
    except OSError:
        yield f"{inside}/(unreadable)".lstrip("/"), SourceEntry("other")
        return
    for entry in children:
        name = f"{inside}/{entry.name}" if inside else entry.name
        info = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            if entry.name not in _NEVER_ENTERED:
                yield name, None
        elif stat.S_ISLNK(info.st_mode):
            yield name, SourceEntry("link", target=os.readlink(entry.path))
        elif stat.S_ISREG(info.st_mode):
            executable = bool(info.st_mode & 0o100)
            yield name, SourceEntry("file", executable, info.st_size, _make_reader(entry.path))
        else:
            yield name, SourceEntry("other")


def _make_reader(path: str) -> Callable[[], bytes]:
    def read() -> bytes:
        # The folder may change after it was listed: a link in place of the file is refused, and a pipe does not block.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            return file.read(MAX_BYTES + 1)

    return read


def _is_below(folder: str, above: str) -> bool:
    return not above or folder == above or folder.startswith(above + "/")


def _describe_skipped(entry: SourceEntry, inside: str, path: str) -> Diagnostic:
    if entry.kind == "link":
        message = f"skipped: a link to {entry.target[:120]!r}, which is not a file of the same source"
        return Diagnostic("link-out", "warning", f"{inside}: {message}", None, "replace the link by the file", path)
    message = "skipped: neither a file nor a folder (a submodule?)"
    return Diagnostic("not-a-file", "warning", f"{inside}: {message}", None, "commit the files themselves", path)
