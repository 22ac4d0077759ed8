"""Guarded names, which no run may change or create in a workspace: found before a run, new ones set aside after it.

Existing ones are mounted read-only (see the rungs). Creating a missing one cannot be prevented without
leaving placeholders in people's folders, so it is renamed as soon as all processes of the run have ended.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Collection, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

from bough.errors import PermissionDenied
from bough.execution.base import Guards
from bough.tree import FOLDER, Folder, FolderEntry, identity_of, open_beneath, open_folder, raise_unless_replaced, walk

GUARDED_NAME: Final = "guarded name"
"""The beginning of the reason for such a name."""

MAX_GUARDED: Final = 1024
"""Maximum number of guarded files and folders that can be mounted read-only in one workspace."""

_MAX_PATH_BYTES: Final = 3500
"""A mount must be named by one path."""

Identity = tuple[int, int]


@dataclass(frozen=True)
class GuardedEntry:
    """A guarded file or folder that existed before a run.

    Attributes:
        path: Relative to the workspace.
        identity: Device and inode.
        link: The target, if it is a link, which nothing can be mounted over.
    """

    path: str
    identity: Identity
    is_folder: bool
    link: str | None = None


@dataclass(frozen=True)
class GuardedEntries:
    """The guarded files and folders of a workspace before a run.

    Attributes:
        unreadable: Folders that could not be read.
    """

    found: tuple[GuardedEntry, ...] = ()
    unreadable: frozenset[Identity] = frozenset()

    @property
    def mountable(self) -> tuple[GuardedEntry, ...]:
        """The entries that are not links, outer ones first."""
        return tuple(entry for entry in self.found if entry.link is None)

    def covers(self, other: GuardedEntries) -> bool:
        """Whether every mountable entry of `other` existed already, under any path."""
        own_identities = {entry.identity for entry in self.mountable}
        return all(entry.identity in own_identities for entry in other.mountable)


NOTHING_GUARDED: Final = GuardedEntries()


_REPOSITORY_NAMES: Final = ("HEAD", "commondir", "config", "config.worktree", "hooks", "info", "objects", "refs")
"""The names in a repository's folder that decide which programs git runs."""


def is_repository(names: Collection[str]) -> bool:
    """Whether git treats a folder with these names as a repository, whatever the folder's own name."""
    return "HEAD" in names and ("commondir" in names or ("objects" in names and "refs" in names))


def changes_repository(root_fd: int, parts: Sequence[str]) -> bool:
    """Whether creating or changing the file at `parts` creates or changes a repository of any name. Blocks; O(parts).

    Follows no link; a folder that does not exist yet counts as an ordinary one.
    """
    fd = os.dup(root_fd)
    try:
        for depth, name in enumerate(parts):
            names = {other for other in _REPOSITORY_NAMES if _exists(other, fd)}
            is_old = is_repository(names)
            is_part = name in _REPOSITORY_NAMES
            if (is_old and (depth > 0 or is_part)) or (is_part and not is_old and is_repository({*names, name})):
                return True
            try:
                inner = os.open(name, FOLDER, dir_fd=fd)
            except OSError:
                return False
            os.close(fd)
            fd = inner
    finally:
        os.close(fd)
    return False


def _exists(name: str, folder_fd: int) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def find_guarded(root_fd: int, guards: Guards) -> GuardedEntries:
    """Return the guarded entries below the folder `root_fd`. Blocks; O(names), without a bound on number or depth.

    Raises:
        PermissionDenied: There are more than can be mounted read-only.
    """
    guarded_entries: list[GuardedEntry] = []
    guarded = _GuardedWalk(guards)
    with closing(guarded.entries(root_fd)) as entries:
        for entry in entries:
            path = entry.folder.path if entry.name == os.curdir else entry.path
            if len(guarded_entries) == MAX_GUARDED or len(os.fsencode(path)) > _MAX_PATH_BYTES:
                raise PermissionDenied(
                    f"The workspace has more than {MAX_GUARDED} guarded names, or one that lies too deep: {path[:200]}",
                    hint="Use a folder further down as the workspace.",
                )
            link = os.readlink(entry.name, dir_fd=entry.folder_fd) if entry.is_link else None
            guarded_entries.append(GuardedEntry(path, identity_of(entry.state), entry.is_folder, link))
    return GuardedEntries(tuple(guarded_entries), frozenset(guarded.unreadable))


