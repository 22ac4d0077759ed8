"""What a source holds before anything of it is taken: names, kinds and how to read them."""

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
        kind: `file`, `link`, or `other` for what is never taken, such as a submodule.
        read: Returns a file's bytes.
        target: Of a link, as it is written.
    """

    kind: Literal["file", "link", "other"]
    executable: bool = False
    size: int = 0
    read: Callable[[], bytes] = bytes
    target: str = ""


@dataclass(frozen=True)
class SourceListing:
    """Everything in a source.

    Attributes:
        entries: By path, with forward slashes.
        name: What its topmost folder is called.
        origin: What is written down as the source.
        owner: Who it belongs to; empty where nobody says.
        commit: Of a git repository; `ref`: what was asked for.
        below: Only skills at or below this folder were asked for; empty for all.
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
        """Return the folders that have a `SKILL.md`, at any depth, sorted; empty text for the topmost folder."""
        found = {posixpath.dirname(path) for path in self.entries if is_skill_file(posixpath.basename(path))}
        return sorted(folder for folder in found if _is_below(folder, self.below))

    def list_files(self, skill: str, skills: list[str]) -> list[str]:
        """Return the paths of a skill's own files: not those of skills inside it."""
        inner = tuple(f"{each}/" for each in skills if each != skill and _is_below(each, skill))
        start = f"{skill}/" if skill else ""
        return sorted(path for path in self.entries if path.startswith(start) and not path.startswith(inner or ("\0",)))

    def write_skill(self, skill: str, skills: list[str], target: Path) -> list[Diagnostic]:
        """Write a skill's own files into `target`, and return what of it was left out and why.

        A link to a file of the same skill stays one; to a file of the same source, it becomes that file.

        Raises:
            InvalidInput: Its instructions are among what is left out.
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
                notes.append(_describe_left_out(entry, inside, path))
                if "/" not in inside and is_skill_file(inside):
                    raise InvalidInput(f"{path} {notes[-1].message}", hint=notes[-1].fix)
                continue
            goal = target / inside
            goal.parent.mkdir(parents=True, exist_ok=True)
            if entry.kind == "link" and real in own:
                goal.symlink_to(entry.target)
                continue
            taken = self.entries[real]
            size += taken.size
            if size > MAX_BYTES or len(paths) > MAX_FILES:
                raise LimitExceeded(
                    f"the skill {skill or self.name} has more than {MAX_FILES} files or {MAX_BYTES >> 20} MB",
                    hint="a skill holds know-how, not data",
                )
            data = taken.read()
            goal.write_bytes(data)
            goal.chmod(0o755 if taken.executable else 0o644)
            if data.startswith(_LFS):
                message = "is a pointer of Git LFS; the file itself was not fetched"
                notes.append(Diagnostic("lfs-pointer", "warning", message, None, "ship the file itself", path))
        return notes

    def find_target(self, path: str) -> str | None:
        """Return the file that a link leads to in the end; None where it leads out, to a folder, or to nothing."""
        for _ in range(_MAX_LINKS):
            entry = self.entries.get(path)
            if entry is None or entry.kind == "other":
                return None
            if entry.kind == "file":
                return path
            if entry.target.startswith("/"):
                return None
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), entry.target))
            if path.startswith("../") or path == "..":
                return None
        return None


def list_folder(folder: Path) -> SourceListing:
    """Return what a folder of this machine holds; links are listed and not followed. O(names), bounded.

    Raises:
        LimitExceeded: It holds more than a million names, or listing them takes too long.
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
                f"{folder} has more than {MAX_NAMES} names, or listing them takes more than {MAX_SECONDS:.0f} s",
                hint="name a folder further down",
            )
    return SourceListing(entries, folder.resolve().name or "skill", str(folder.absolute()))


def _scan(folder: Path, inside: str) -> Iterator[tuple[str, SourceEntry | None]]:
    """Yield the entries of one folder; None for a folder."""
    try:
        found = sorted(os.scandir(folder / inside), key=lambda each: each.name)
    except OSError:
        yield f"{inside}/(unreadable)".lstrip("/"), SourceEntry("other")
        return
    for entry in found:
        name = f"{inside}/{entry.name}" if inside else entry.name
        info = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            if entry.name not in _NEVER_ENTERED:
                yield name, None
        elif stat.S_ISLNK(info.st_mode):
            yield name, SourceEntry("link", target=os.readlink(entry.path))
        elif stat.S_ISREG(info.st_mode):
            executable = bool(info.st_mode & 0o100)
            yield name, SourceEntry("file", executable, info.st_size, _reader(entry.path))
        else:
            yield name, SourceEntry("other")


def _reader(path: str) -> Callable[[], bytes]:
    def read() -> bytes:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            return file.read(MAX_BYTES + 1)

    return read


def _is_below(folder: str, above: str) -> bool:
    return not above or folder == above or folder.startswith(above + "/")


def _describe_left_out(entry: SourceEntry, inside: str, path: str) -> Diagnostic:
    if entry.kind == "link":
        message = f"is a link to {entry.target[:120]!r}, which is not a file of the same source; it was left out"
        return Diagnostic("link-out", "warning", f"{inside}: {message}", None, "put the file itself there", path)
    message = "is neither a file nor a folder (a submodule?); it was left out"
    return Diagnostic("not-a-file", "warning", f"{inside}: {message}", None, "put the files themselves there", path)
