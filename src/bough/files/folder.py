"""Change an existing folder to the state of a tree, completely or not at all.

A journal records the change before the first path is written. After a crash, the next look at the folder finishes the
change, because all its objects are kept. Paths that a person has changed since the crash are not overwritten.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from bough.errors import Conflict, CorruptLog, NotFound, Unavailable
from bough.files.materialise import check_folding, folds_names
from bough.files.objects import Objects
from bough.files.pack import BLOB_KIND, hash_object, write_durably
from bough.files.store import FileStore
from bough.files.trees import FileChange, KeptFile, diff, entries, leave_out, show_path
from bough.tree import FILE, FOLDER, make_folder, open_beneath, open_descriptor

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_SYNCED: Final = 64
"""If more files than this are written, the whole disk is synchronised once instead of each file."""

_IN_THE_WAY: Final = (errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)
"""Errors that occur if somebody replaces a path after it was checked."""

_NONCE: Final = re.compile("[0-9a-f]{32}")

_Content: TypeAlias = tuple[str, str]
"""The kind and the object id of the file or link at a path."""

_Current: TypeAlias = _Content | Literal["folder", "blocked", "other"] | None
"""What a path is now: `blocked` if one of the folders above it is a file or a link; None if it does not exist."""


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write.

    Attributes:
        tree: The present state of the folder, except for `skipped`.
        changes: The paths that were written or removed.
        skipped: Paths that somebody changed after a crash; they were not overwritten.
    """

    tree: str
    changes: tuple[FileChange, ...]
    skipped: tuple[str, ...] = ()


def write(
    file_store: FileStore,
    objects: Objects,
    folder: Path,
    now: str,
    to: str,
    *,
    is_guarded: Callable[[str], bool] = lambda path: False,
) -> Written:
    """Change a folder from the tree `now` to the tree `to`, completely or not at all. O(changes).

    Unchanged files keep their times of modification. The caller holds `file_store.hold_folder(folder, exclusive=True)`.

    Args:
        objects: The caller closes it only after the event that names the result is durable.
        now: The tree that a look at the folder has just returned.
        is_guarded: Returns whether a path must not be written. Such paths keep their present state.

    Raises:
        Conflict: A path has changed since `now`, or blocks another one. Nothing was written; see `details["paths"]`.
        NotFound: An object is not in this store. Nothing was written.
        CorruptLog: An object is damaged. Nothing was written.
        Unavailable: The disk is full or read-only. If writing had begun, the next look at the folder finishes it.
    """
    # Removed from the tree itself, so that finishing the journal after a crash does not write them either.
    guarded = [change.path for change in diff(objects, now, to) if is_guarded(change.path)]
    if guarded:
        to = leave_out(objects, now, to, guarded)
    # Before the journal names the trees: after a crash, only durable objects can finish it.
    objects.flush()
    changes = diff(objects, now, to)
    if not changes:
        return Written(to, ())
    with file_store.hold_look(folder), _explain(folder), _open_root(folder) as root_fd:
        writer = _Writer(file_store, objects, root_fd, changes, secrets.token_hex(16))
        writer.verify_objects()
        if folds_names(root_fd):
            written = {change.path for change in changes if change.after is not None}
            check_folding([file.path for file in entries(objects, to)], written, is_guarded)
        # Before the journal is written: with a journal, the recovery from a crash would overwrite a changed path.
        writer.check_current()
        journal = file_store.journal_of(folder)
        data = {"folder": os.path.realpath(folder), "now": now, "to": to, "nonce": writer.nonce}
        write_durably(journal, json.dumps(data).encode(), file_store.step)
        skipped = writer.write()
        _finish(file_store, folder, to, journal)
    return Written(to, tuple(changes), skipped)


def recover(file_store: FileStore, objects: Objects, folder: Path) -> Written | None:
    """Finish a write that a crash interrupted; return None if there is none. The caller holds the lock of the look.

    Raises:
        CorruptLog: The journal or an object is damaged; the journal remains.
        Unavailable: The folder cannot be written; the journal remains.
    """
    journal = file_store.journal_of(folder)
    try:
        data: Any = json.loads(journal.read_bytes())
        now, to, nonce = str(data["now"]), str(data["to"]), str(data["nonce"])
        is_valid = _NONCE.fullmatch(nonce) is not None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        now = to = nonce = ""
        is_valid = False
    if not is_valid:
        raise CorruptLog(
            f"the journal of {folder} is damaged",
            hint=f"compare the folder with its kept files, then remove {journal.name} from the folder `journal`",
            details={"path": str(journal), "reason": "the journal of a restore is damaged"},
        )
    try:
        changes = diff(objects, now, to)
    except (NotFound, CorruptLog) as error:
        raise CorruptLog(error.message, hint=error.hint, details={**error.details, "path": str(journal)}) from error
    with _explain(folder), _open_root(folder) as root_fd:
        writer = _Writer(file_store, objects, root_fd, changes, nonce)
        # A crash may have left a file under its temporary name. The next look would keep it as a file of the workspace.
        writer.remove_temporary()
        skipped = writer.write()
        _finish(file_store, folder, to, journal)
    return Written(to, tuple(changes), skipped)


