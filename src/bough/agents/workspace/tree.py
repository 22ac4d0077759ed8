"""Access to the files of a workspace folder by their paths in the sandbox: `/work/a` is `a` in the folder.

A program in the sandbox may replace any name with a link at any time. So links are resolved here, as in the sandbox and
not as on the host, and the resulting path is opened one name after another, without following links.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal, TypeAlias

from bough.execution.base import USUAL_GUARDS, Guards
from bough.execution.process.guarded import changes_repository
from bough.tree import FILE, FOLDER, Folder, open_beneath, raise_unless_replaced, walk

_MAX_LINKS: Final = 40
_MAX_LISTED_NAMES: Final = 20_000
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


EntryKind: TypeAlias = Literal["file", "link", "unreadable"]
"""The kind of an entry found by a walk."""


@dataclass(frozen=True)
class WorkspaceTree:
    """Reads and writes files below a folder, and no others. All methods block.

    All methods raise the errors of the operating system: `FileNotFoundError`, `IsADirectoryError`, `PermissionError`
    (outside the workspace, or guarded), `OSError` (too many links, not a regular file, too large).

    Attributes:
        folder: The folder on the host.
        sandbox_path: The path of the folder in the sandbox.
        max_file_bytes: Maximum size of a file that is read or written.
        guards: The names that must not be written; scripts cannot change them either.
    """

    folder: str
    sandbox_path: str
    max_file_bytes: int = 64 << 20
    guards: Guards = USUAL_GUARDS

    def open(self, path: str) -> BinaryIO:
        """Open a regular file for reading."""
        parts = self.resolve(path)
        if not parts:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        with self._open_parent(parts) as parent:
            file = open(os.open(parts[-1], FILE, dir_fd=parent), "rb")  # noqa: SIM115 - the caller closes it
        try:
            _check_regular(os.fstat(file.fileno()), path)
        except OSError:
            file.close()
            raise
        return file

    def read(self, path: str) -> bytes:
        """Return the content of a regular file, up to `max_file_bytes`; raise `OSError` for a larger file."""
        with self.open(path) as file:
            content = file.read(self.max_file_bytes + 1)
        self._check_size(len(content), path)
        return content

    def walk(self, path: str, *, skip: frozenset[str]) -> Iterator[tuple[str, EntryKind]]:
        """Yield (path relative to the workspace, kind) of the files and links below a folder, sorted by path.

        Links are not followed; pipes, sockets and devices are omitted. A folder is yielded only if it cannot be read.

        Args:
            skip: Names of folders that are not searched.
        """
        start = self.resolve(path)
        unreadable: list[Folder] = []

        def on_error(folder: Folder, name: str, error: OSError) -> None:
            if not isinstance(error, PermissionError):
                raise_unless_replaced(folder, name, error)
            elif folder not in unreadable[-1:]:
                unreadable.append(folder)  # only once, although each of its entries may fail

        try:
            with self._open_folder(start) as root:
                entries = walk(root, enter=lambda entry: entry.name not in skip, on_error=on_error)
                for entry in entries:
                    # Reported before the next entry, so that the names stay sorted.
                    for folder in unreadable:
                        yield "/".join((*start, *folder.parts)) or ".", "unreadable"
                    unreadable.clear()
                    if entry.is_file or entry.is_link:
                        yield "/".join((*start, entry.path)), "file" if entry.is_file else "link"
        except PermissionError:
            yield "/".join(start) or ".", "unreadable"
            return
        for folder in unreadable:
            yield "/".join((*start, *folder.parts)) or ".", "unreadable"

    def write(self, path: str, content: bytes) -> None:
        """Write a file and create its folders. An existing file is overwritten in place, with its owner and mode."""
        self._check_size(len(content), path)
        parts = self._resolve_writable(path)
        with self._open_or_make_folder(parts[:-1]) as parent:
            folder_state = os.fstat(parent)
            fd = os.open(parts[-1], _WRITE_FLAGS, 0o644, dir_fd=parent)
        with open(fd, "wb") as file:
            file_state = os.fstat(fd)
            # Checked by the descriptor: a file that is checked by its name could be replaced before it is opened.
            _check_regular(file_state, path)
            _give_to_folder_owner(fd, file_state, folder_state)
            # Not O_TRUNC, which would empty a file with a second link before the check refuses the file.
            os.ftruncate(fd, 0)
            file.write(content)

    def replace(self, path: str, content: bytes) -> None:
        """Replace a file atomically and create its folders. A reader sees either the old or the new content.

        The new file has the mode of the old file.
        """
        self._check_size(len(content), path)
        parts = self._resolve_writable(path)
        with self._open_or_make_folder(parts[:-1]) as parent:
            old_state = _find_regular(parent, parts[-1], path)
            temporary_name = f".{parts[-1][:200]}.{secrets.token_hex(8)}.new"
            # O_EXCL: a program in the sandbox could have prepared a file or a link of this name.
            fd = os.open(temporary_name, _WRITE_FLAGS | os.O_EXCL, 0o644, dir_fd=parent)
            try:
                with open(fd, "wb") as file:
                    _give_to_folder_owner(fd, os.fstat(fd), os.fstat(parent))
                    if old_state is not None:
                        # Without set-user-id bits, which a script could have set.
                        os.fchmod(fd, old_state.st_mode & 0o777)
                    file.write(content)
                os.rename(temporary_name, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary_name, dir_fd=parent)
                raise

    def stat(self, path: str) -> os.stat_result:
        """Return the `stat` result of a path, with links resolved."""
        parts = self.resolve(path)
        if not parts:
            return os.stat(self.folder)
        with self._open_parent(parts) as parent:
            return os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)

    def list_names(self, path: str) -> list[str]:
        """Return at most 20,000 names in a folder, sorted."""
        with self._open_folder(self.resolve(path)) as folder, os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_MAX_LISTED_NAMES), strict=False)]
        return sorted(names)

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents; do nothing if the folder exists."""
        parts = self.resolve(path)
        if not parts:
            return
        self._check_not_guarded(parts, path)
        with self._open_or_make_folder(parts[:-1]) as parent:
            try:
                os.close(_enter_or_make(parent, parts[-1]))
            except NotADirectoryError as error:
                raise FileExistsError(errno.EEXIST, "File exists", path) from error

    def remove(self, path: str) -> None:
        """Remove a file, a link (not its target), or a folder with its contents.

        Raises:
            ValueError: The path is the workspace, or a folder that contains it.
        """
        if not self._is_in_workspace(path) and self._contains_workspace(path):
            raise ValueError(f"{path} is above the workspace")
        head, name = os.path.split(path.rstrip("/"))
        is_plain = name not in ("", ".", "..") and self._is_in_workspace(head)
        # The last name is not resolved, because the target of a link must not be removed.
        parts = (*self.resolve(head), name) if is_plain else self.resolve(path)
        if not parts:
            raise ValueError(f"{path} is the workspace itself")
        self._check_not_guarded(parts, path)
        with self._open_parent(parts) as parent:
            if stat.S_ISDIR(os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                shutil.rmtree(parts[-1], dir_fd=parent)
            else:
                os.unlink(parts[-1], dir_fd=parent)

    def resolve(self, path: str) -> tuple[str, ...]:
        """Return the names of a path relative to the folder, with links resolved; the path need not exist."""
        pending = self._split(path)[::-1]
        resolved: list[str] = []
        link_count = 0
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                # Links before it are already resolved, as in the kernel: `link/..` is the parent of the target.
                if not resolved:
                    raise PermissionError(errno.EACCES, "Outside the workspace", path)
                resolved.pop()
                continue
            target = self._read_link((*resolved, name))
            if target is None:
                resolved.append(name)
                continue
            link_count += 1
            if link_count > _MAX_LINKS:  # links can form a circle
                raise OSError(errno.ELOOP, "Too many levels of symbolic links", path)
            if target.startswith("/"):
                # An absolute target is a path in the sandbox; `_split` refuses a target outside the workspace.
                resolved = []
                target = "/".join(self._split(target))
            pending += target.split("/")[::-1]
        return tuple(resolved)

    def _split(self, path: str) -> list[str]:
        """Return the names of an absolute path below the workspace."""
        if "\0" in path or not path.startswith("/"):
            raise ValueError(f"{path[:200]!r} is not an absolute path")
        if not self._is_in_workspace(path):
            raise PermissionError(errno.EACCES, "Outside the workspace", path)
        return path[len(self.sandbox_path) :].split("/")

    def _is_in_workspace(self, path: str) -> bool:
        return path == self.sandbox_path or path.startswith(self.sandbox_path + "/")

    def _contains_workspace(self, path: str) -> bool:
        return path.startswith("/") and (self.sandbox_path + "/").startswith(os.path.normpath(path).rstrip("/") + "/")

    def _read_link(self, parts: tuple[str, ...]) -> str | None:
        """Return the target of a link; None if the path does not exist or is not a link."""
        try:
            with self._open_parent(parts) as parent:
                return os.readlink(parts[-1], dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:  # not a link
                return None
            raise

    def _resolve_writable(self, path: str) -> tuple[str, ...]:
        parts = self.resolve(path)
        if not parts:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        self._check_not_guarded(parts, path)
        return parts

    def _check_not_guarded(self, parts: tuple[str, ...], path: str) -> None:
        """Raise `PermissionError` for a guarded path, or one inside the metadata of a git repository."""
        is_guarded = self.guards.covers(parts)
        if not is_guarded and ".git" in self.guards.names:
            # Not only `.git`: a repository of any name has hooks and settings that start programs.
            with self._open_folder(()) as root:
                is_guarded = changes_repository(root, parts)
        if is_guarded:
            raise PermissionError(errno.EACCES, "Guarded: it affects later runs", path)

    def _check_size(self, size: int, path: str) -> None:
        if size > self.max_file_bytes:
            raise OSError(errno.EFBIG, f"Larger than {self.max_file_bytes} bytes", path)

    def _open_parent(self, parts: tuple[str, ...]) -> AbstractContextManager[int]:
        return self._open_folder(parts[:-1])

    def _open_folder(self, parts: tuple[str, ...]) -> AbstractContextManager[int]:
        return open_beneath(self.folder, parts)

    def _open_or_make_folder(self, parts: tuple[str, ...]) -> AbstractContextManager[int]:
        return open_beneath(self.folder, parts, enter=_enter_or_make)


def _enter_or_make(parent: int, name: str) -> int:
    """Open a folder, which is created if it does not exist."""
    try:
        return os.open(name, FOLDER, dir_fd=parent)
    except FileNotFoundError:
        os.mkdir(name, 0o755, dir_fd=parent)
    new_folder = os.open(name, FOLDER, dir_fd=parent)
    _give_to_folder_owner(new_folder, os.fstat(new_folder), os.fstat(parent))
    return new_folder


def _give_to_folder_owner(fd: int, file_state: os.stat_result, folder_state: os.stat_result) -> None:
    """Give a file created as root to the owner of its parent folder, so that sandboxed commands can write it."""
    # Not to the owner of the top folder, which a server changes while a command runs.
    if os.geteuid() == 0 and file_state.st_uid == 0 and folder_state.st_uid != 0:
        os.fchown(fd, folder_state.st_uid, folder_state.st_gid)


def _find_regular(folder: int, name: str, path: str) -> os.stat_result | None:
    """Return the `stat` result of a regular file; None if it does not exist."""
    try:
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _check_regular(state, path)
    return state


def _check_regular(state: os.stat_result, path: str) -> None:
    """Raise an error unless a file is a regular file with a single link."""
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file", path)
    # The other link may be outside the workspace or guarded, and writing would change the file there, too.
    if state.st_nlink > 1:
        raise PermissionError(errno.EACCES, "More than one link leads to it", path)
