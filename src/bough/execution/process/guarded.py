"""What no run may change or make in a workspace: found before a run, and set aside after it where it is new.

What exists is shown read-only (see the rungs). A name that is not there cannot be kept from a program without
leaving placeholders in people's folders, so it is taken away as soon as the run is over, while nothing of it runs.
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
"""How reasons begin that tell of one."""

MAX_GUARDED: Final = 1024
"""How many guarded files and folders of one workspace can be shown read-only."""

_MAX_PATH_BYTES: Final = 3500
"""A mount must be named by one path."""

Identity = tuple[int, int]


@dataclass(frozen=True)
class GuardedEntry:
    """A guarded file or folder that was there before a run.

    Attributes:
        path: Relative to the workspace.
        identity: Device and number.
        link: Where it leads, if it is a link, which nothing can be mounted over.
    """

    path: str
    identity: Identity
    is_folder: bool
    link: str | None = None


@dataclass(frozen=True)
class GuardedEntries:
    """What of a workspace was guarded before a run.

    Attributes:
        unreadable: Folders that could not be looked into.
    """

    found: tuple[GuardedEntry, ...] = ()
    unreadable: frozenset[Identity] = frozenset()

    @property
    def mountable(self) -> tuple[GuardedEntry, ...]:
        """Those that are not links, outer ones first."""
        return tuple(entry for entry in self.found if entry.link is None)

    def covers(self, other: GuardedEntries) -> bool:
        """Whether all that can be mounted over of `other` was there already, wherever it lies now."""
        identities = {entry.identity for entry in self.mountable}
        return all(entry.identity in identities for entry in other.mountable)


NOTHING_GUARDED: Final = GuardedEntries()


_REPOSITORY_NAMES: Final = ("HEAD", "commondir", "config", "config.worktree", "hooks", "info", "objects", "refs")
"""What decides, in the folder of a repository, what git runs there."""


def is_repository(names: Collection[str]) -> bool:
    """Whether git takes a folder with these names for a repository, whatever the folder is called."""
    return "HEAD" in names and ("commondir" in names or ("objects" in names and "refs" in names))


def changes_repository(root_fd: int, parts: Sequence[str]) -> bool:
    """Whether making or changing what `parts` lead to changes or makes a repository of any name. Blocks; O(parts).

    No link is followed; a folder that does not exist yet counts as an ordinary one.
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
    """Return what is guarded below the folder `root_fd`. Blocks; O(names), whatever their number and depth.

    Raises:
        PermissionDenied: There is more of it than can be shown read-only.
    """
    matches: list[GuardedEntry] = []
    guarded = _GuardedWalk(guards)
    with closing(guarded.entries(root_fd)) as entries:
        for entry in entries:
            path = entry.folder.path if entry.name == os.curdir else entry.path
            if len(matches) == MAX_GUARDED or len(os.fsencode(path)) > _MAX_PATH_BYTES:
                raise PermissionDenied(
                    f"The workspace has more than {MAX_GUARDED} guarded names, or one that lies too deep: {path[:200]}",
                    hint="Use a folder further down as the workspace.",
                )
            link = os.readlink(entry.name, dir_fd=entry.folder_fd) if entry.is_link else None
            matches.append(GuardedEntry(path, identity_of(entry.state), entry.is_folder, link))
    return GuardedEntries(tuple(matches), frozenset(guarded.unreadable))


def set_aside(root_fd: int, guards: Guards, before: GuardedEntries) -> list[tuple[str, str]]:
    """Rename what is guarded and was not there before; return (path, what was done). Blocks; O(names).

    It is renamed and not deleted, because what a person makes at the same moment looks the same. What was there and was
    moved by the run, with the folder around it, is left alone. Only while nothing of the run is running.
    """
    identities = {entry.identity for entry in before.found}
    moved: list[tuple[str, str]] = []
    for entry in _GuardedWalk(guards, before=before).entries(root_fd):
        if identity_of(entry.state) in identities:
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
    """Rename an entry of a folder, also where its owner, who runs this, may not write to it as it is."""
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
    """Make a guarded link again where it is gone; a folder above that is gone, too, is left so."""
    *folders, name = path.split("/")
    with suppress(OSError), open_beneath(root_fd, folders) as fd:  # it is there, or its folder is not
        os.symlink(target, name, dir_fd=fd)


class _GuardedWalk:
    """Returns what is guarded alone, and looks at nothing else but the names. Guarded folders are not entered.

    A folder that git takes for a repository is guarded, too: git runs what its configuration and hooks name, wherever
    somebody calls it in there, and a `.git` file may lead there.

    Args:
        before: What was there before the run that has ended; None: none has. Then folders are made readable that their
            owner, who runs this, cannot look into, but not those that were unreadable before, and of a repository that
            is new the file is returned without which it is none.

    Attributes:
        unreadable: The folders that could not be looked into.
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
        """List a folder: what is guarded is looked at, other folders are entered."""
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
        """Open a folder that does not let its owner in; a run can make one so, to hide what is in it."""
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