def _finish(file_store: FileStore, folder: Path, to: str, journal: Path) -> None:
    # Before the journal is removed: otherwise the index of the old state would be used for the new one.
    file_store.index(folder).write_last_tree(to)
    journal.unlink(missing_ok=True)
    file_store.step("journal removed")


@contextmanager
def _explain(folder: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"{folder} cannot be written: {error.strerror}",
            hint="free some space, and make the folder writable; the next look at it finishes what was begun",
            details={"reason": f"the folder cannot be written: {error.strerror}"},
        ) from error


@contextmanager
def _open_root(folder: Path) -> Generator[int]:
    """Open the folder of a workspace. Its path may be a link."""
    with open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:
        yield fd


class _Writer:
    """One change of a folder."""

    def __init__(
        self, file_store: FileStore, objects: Objects, root_fd: int, changes: Sequence[FileChange], nonce: str
    ) -> None:
        self.nonce = nonce
        self._step = file_store.step
        self._objects = objects
        self._root_fd = root_fd
        self._device = os.fstat(root_fd).st_dev
        self._changes = changes
        self._removed = {change.path for change in changes if change.after is None}
        self._temporary = f".bough-{nonce}"
        self._syncs_each = sum(change.after is not None for change in changes) <= _MAX_SYNCED

    def verify_objects(self) -> None:
        """Read every object to be written, and check that the disk has room for all of them."""
        size = 0
        for change in self._changes:
            if change.after is not None:
                size += len(self._objects.get(bytes.fromhex(change.after.oid)))
        space = os.fstatvfs(self._root_fd)
        if size > space.f_bavail * space.f_frsize:
            raise Unavailable(
                f"the disk has no room for {size} bytes",
                hint="free some space",
                details={"reason": "the disk is full"},
            )

    def check_current(self) -> None:
        """Raise `Conflict` if a path has neither its old nor its new state."""
        paths = [change.path for change in self._changes if not self._may_write(change)]
        if paths:
            raise Conflict(
                f"{len(paths)} files changed meanwhile: {', '.join(map(show_path, paths[:5]))}",
                hint="try again",
                details={"paths": [show_path(path) for path in paths]},
            )

    def _may_write(self, change: FileChange) -> bool:
        current = self._read_current(change)
        if current in (_content_of(change.before), _content_of(change.after)):
            return True
        if current == "blocked":
            blockers = {parent for parent in _parents(change.path) if parent in self._removed}
            return change.before is None and bool(blockers)
        return current == "folder" and change.before is None and self._is_emptied(change.path)

    def _is_emptied(self, path: str) -> bool:
        """Whether this change removes everything in a folder."""
        with open_beneath(self._root_fd, path.split("/")) as fd:
            for name in os.listdir(fd):
                inner = f"{path}/{name}"
                state = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if not (self._is_emptied(inner) if stat.S_ISDIR(state.st_mode) else inner in self._removed):
                    return False
        return True

    def _read_current(self, change: FileChange) -> _Current:
        """Return what a path is now. A file is read only if it has the size of the old or of the new version."""
        *parents, name = change.path.split("/")
        try:
            with open_beneath(self._root_fd, parents) as fd:
                if os.fstat(fd).st_dev != self._device:
                    return "other"
                return self._read_entry(fd, name, change)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            return "blocked"
        except OSError as error:
            if error.errno == errno.ELOOP:
                return "blocked"
            raise

    def _read_entry(self, fd: int, name: str, change: FileChange) -> _Current:
        state = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(state.st_mode):
            return "folder"
        if stat.S_ISLNK(state.st_mode):
            return "link", hash_object(BLOB_KIND, os.fsencode(os.readlink(name, dir_fd=fd))).hex()
        sizes = {
            self._objects.read_size(bytes.fromhex(file.oid))
            for file in (change.before, change.after)
            if file is not None
        }
        if not stat.S_ISREG(state.st_mode) or state.st_size not in sizes:
            return "other"
        with open(os.open(name, FILE, dir_fd=fd), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "other"
            data = file.read(state.st_size + 1)
        return "executable" if state.st_mode & 0o100 else "file", hash_object(BLOB_KIND, data).hex()

    def write(self) -> tuple[str, ...]:
        """Write every path; return those that somebody changed, which are not overwritten. Idempotent."""
        skipped: list[str] = []
        # Removals first: a file may replace a folder, and a folder a file.
        for change in sorted(self._changes, key=lambda change: (change.after is not None, change.path)):
            try:
                is_done = self._write_path(change)
            except OSError as error:
                if error.errno not in _IN_THE_WAY:
                    raise
                is_done = False
            if not is_done:
                skipped.append(change.path)
        self._sync()
        return tuple(skipped)

    def _write_path(self, change: FileChange) -> bool:
        current = self._read_current(change)
        if current == _content_of(change.after):
            return True
        if current != _content_of(change.before) and not (current == "folder" and self._may_write(change)):
            return False
        *parents, name = change.path.split("/")
        if change.after is None:
            with open_beneath(self._root_fd, parents) as fd:
                os.unlink(name, dir_fd=fd)
            self._step("path removed")
            self._remove_empty(parents)
            return True
        with open_beneath(self._root_fd, parents, enter=make_folder) as fd:
            if os.fstat(fd).st_dev != self._device:
                return False
            if current == "folder":
                _remove_empty_folder(fd, name)
            if change.change == "mode":
                _change_mode(fd, name, change.after)
            else:
                self._replace(fd, name, change.after)
        return True

    def _replace(self, fd: int, name: str, file: KeptFile) -> None:
        """Write a file or link under a temporary name, and rename it."""
        data = self._objects.get(bytes.fromhex(file.oid))
        # Always a new file: the old one may be a hard link to a file outside of the workspace.
        if file.kind == "link":
            os.symlink(data, os.fsencode(self._temporary), dir_fd=fd)
        else:
            with open(os.open(self._temporary, _CREATE, _mode_of(file), dir_fd=fd), "wb") as target:
                target.write(data)
                target.flush()
                _keep_permissions(fd, name, target.fileno(), file)
                if self._syncs_each:
                    os.fsync(target.fileno())
        self._step("file written")
        # Renaming is atomic: whoever opens the path reads the complete old or the complete new content.
        os.rename(self._temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        self._step("file renamed")

    def _remove_empty(self, parents: Sequence[str]) -> None:
        """Remove folders that have become empty, innermost first."""
        for depth in range(len(parents), 0, -1):
            try:
                with open_beneath(self._root_fd, parents[: depth - 1]) as fd:
                    os.rmdir(parents[depth - 1], dir_fd=fd)
            except OSError:
                return  # it is not empty

    def remove_temporary(self) -> None:
        """Remove the temporary file that a crash has left."""
        for folder in {change.path.rpartition("/")[0] for change in self._changes}:
            with (
                suppress(FileNotFoundError, NotADirectoryError),
                open_beneath(self._root_fd, folder.split("/") if folder else []) as fd,
            ):
                os.unlink(self._temporary, dir_fd=fd)

    def _sync(self) -> None:
        if self._syncs_each:
            for folder in {change.path.rpartition("/")[0] for change in self._changes}:
                with (
                    suppress(FileNotFoundError, NotADirectoryError),
                    open_beneath(self._root_fd, folder.split("/") if folder else []) as fd,
                ):
                    os.fsync(fd)
        else:
            os.sync()
        self._step("folders synced")


def _content_of(file: KeptFile | None) -> _Content | None:
    return None if file is None else (file.kind, file.oid)


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _mode_of(file: KeptFile) -> int:
    return 0o777 if file.kind == "executable" else 0o666


def _keep_permissions(fd: int, name: str, target_fd: int, file: KeptFile) -> None:
    """Give a new file the owner and permissions of the file that it replaces, executable only if its kind is."""
    try:
        state = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        state = None
    owner = os.fstat(fd) if state is None else state
    if os.geteuid() == 0 and owner.st_uid:
        os.fchown(target_fd, owner.st_uid, owner.st_gid)
    if state is not None and stat.S_ISREG(state.st_mode):
        os.fchmod(target_fd, _permissions(state.st_mode, file))


def _permissions(mode: int, file: KeptFile) -> int:
    """Return the permissions with those to execute set by the file's kind, for everyone who may read."""
    mode &= 0o777
    return mode | (mode & 0o444) >> 2 if file.kind == "executable" else mode & ~0o111


def _change_mode(fd: int, name: str, file: KeptFile) -> None:
    with open_descriptor(name, FILE, dir_fd=fd) as target_fd:
        os.fchmod(target_fd, _permissions(os.fstat(target_fd).st_mode, file))


def _remove_empty_folder(fd: int, name: str) -> None:
    """Remove a folder that contains only folders."""
    with open_descriptor(name, FOLDER, dir_fd=fd) as inner:
        for child in os.listdir(inner):
            _remove_empty_folder(inner, child)
    os.rmdir(name, dir_fd=fd)