def set_aside(root_fd: int, guards: Guards, before: GuardedEntries) -> list[tuple[str, str]]:
    """Rename the guarded entries that are new; return (path, what was done). Blocks; O(names).

    They are renamed and not deleted, because files that a person creates meanwhile look the same. Entries that existed
    and were moved by the run, with their parent folder, stay. Call it after all processes of the run have ended.
    """
    earlier_links = {entry.identity: entry.link for entry in before.found}
    moved: list[tuple[str, str]] = []
    for entry in _GuardedWalk(guards, before=before).entries(root_fd):
        link = os.readlink(entry.name, dir_fd=entry.folder_fd) if entry.is_link else None
        # The target too: a link can be removed, and what is made in its place has the same inode number again.
        if identity_of(entry.state) in earlier_links and earlier_links[identity_of(entry.state)] == link:
            continue
        aside = f"{entry.name[:200]}.removed-{secrets.token_hex(4)}"
        reason = f"{GUARDED_NAME}, set aside as {aside}"
        try:
            _rename(entry.folder_fd, entry.name, aside)
        except FileNotFoundError:
            continue
        except OSError as error:
            reason = f"{GUARDED_NAME}, cannot be renamed: {error.strerror}"
        moved.append((entry.path, reason))
    for entry in before.found:
        if entry.link is not None:
            _restore_link(root_fd, entry.path, entry.link)
    return moved


def _rename(fd: int, name: str, new_name: str) -> None:
    """Rename an entry of a folder, also if the folder's mode does not let its owner, this process, write to it."""
    try:
        os.rename(name, new_name, src_dir_fd=fd, dst_dir_fd=fd)
    except PermissionError:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        os.fchmod(fd, mode | 0o300)
        try:
            os.rename(name, new_name, src_dir_fd=fd, dst_dir_fd=fd)
        finally:
            os.fchmod(fd, mode)


def _restore_link(root_fd: int, path: str, target: str) -> None:
    """Restore a missing guarded link; does nothing if its parent folder is missing too."""
    *folders, name = path.split("/")
    with suppress(OSError), open_beneath(root_fd, folders) as fd:  # the link exists, or its folder does not
        os.symlink(target, name, dir_fd=fd)


class _GuardedWalk:
    """A walk that yields guarded entries only and reads nothing but names. It does not enter guarded folders.

    A folder that git treats as a repository is guarded too: git runs the programs of its configuration and hooks if
    called anywhere in it, and a `.git` file may lead there.

    Args:
        before: The entries before a run that has ended; None before a run. After a run, folders that their owner, this
            process, cannot read are made readable, unless they were unreadable before, and of a new repository the file
            is returned that makes it one.

    Attributes:
        unreadable: The folders that could not be read.
    """

    def __init__(self, guards: Guards, *, before: GuardedEntries | None = None) -> None:
        self._guards = guards
        self._names = guards.names | guards.top | {path.rpartition("/")[2].casefold() for path in guards.paths}
        self._opens = None if before is None else before.unreadable
        self._known = None if before is None else {entry.identity for entry in before.found}
        self._top_is_old = before is None or any(entry.path == "HEAD" for entry in before.found)
        self.unreadable: set[Identity] = set()

    def entries(self, root_fd: int) -> Generator[FolderEntry]:
        """Yield what is guarded below `root_fd`."""
        yield from walk(
            root_fd, enter=lambda entry: False, read=self._read, opener=self._open, on_error=self._skip_unreadable
        )

    def _skip_unreadable(self, folder: Folder, name: str, error: OSError) -> None:
        if name:
            raise_unless_replaced(folder, name, error)

    def _read(self, folder: Folder) -> None:
        """List a folder: yield guarded entries, and enter other folders."""
        with os.scandir(folder.fd) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        if ".git" in self._guards.names and is_repository([name for name, _ in names]):
            if folder.above is not None:
                if self._known is None:
                    folder.names = [os.curdir]
                    return
                if identity_of(os.fstat(folder.fd)) in self._known:
                    return
            old = _REPOSITORY_NAMES if self._top_is_old and folder.above is None else ("HEAD",)
            folder.names += old
            names = [(name, is_folder) for name, is_folder in names if name not in old]
        for name, is_folder in names:
            if name.casefold() in self._names and self._guards.is_root((*folder.parts, name)):
                folder.names.append(name)
            elif is_folder:
                folder.folders.append(name)
        folder.names.reverse()

    def _open(self, fd: int, name: str) -> int:
        try:
            return open_folder(fd, name)
        except PermissionError:
            return self._open_closed(fd, name)

    def _open_closed(self, parent_fd: int, name: str) -> int:
        """Open a folder whose mode does not let its owner in, which a run can set to hide its content."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
        try:
            state = os.fstat(fd)
            self.unreadable.add(identity_of(state))
            if self._opens is None or identity_of(state) in self._opens or not stat.S_ISDIR(state.st_mode):
                raise PermissionError("unreadable")
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(state.st_mode) | 0o700)
            return open_folder(parent_fd, name)
        finally:
            os.close(fd)
