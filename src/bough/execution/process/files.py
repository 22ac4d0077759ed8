"""Write files into a workspace and read them back, without following a link.

A program may have replaced any entry of the workspace by a link, a pipe or a device. So a path is opened name by name,
relative to a folder's descriptor and with `O_NOFOLLOW`.
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
"""Maximum number of entries that a walk visits."""

Fingerprint = tuple[int, int, int, int, int]
"""The state of a file: inode, size, mtime, ctime, mode."""


def write_file(root_fd: int, file: File, *, owner: tuple[int, int] | None = None) -> None:
    """Write `file` below the folder `root_fd`. Replaces an existing file; never writes through a link.

    Args:
        owner: uid and gid of new files and folders; None for those of this process.
    """
    *folders, name = split_path(file.path)
    with ExitStack() as opened:  # closes each descriptor exactly once; its number may then belong to another run
        fd = root_fd
        for folder in folders:
            fd = opened.enter_context(_make_folder(fd, folder, owner))
        _replace(fd, name, file, owner)


@contextmanager
def _make_folder(fd: int, name: str, owner: tuple[int, int] | None) -> Generator[int]:
    """Create the folder `name` if it is missing, and open it for the `with` block."""
    try:
        os.mkdir(name, 0o755, dir_fd=fd)
        is_new = True
    except FileExistsError:
        is_new = False
    with open_descriptor(name, dir_fd=fd) as inner:
        if is_new and owner is not None:
            os.fchown(inner, *owner)
        yield inner


def _replace(fd: int, name: str, file: File, owner: tuple[int, int] | None) -> None:
    """Write `file` to a new entry `name` of the folder `fd`, after removing an existing one."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=fd)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=fd), "wb") as target:
        target.write(file.content)
        if owner is not None:
            os.fchown(target.fileno(), *owner)
        os.fchmod(target.fileno(), file.mode & 0o777)


def fingerprint(entry: FolderEntry) -> Fingerprint:
    """Return a value that differs after every change of a file, because no program can set the ctime."""
    state = entry.state
    return (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_mode)


@dataclass
class Walk:
    """A walk below a folder with limits on depth and number of entries.

    Attributes:
        guards: Names to omit.
        reports_guarded: Whether `skipped` includes guarded names.
        skipped: (path, reason) of each omitted entry.
        is_complete: Whether the walk omitted only guarded names.
    """

    max_depth: int = 16
    max_entries: int = MAX_ENTRIES
    guards: Guards = NO_GUARDS
    reports_guarded: bool = False
    skipped: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    is_complete: bool = True
    _entry_count: int = 0

    def entries(self, root_fd: int) -> Iterator[FolderEntry]:
        """Yield every entry below `root_fd` that is not a folder, up to `max_entries` and `max_depth`. O(entries)."""
        entries = walk(
            root_fd, enter=self._enter, skip=self._skip, in_place=True, read=self._read, on_error=self._skip_unreadable
        )
        for entry in entries:
            if not entry.is_folder:
                yield entry

    def _read(self, folder: Folder) -> None:
        folder.names = sorted(list_names(folder.fd, self.max_entries + 1 - self._entry_count), reverse=True)

    def _skip(self, folder: Folder, name: str) -> bool:
        """Whether to omit an entry, because it is guarded or the limit of entries is reached; record it if required."""
        self._entry_count += 1
        if self._entry_count > self.max_entries:
            self.is_complete = False
            self._skip_once("*", "too many entries")
            return True
        parts = (*folder.parts, name)
        is_guarded = self.guards.is_guarded(parts)
        if is_guarded and self.reports_guarded:
            self.skipped.append(("/".join(parts), "guarded name"))
        return is_guarded

    def _enter(self, entry: FolderEntry) -> bool:
        if entry.folder.depth >= self.max_depth:
            self.is_complete = False
            self.skipped.append((entry.path, "too deep"))
            return False
        return True

    def _skip_unreadable(self, folder: Folder, name: str, error: OSError) -> None:
        parts = (*folder.parts, name) if name else folder.parts
        if not parts:
            raise error
        self.is_complete = False
        self.skipped.append(("/".join(parts), (error.strerror or "unreadable").lower()))

    def _skip_once(self, path: str, reason: str) -> None:
        if (path, reason) not in self.skipped:
            self.skipped.append((path, reason))


