"""What no run may change or make in a workspace: found before a run, and set aside after it where it is new.

What exists is shown read-only (see the rungs). A name that is not there cannot be kept from a program without
leaving placeholders in people's folders, so it is taken away as soon as the run is over, while nothing of it runs.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bough.errors import PermissionDenied
from bough.execution.base import Guards
from bough.execution.process.tree import TreeCursor, TreeLevel, identity_of
from bough.tree import FOLDER

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
        known = {entry.identity for entry in self.mountable}
        return all(entry.identity in known for entry in other.mountable)


NOTHING_GUARDED: Final = GuardedEntries()


def find_guarded(root_fd: int, guards: Guards) -> GuardedEntries:
    """Return what is guarded below the folder `root_fd`. Blocks; O(names), whatever their number and depth.

    Raises:
        PermissionDenied: There is more of it than can be shown read-only.
    """
    found: list[GuardedEntry] = []
    with _GuardCursor(root_fd, guards) as cursor:
        for fd, name, state in cursor:
            path = "/".join((*cursor.folder, name))
            if len(found) == MAX_GUARDED or len(os.fsencode(path)) > _MAX_PATH_BYTES:
                raise PermissionDenied(
                    f"The workspace has more than {MAX_GUARDED} guarded names, or one that lies too deep: {path[:200]}",
                    hint="Use a folder further down as the workspace.",
                )
            link = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(state.st_mode) else None
            found.append(GuardedEntry(path, identity_of(state), stat.S_ISDIR(state.st_mode), link))
        return GuardedEntries(tuple(found), frozenset(cursor.unreadable))


def set_aside(root_fd: int, guards: Guards, before: GuardedEntries) -> list[tuple[str, str]]:
    """Rename what is guarded and was not there before; return (path, what was done). Blocks; O(names).

    It is renamed and not deleted, because what a person makes at the same moment looks the same. What was there and was
    moved by the run, with the folder around it, is left alone. Only while nothing of the run is running.
    """
    known = {entry.identity for entry in before.found}
    moved: list[tuple[str, str]] = []
    with _GuardCursor(root_fd, guards, opens=before.unreadable) as cursor:
        for fd, name, state in cursor:
            if identity_of(state) in known:
                continue
            aside = f"{name[:200]}.removed-{secrets.token_hex(4)}"
            reason = f"{GUARDED_NAME}, set aside as {aside}"
            try:
                _rename(fd, name, aside)
            except FileNotFoundError:
                continue
            except OSError as error:
                reason = f"{GUARDED_NAME}, cannot be renamed: {error.strerror}"
            moved.append(("/".join((*cursor.folder, name)), reason))
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
    fd = os.dup(root_fd)
    try:
        for folder in folders:
            inner = os.open(folder, FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        os.symlink(target, name, dir_fd=fd)
    except OSError:  # it is there, or its folder is not
        return
    finally:
        os.close(fd)


class _GuardCursor(TreeCursor):
    """Returns what is guarded alone, and looks at nothing else but the names. Guarded folders are not entered.

    Args:
        opens: Makes a folder readable that its owner, who runs this, cannot look into; but none of these. None: none.

    Attributes:
        unreadable: The folders that could not be looked into.
    """

    def __init__(self, root_fd: int, guards: Guards, *, opens: frozenset[Identity] | None = None) -> None:
        super().__init__(root_fd)
        self._guards = guards
        self._names = guards.names | guards.top | {path.rpartition("/")[2].casefold() for path in guards.paths}
        self._opens = opens
        self.unreadable: set[Identity] = set()

    def _look(self, level: TreeLevel) -> Iterator[tuple[int, str, os.stat_result]]:
        try:
            with os.scandir(self._fd) as entries:
                names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError:
            self.complete = False
            return
        for name, is_folder in names:
            is_guarded = name.casefold() in self._names and self._guards.is_root((*self.folder, name))
            if is_folder and not is_guarded:
                level.todo.append(name)
            if is_guarded:
                with suppress(FileNotFoundError):
                    yield self._fd, name, os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def _open(self, name: str) -> int:
        try:
            return super()._open(name)
        except PermissionError:
            return self._open_closed(name)

    def _open_closed(self, name: str) -> int:
        """Open a folder that does not let its owner in; a run can make one so, to hide what is in it."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            state = os.fstat(fd)
            self.unreadable.add(identity_of(state))
            if self._opens is None or identity_of(state) in self._opens or not stat.S_ISDIR(state.st_mode):
                raise PermissionError("unreadable")
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(state.st_mode) | 0o700)
            return super()._open(name)
        finally:
            os.close(fd)
