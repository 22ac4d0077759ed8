"""Guarded names, which no run may change or create in a workspace.

Existing files and folders with such a name are found before a run, and mounted read-only by the rungs. Only
placeholders in people's folders could prevent a run from creating such a name. So a new one is renamed as soon as all
processes of the run have ended.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Collection, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bough.errors import InvalidInput, PermissionDenied
from bough.execution.base import USUAL_GUARDS, Guards
from bough.tree import FOLDER, Folder, FolderEntry, identify, open_beneath, open_folder, raise_unless_replaced, walk

GUARDED_NAME: Final = "guarded name"
"""The beginning of the reason in `output_skipped` for a guarded name."""

MAX_GUARDED: Final = 1024
"""Maximum number of guarded files and folders that can be mounted read-only in one workspace."""

_MAX_PATH_BYTES: Final = 3500
"""Maximum length of the path of a guarded entry; the kernel allows 4,096 bytes, including the workspace's own path."""

FileIdentity = tuple[int, int]
"""(device, inode)."""


@dataclass(frozen=True)
class GuardedEntry:
    """A guarded file or folder that existed before a run.

    Attributes:
        path: The path relative to the workspace.
        link: The target of a symbolic link, which cannot be mounted read-only; None for files and folders.
    """

    path: str
    identity: FileIdentity
    is_folder: bool
    link: str | None = None


@dataclass(frozen=True)
class GuardedEntries:
    """The guarded files and folders of a workspace before a run.

    Attributes:
        entries: The guarded entries, outer ones first.
        unreadable: Folders that could not be read.
    """

    entries: tuple[GuardedEntry, ...] = ()
    unreadable: frozenset[FileIdentity] = frozenset()

    @property
    def mountable(self) -> tuple[GuardedEntry, ...]:
        """The entries that are not links, outer ones first."""
        return tuple(entry for entry in self.entries if entry.link is None)

    def covers(self, other: GuardedEntries) -> bool:
        """Whether these entries include every mountable entry of `other`, under any path."""
        own_identities = {entry.identity for entry in self.mountable}
        return all(entry.identity in own_identities for entry in other.mountable)


NOTHING_GUARDED: Final = GuardedEntries()


_REPOSITORY_NAMES: Final = ("HEAD", "commondir", "config", "config.worktree", "hooks", "info", "objects", "refs")
"""The names in a git folder that determine which programs git runs."""


def is_repository(names: Collection[str]) -> bool:
    """Whether git treats a folder with these names as a repository, whatever the folder's own name."""
    return "HEAD" in names and ("commondir" in names or ("objects" in names and "refs" in names))


def changes_repository(root_fd: int, parts: Sequence[str]) -> bool:
    """Whether writing the file at the path `parts` creates a git repository or changes one. Blocks; O(parts).

    A repository may have any name. Follows no link; a folder that does not exist yet is not a repository.
    """
    fd = os.dup(root_fd)
    try:
        for depth, name in enumerate(parts):
            names = {other for other in _REPOSITORY_NAMES if _has_entry(other, fd)}
            is_repository_name = name in _REPOSITORY_NAMES
            if is_repository(names):
                # In the root, which may be a bare repository, other names are not guarded.
                if depth > 0 or is_repository_name:
                    return True
            elif is_repository_name and is_repository({*names, name}):
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


def _has_entry(name: str, folder_fd: int) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def find_guarded(root_fd: int, guards: Guards) -> GuardedEntries:
    """Return the guarded entries below the folder `root_fd`. Blocks; O(names), at any depth.

    Raises:
        PermissionDenied: There are more guarded entries than can be mounted read-only.
    """
    guarded_entries: list[GuardedEntry] = []
    guarded_walk = _GuardedWalk(guards)
    with closing(guarded_walk.entries(root_fd)) as entries:
        for entry in entries:
            path = entry.folder.path if entry.name == os.curdir else entry.path
            if len(guarded_entries) == MAX_GUARDED or len(os.fsencode(path)) > _MAX_PATH_BYTES:
                raise PermissionDenied(
                    f"The workspace has more than {MAX_GUARDED} guarded names, or one whose path is too long: "
                    f"{path[:200]}",
                    hint="Use a subfolder as the workspace.",
                )
            link = os.readlink(entry.name, dir_fd=entry.folder_fd) if entry.is_link else None
            guarded_entries.append(GuardedEntry(path, identify(entry.state), entry.is_folder, link))
    return GuardedEntries(tuple(guarded_entries), frozenset(guarded_walk.unreadable))


def refuse_guarded(workspace: Path) -> None:
    """Refuse a folder for an executor that cannot protect guarded names. Blocks; O(names), at any depth.

    Raises:
        InvalidInput: The folder is missing, or contains a guarded name.
        PermissionDenied: There are more guarded entries than `find_guarded` lists.
    """
    try:
        folder_fd = os.open(workspace, FOLDER)
    except OSError as error:
        raise InvalidInput(
            f"The workspace {str(workspace)!r} cannot be opened: {error.strerror}", hint="Name an existing folder."
        ) from error
    try:
        guarded_entries = find_guarded(folder_fd, USUAL_GUARDS).entries
    finally:
        os.close(folder_fd)
    if guarded_entries:
        raise InvalidInput(
            f"A kept container cannot protect {guarded_entries[0].path!r} in the workspace {str(workspace)!r}.",
            hint="Use a folder for the task only, or a LocalSandboxCodeExecutor.",
        )


