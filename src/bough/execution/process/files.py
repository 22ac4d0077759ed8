"""Writing files into a workspace and reading them back, by folder descriptors that never follow a link.

A program in the workspace may have turned any name into a link, a pipe or a device, so no path longer than one
name is ever passed to the system, and every name is opened with `O_NOFOLLOW`.
Source: ADK (input files with nested paths, output files).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from bough.execution.base import NO_GUARDS, ExecutionLimits, File, Guards
from bough.execution.request import split_path
from bough.tree import FILE, Folder, FolderEntry, list_names, open_descriptor, walk

MAX_ENTRIES = 20_000
"""Maximum number of names that a walk visits."""

Fingerprint = tuple[int, int, int, int, int]
"""The state of a file: inode, size, mtime, ctime, mode."""


def write_file(root_fd: int, file: File, *, owner: tuple[int, int] | None = None) -> None:
    """Write `file` below the folder `root_fd`, replacing an existing one, never writing through a link.

    Args:
        owner: uid and gid of new files and folders; None for this process's.
    """
    *folders, last = split_path(file.path)
    with ExitStack() as owned:  # each descriptor is closed once, by it: a second time would hit another run's file
        fd = root_fd
        for part in folders:
            fd = owned.enter_context(_make_folder(fd, part, owner))
        _replace(fd, last, file, owner)


@contextmanager
def _make_folder(fd: int, part: str, owner: tuple[int, int] | None) -> Generator[int]:
    """Open the folder `part`, and create it if missing."""
    try:
        os.mkdir(part, 0o755, dir_fd=fd)
        is_new = True
    except FileExistsError:
        is_new = False
    with open_descriptor(part, dir_fd=fd) as inner:
        if is_new and owner is not None:
            os.fchown(inner, *owner)
        yield inner


def _replace(fd: int, name: str, file: File, owner: tuple[int, int] | None) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=fd)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=fd), "wb") as target:
        target.write(file.content)
        if owner is not None:
            os.fchown(target.fileno(), *owner)
        os.fchmod(target.fileno(), file.mode & 0o777)


def fingerprint(entry: FolderEntry) -> Fingerprint:
    """Return a value that changes with the file; a program cannot set the ctime back."""
    s = entry.state
    return (s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_mode)


@dataclass
class Walk:
    """A bounded walk below a folder.

    Attributes:
        guards: Omitted names; `skipped` lists them if `reports_guarded`.
        skipped: (path, reason) of each omission.
    """

    max_depth: int = 16
    max_entries: int = MAX_ENTRIES
    guards: Guards = NO_GUARDS
    reports_guarded: bool = False
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    _seen: int = 0

    def entries(self, root_fd: int) -> Iterator[FolderEntry]:
        """Yield every non-folder below `root_fd`; O(entries), within `max_entries` and `max_depth` folders."""
        entries = walk(
            root_fd, enter=self._enter, skip=self._skip, in_place=True, read=self._read, on_error=self._skip_unreadable
        )
        for entry in entries:
            if not entry.is_folder:
                yield entry

    def _read(self, folder: Folder) -> None:
        folder.names = sorted(list_names(folder.fd, self.max_entries + 1 - self._seen), reverse=True)

    def _skip(self, folder: Folder, name: str) -> bool:
        self._seen += 1
        if self._seen > self.max_entries:
            self._skip_once("*", "too many entries")
            return True
        parts = (*folder.parts, name)
        is_guarded = self.guards.is_root(parts)
        if is_guarded and self.reports_guarded:
            self.skipped.append(("/".join(parts), "guarded name"))
        return is_guarded

    def _enter(self, entry: FolderEntry) -> bool:
        if entry.folder.depth >= self.max_depth:
            self.skipped.append((entry.path, "too deep"))
            return False
        return True

    def _skip_unreadable(self, folder: Folder, name: str, error: OSError) -> None:
        parts = (*folder.parts, name) if name else folder.parts
        if not parts:
            raise error
        self.skipped.append(("/".join(parts), (error.strerror or "unreadable").lower()))

    def _skip_once(self, path: str, reason: str) -> None:
        if (path, reason) not in self.skipped:
            self.skipped.append((path, reason))


def snapshot(root_fd: int, *, max_depth: int = 16, guards: Guards = NO_GUARDS) -> dict[str, Fingerprint]:
    """Return the fingerprint of every file below `root_fd` that is not guarded, by path; bounded as every walk."""
    return {entry.path: fingerprint(entry) for entry in Walk(max_depth=max_depth, guards=guards).entries(root_fd)}


@dataclass(frozen=True)
class Collected:
    """The output of a workspace: `files` with contents, `skipped` as (path, reason)."""

    files: tuple[File, ...]
    skipped: tuple[tuple[str, str], ...]


def collect(
    root_fd: int,
    before: Mapping[str, Fingerprint],
    *,
    limits: ExecutionLimits,
    globs: Sequence[str] | None = None,
    guards: Guards = NO_GUARDS,
    reports_guarded: bool = False,
) -> Collected:
    """Return the new and changed files below `root_fd` since `before`: regular files with one link, within `limits`.

    Cost: O(entries of the folder), at most `MAX_ENTRIES`.

    Args:
        guards: Names that are never returned.
        reports_guarded: Whether `skipped` lists them.
    """
    walk = Walk(max_depth=limits.output_depth, guards=guards, reports_guarded=reports_guarded)
    files: list[File] = []
    total = 0
    for entry in walk.entries(root_fd):
        if before.get(entry.path) == fingerprint(entry) or not matches_globs(entry.path, globs):
            continue
        if not entry.path.isprintable():
            walk.skipped.append((ascii(entry.path), "a name with control characters or not in UTF-8"))
            continue
        bytes_left = limits.output_bytes - total if len(files) < limits.output_files else -1
        outcome = _read_output(entry, bytes_left, limits)
        if isinstance(outcome, File):
            files.append(outcome)
            total += len(outcome.content)
        else:
            walk.skipped.append((entry.path, outcome))
    return Collected(tuple(files), tuple(walk.skipped))


def matches_globs(path: str, globs: Sequence[str] | None) -> bool:
    """Whether `path` matches one of `globs` (`*` crosses no slash, `**` does); True for None."""
    return globs is None or any(_matches(path.split("/"), glob.split("/")) for glob in globs)


def _matches(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[index:], pattern[1:]) for index in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _read_output(entry: FolderEntry, left_bytes: int, limits: ExecutionLimits) -> File | str:
    """Return the file, or the reason why it is skipped."""
    if not stat.S_ISREG(entry.state.st_mode):
        return "not a regular file"
    if entry.state.st_nlink != 1:
        return "more than one link"
    if left_bytes < 0:
        return f"more than {limits.output_files} files"
    if entry.state.st_size > left_bytes:
        return f"more than {limits.output_bytes} bytes in all"
    try:
        return _read(entry, left_bytes)
    except OSError as error:  # its mode, a mount over it: it alone stays behind
        return (error.strerror or "unreadable").lower()


def _read(entry: FolderEntry, left_bytes: int) -> File | str:
    with open(os.open(entry.name, FILE, dir_fd=entry.folder_fd), "rb") as source:
        state = os.fstat(source.fileno())
        if (state.st_dev, state.st_ino) != (entry.state.st_dev, entry.state.st_ino):
            return "changed while it was read"
        content = source.read(left_bytes + 1)
    if len(content) > left_bytes:
        return "grew while it was read"
    return File(path=entry.path, content=content, mode=stat.S_IMODE(state.st_mode) & 0o777)