@dataclass(frozen=True)
class FolderSnapshot:
    """The state of the files below a folder.

    Attributes:
        files: The fingerprint of each file that is not guarded, by path; limited as in `Walk`.
        is_complete: Whether the walk omitted only guarded names.
    """

    files: Mapping[str, Fingerprint] = field(default_factory=dict[str, Fingerprint])
    is_complete: bool = False


def snapshot(root_fd: int, *, max_depth: int = 16, guards: Guards = NO_GUARDS) -> FolderSnapshot:
    """Return the state of the files below `root_fd`."""
    walk = Walk(max_depth=max_depth, guards=guards)
    files = {entry.path: fingerprint(entry) for entry in walk.entries(root_fd)}
    return FolderSnapshot(files, is_complete=walk.is_complete)


@dataclass(frozen=True)
class Collected:
    """The output files of a run.

    Attributes:
        skipped: (path, reason) of each file that is not among `files`.
        changed: Whether any file was changed, created or removed; None if the walk could not see all files.
    """

    files: tuple[File, ...]
    skipped: tuple[tuple[str, str], ...]
    changed: bool | None = None


def collect(
    root_fd: int,
    before: FolderSnapshot,
    *,
    limits: ExecutionLimits,
    globs: Sequence[str] | None = None,
    guards: Guards = NO_GUARDS,
    reports_guarded: bool = False,
) -> Collected:
    """Return the files below `root_fd` that are new or have changed; only regular files with one link.

    Cost: O(entries of the folder), at most `MAX_ENTRIES`.

    Args:
        before: The files before the run.
        limits: The limits on number, bytes and depth of the files.
        globs: Patterns of the files to return; None for all.
        guards: Names that are never returned.
        reports_guarded: Whether `skipped` includes guarded names.
    """
    walk = Walk(max_depth=limits.output_depth, guards=guards, reports_guarded=reports_guarded)
    files: list[File] = []
    total = unchanged_count = 0
    has_changes = False
    for entry in walk.entries(root_fd):
        if before.files.get(entry.path) == fingerprint(entry):
            unchanged_count += 1
            continue
        has_changes = True
        if not matches_globs(entry.path, globs):
            continue
        if not entry.path.isprintable():
            walk.skipped.append((ascii(entry.path), "the name has control characters or is not UTF-8"))
            continue
        remaining_bytes = limits.output_bytes - total if len(files) < limits.output_files else -1
        outcome = _read_output(entry, remaining_bytes, limits)
        if isinstance(outcome, File):
            files.append(outcome)
            total += len(outcome.content)
        else:
            walk.skipped.append((entry.path, outcome))
    # A file that was removed leaves fewer unchanged files than there were files before.
    changed: bool | None = has_changes or unchanged_count != len(before.files)
    if not changed and not (before.is_complete and walk.is_complete):
        changed = None
    return Collected(tuple(files), tuple(walk.skipped), changed)


def matches_globs(path: str, globs: Sequence[str] | None) -> bool:
    """Whether `path` matches one of `globs` (`*` crosses no slash, `**` does); True for None."""
    return globs is None or any(_matches(path.split("/"), glob.split("/")) for glob in globs)


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Whether the parts of a path match the parts of a pattern."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[index:], pattern[1:]) for index in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _read_output(entry: FolderEntry, remaining_bytes: int, limits: ExecutionLimits) -> File | str:
    """Return a file with its content, or the reason why it is skipped."""
    if not stat.S_ISREG(entry.state.st_mode):
        return "not a regular file"
    if entry.state.st_nlink != 1:
        return "more than one link"
    if remaining_bytes < 0:
        return f"more than {limits.output_files} files"
    if entry.state.st_size > remaining_bytes:
        return f"more than {limits.output_bytes} bytes in total"
    try:
        return _read_content(entry, remaining_bytes)
    except OSError as error:  # for example because of its mode; the other files are still returned
        return (error.strerror or "unreadable").lower()


def _read_content(entry: FolderEntry, remaining_bytes: int) -> File | str:
    """Return a file with its content, or why it is skipped if it has changed since it was listed."""
    with open(os.open(entry.name, FILE, dir_fd=entry.folder_fd), "rb") as source:
        state = os.fstat(source.fileno())
        if (state.st_dev, state.st_ino) != (entry.state.st_dev, entry.state.st_ino):
            return "changed while it was read"
        content = source.read(remaining_bytes + 1)
    if len(content) > remaining_bytes:
        return "grew while it was read"
    return File(path=entry.path, content=content, mode=stat.S_IMODE(state.st_mode) & 0o777)
