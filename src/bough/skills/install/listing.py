"""The contents of a source before anything is installed: the names and kinds of its entries, and how to read them."""

from __future__ import annotations

import os
import posixpath
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
_LFS_PREFIX = b"version https://git-lfs.github.com/spec/v1"


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """A file, a link or another entry of a source.

    Attributes:
        kind: `file`, `link`, or `other` for entries that are never installed, such as submodules.
        read: Returns the bytes of a file.
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
        entries: The entries by path, with forward slashes.
        name: The name of the top folder.
        origin: The address that the lock file records as the source.
        owner: The owner of the repository or site; empty if unknown.
        commit: The commit of a git repository.
        ref: The requested branch, tag or commit.
        below: The folder at or below which skills are requested; empty for all.
    """

    entries: Mapping[str, SourceEntry]
    name: str
    origin: str
    owner: str = ""
    commit: str = ""
    ref: str = ""
    below: str = ""

    def list_skills(self) -> list[str]:
        """Return the folders with a `SKILL.md`, at any depth, sorted; the top folder is the empty text."""
        folders = {posixpath.dirname(path) for path in self.entries if is_skill_file(posixpath.basename(path))}
        return sorted(folder for folder in folders if _is_below(folder, self.below))

    def list_files(self, skill: str, skills: list[str]) -> list[str]:
        """Return the paths of a skill's own entries, without those of skills inside its folder."""
        inner_prefixes = tuple(f"{other}/" for other in skills if other != skill and _is_below(other, skill))
        prefix = f"{skill}/" if skill else ""
        return sorted(path for path in self.entries if path.startswith(prefix) and not path.startswith(inner_prefixes))

    def write_skill(self, skill: str, skills: list[str], target: Path) -> list[Diagnostic]:
        """Write a skill's own files into `target`, and return a diagnostic for each entry that was skipped.

        A link to a file of the same skill is written as a link. Instead of a link to another file of the source, that
        file is written.

        Raises:
            InvalidInput: The `SKILL.md` would be skipped.
            LimitExceeded: The skill is too large.
        """
        notes: list[Diagnostic] = []
        paths = self.list_files(skill, skills)
        own_paths = set(paths)
        total_bytes = 0
        for path in paths:
            entry = self.entries[path]
            relative_path = path[len(skill) :].lstrip("/")
            source_path = self.find_target(path) if entry.kind == "link" else path
            if entry.kind == "other" or source_path is None:
                notes.append(_describe_skipped(entry, relative_path, path))
                if "/" not in relative_path and is_skill_file(relative_path):
                    raise InvalidInput(f"{path} {notes[-1].message}", hint=notes[-1].fix)
                continue
            target_path = target / relative_path
            target_path.parent.mkdir(parents=True, exist_ok=True)
            # Only links inside the skill: a link to another file of the source would dangle after the installation.
            if entry.kind == "link" and source_path in own_paths:
                target_path.symlink_to(entry.target)
                continue
            source_entry = self.entries[source_path]
            total_bytes += source_entry.size
            if total_bytes > MAX_BYTES or len(paths) > MAX_FILES:
                raise LimitExceeded(
                    f"skill {skill or self.name} has more than {MAX_FILES} files or {MAX_BYTES >> 20} MB",
                    hint="leave large data out of skills",
                )
            data = source_entry.read()
            target_path.write_bytes(data)
            # Of the source's mode, only the executable bit is used: not setuid, and not write permission for others.
            target_path.chmod(0o755 if source_entry.executable else 0o644)
            if data.startswith(_LFS_PREFIX):
                message = "a Git LFS pointer; the file itself was not fetched"
                notes.append(Diagnostic("lfs-pointer", "warning", message, None, "commit the file itself", path))
        return notes

    def find_target(self, path: str) -> str | None:
        """Return the file to which a link leads, also over other links; None if that is not a file of the source."""
        for _ in range(_MAX_LINKS):
            entry = self.entries.get(path)
            if entry is None or entry.kind == "other":
                return None
            if entry.kind == "file":
                return path
            if entry.target.startswith("/"):
                return None
            # Resolved as text, because the path must not be looked up on this machine's file system.
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), entry.target))
            if path.startswith("../") or path == "..":
                return None
        return None


def list_folder(folder: Path) -> SourceListing:
    """Return the contents of a local folder; links are listed, not followed. O(names).

    Raises:
        LimitExceeded: The folder has more than a million names, or listing them takes more than 20 s.
    """
    entries: dict[str, SourceEntry] = {}
    deadline = time.monotonic() + MAX_SECONDS
    pending = [""]
    while pending:
        subfolder = pending.pop()
        for name, entry in _scan_subfolder(folder, subfolder):
            if entry is None:
                pending.append(name)
            else:
                entries[name] = entry
        if len(entries) > MAX_NAMES or time.monotonic() > deadline:
            raise LimitExceeded(
                f"{folder} has more than {MAX_NAMES} names, or takes more than {MAX_SECONDS:.0f} s to list",
                hint="pass a folder further down",
            )
    return SourceListing(entries, folder.resolve().name or "skill", str(folder.absolute()))


def _scan_subfolder(folder: Path, subfolder: str) -> Iterator[tuple[str, SourceEntry | None]]:
    """Yield (path, entry) for each name in a subfolder; the entry of a folder is None."""
    try:
        children = sorted(os.scandir(folder / subfolder), key=lambda child: child.name)
    except OSError:
        yield f"{subfolder}/(unreadable)".lstrip("/"), SourceEntry("other")
        return
    for entry in children:
        name = f"{subfolder}/{entry.name}" if subfolder else entry.name
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
    """Return a function that reads a file, and refuses a link that has replaced it."""

    def read() -> bytes:
        # The file may have been replaced since it was listed: a link is refused, and a pipe does not block.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            return file.read(MAX_BYTES + 1)

    return read


def _is_below(folder: str, ancestor: str) -> bool:
    return not ancestor or folder == ancestor or folder.startswith(ancestor + "/")


def _describe_skipped(entry: SourceEntry, relative_path: str, path: str) -> Diagnostic:
    if entry.kind == "link":
        message = f"skipped: a link to {entry.target[:120]!r}, which is not a file of the same source"
        return Diagnostic(
            "link-out", "warning", f"{relative_path}: {message}", None, "replace the link with the file", path
        )
    message = "skipped: neither a file nor a folder (a submodule?)"
    return Diagnostic("not-a-file", "warning", f"{relative_path}: {message}", None, "commit the files themselves", path)