def set_aside(root_fd: int, guards: Guards, before: GuardedEntries) -> list[tuple[str, str]]:
    """Rename the guarded entries that are new; return (path, reason for `output_skipped`) of each. Blocks; O(names).

    The new entries are not deleted, because a person may have created them during the run. An earlier entry is not
    renamed, even if the run has moved its parent folder, unless it is now a link to another target. Missing guarded
    links are restored. Must be called after all processes of the run have ended.
    """
    earlier_links = {entry.identity: entry.link for entry in before.entries}
    renamed_entries: list[tuple[str, str]] = []
    for entry in _GuardedWalk(guards, before=before).entries(root_fd):
        try:
            link = os.readlink(entry.name, dir_fd=entry.folder_fd) if entry.is_link else None
        except OSError:  # removed or replaced meanwhile, so it is not the earlier link
            link = None
        # The target is compared too, because a new entry may get the inode number of a removed link.
        if identify(entry.state) in earlier_links and earlier_links[identify(entry.state)] == link:
            continue
        new_name = f"{entry.name[:200]}.removed-{secrets.token_hex(4)}"
        reason = f"{GUARDED_NAME}, set aside as {new_name}"
        try:
            _rename(entry.folder_fd, entry.name, new_name)
        except FileNotFoundError:
            continue
        except OSError as error:
            reason = f"{GUARDED_NAME}, cannot be renamed: {error.strerror}"
        renamed_entries.append((entry.path, reason))
    for entry in before.entries:
        if entry.link is not None:
            _restore_link(root_fd, entry.path, entry.link)
    return renamed_entries


def _rename(fd: int, name: str, new_name: str) -> None:
    """Rename an entry of a folder. If the folder's mode forbids this, it is changed temporarily."""
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
    """Create a guarded link if it is missing and its parent folder exists."""
    *folders, name = path.split("/")
    with suppress(OSError), open_beneath(root_fd, folders) as fd:
        os.symlink(target, name, dir_fd=fd)


class _GuardedWalk:
    """A walk that yields only guarded entries. It does not enter guarded folders.

    A folder that git treats as a repository is guarded under any name: git runs the programs of its configuration and
    hooks when it is called below that folder, and a `.git` file may refer to it.

    Before a run, the walk yields such a repository itself. After a run, it yields the `HEAD` file of a new repository,
    and makes folders readable that the run has made unreadable.

    Args:
        before: The guarded entries before the run, if the run has ended; None before a run.

    Attributes:
        unreadable: The folders that could not be read.
    """

    def __init__(self, guards: Guards, *, before: GuardedEntries | None = None) -> None:
        self._guards = guards
        self._names = guards.names | guards.top | {path.rpartition("/")[2].casefold() for path in guards.paths}
        self._earlier_unreadable = None if before is None else before.unreadable
        self._earlier_identities = None if before is None else {entry.identity for entry in before.entries}
        # Before a run, all repository names in the root are guarded, in case the root is a bare repository.
        self._root_was_repository = before is None or any(entry.path == "HEAD" for entry in before.entries)
        self.unreadable: set[FileIdentity] = set()

    def entries(self, root_fd: int) -> Generator[FolderEntry]:
        """Yield the guarded entries below `root_fd`."""
        yield from walk(
            root_fd, enter=lambda entry: False, read=self._read, opener=self._open_entry, on_error=self._skip_unreadable
        )

    def _skip_unreadable(self, folder: Folder, name: str, error: OSError) -> None:
        if name:
            raise_unless_replaced(folder, name, error)

    def _read(self, folder: Folder) -> None:
        """Set the names that the walk yields from a folder, and the folders that it enters."""
        with os.scandir(folder.fd) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        if ".git" in self._guards.names and is_repository([name for name, _ in names]):
            is_root = folder.parent is None
            if not is_root:
                if self._earlier_identities is None:
                    folder.names = [os.curdir]
                    return
                if identify(os.fstat(folder.fd)) in self._earlier_identities:
                    return
            guarded_names = _REPOSITORY_NAMES if self._root_was_repository and is_root else ("HEAD",)
            folder.names += guarded_names
            names = [(name, is_folder) for name, is_folder in names if name not in guarded_names]
        for name, is_folder in names:
            if name.casefold() in self._names and self._guards.is_guarded((*folder.parts, name)):
                folder.names.append(name)
            elif is_folder:
                folder.folders.append(name)
        folder.names.reverse()

    def _open_entry(self, fd: int, name: str) -> int:
        try:
            return open_folder(fd, name)
        except PermissionError:
            return self._open_unreadable(fd, name)

    def _open_unreadable(self, parent_fd: int, name: str) -> int:
        """Make a folder readable again and open it: a run can set a mode that hides its content.

        Raises:
            PermissionError: The run has not ended yet, or the folder was unreadable before it.
        """
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
        try:
            state = os.fstat(fd)
            self.unreadable.add(identify(state))
            if (
                self._earlier_unreadable is None
                or identify(state) in self._earlier_unreadable
                or not stat.S_ISDIR(state.st_mode)
            ):
                raise PermissionError("unreadable")
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(state.st_mode) | 0o700)
            return open_folder(parent_fd, name)
        finally:
            os.close(fd)
