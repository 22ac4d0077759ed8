"""Walk, copy and remove folders that other programs may change meanwhile, without following links.

A script can replace any name in its workspace with a link at any moment. So no path of several names is passed to the
system: each name is opened relative to the descriptor of its folder, with `O_NOFOLLOW`. Entries that were removed or
replaced after they were listed are skipped. Uses only the standard library.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open a folder, never through a link."""

FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""Flags that open a file for reading, never through a link and without waiting for the writer of a pipe."""

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_REPLACED: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a name that was removed, or replaced by a link, after its folder was listed."""

_MAX_OPEN_DEPTH: Final = 16
"""Folders at this depth or deeper are closed while the walk is below them, and reopened by `..`."""

_FICLONE: Final = 0x40049409
"""The ioctl request by which two files share blocks; see ioctl_ficlone(2)."""


@dataclass(slots=True, eq=False)
class Folder:
    """A folder between the top of a walk and the current entry.

    Attributes:
        name: Its name in the parent folder.
        parent: The parent folder; None for the top of the walk.
        fd: Its descriptor; -1 while it is closed.
        names: Names that are not yet visited, in reverse order.
        folders: Names of subfolders that are not yet entered.
    """

    name: str = ""
    parent: Folder | None = None
    fd: int = -1
    depth: int = 0
    names: list[str] = field(default_factory=list[str])
    folders: deque[str] = field(default_factory=deque[str])
    _path: str | None = None
    _identity: tuple[int, int] | None = None

    @property
    def path(self) -> str:
        """The path relative to the top of the walk, with forward slashes; empty for the top. O(depth)."""
        if self._path is None:
            self._path = "/".join(self.parts)
        return self._path

    @property
    def parts(self) -> tuple[str, ...]:
        """The names in the path from the top of the walk. O(depth)."""
        parts: list[str] = []
        folder = self
        while folder.parent is not None:
            parts.append(folder.name)
            folder = folder.parent
        return tuple(reversed(parts))

    def suspend(self) -> None:
        """Close the descriptor of a deep folder while the walk is below it, to limit the open descriptors."""
        if self.depth >= _MAX_OPEN_DEPTH:
            if self._identity is None:
                self._identity = identify(os.fstat(self.fd))
            os.close(self.fd)
            self.fd = -1

    def resume(self, fd: int) -> bool:
        """Take a newly opened descriptor; if it belongs to another folder, close it and return False."""
        if identify(os.fstat(fd)) != self._identity:
            os.close(fd)
            return False
        self.fd = fd
        return True


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One entry of a folder.

    Attributes:
        folder: The folder; its descriptor is open only until the walk yields the next entry.
        state: The result of `lstat`.
    """

    folder: Folder
    name: str
    state: os.stat_result

    @property
    def folder_fd(self) -> int:
        """The descriptor of the folder; open only until the walk yields the next entry."""
        return self.folder.fd

    @property
    def path(self) -> str:
        """The path relative to the top of the walk, with forward slashes. O(depth)."""
        path = self.folder.path
        return f"{path}/{self.name}" if path else self.name

    @property
    def is_folder(self) -> bool:
        """Whether the entry is a folder, not a link to one."""
        return stat.S_ISDIR(self.state.st_mode)

    @property
    def is_file(self) -> bool:
        """Whether the entry is a regular file."""
        return stat.S_ISREG(self.state.st_mode)

    @property
    def is_link(self) -> bool:
        """Whether the entry is a symbolic link."""
        return stat.S_ISLNK(self.state.st_mode)


@contextmanager
def open_descriptor(name: str | os.PathLike[str], flags: int = FOLDER, *, dir_fd: int | None = None) -> Generator[int]:
    """Open a descriptor, and close it at the end of the `with` block."""
    fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_beneath(
    root: int | str | os.PathLike[str],
    names: Sequence[str],
    *,
    enter: Callable[[int, str], int] = lambda fd, name: os.open(name, FOLDER, dir_fd=fd),
) -> Generator[int]:
    """Open the folder at the path `names` below `root`, one name at a time; close it at the end of the `with` block.

    At most two descriptors are open at a time.

    Args:
        root: A descriptor, which is not closed, or a path that does not end in a link.
        names: Single names, without `..`.
        enter: Opens a subfolder; the default does not create a missing one.

    Raises:
        OSError: A folder is missing, is not a folder, or is a link.
    """
    fd = os.dup(root) if isinstance(root, int) else os.open(root, FOLDER)
    try:
        for name in names:
            if name == ".." or "/" in name:
                raise OSError(errno.EINVAL, "Not a single name", name)
            inner = enter(fd, name)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def make_folder(fd: int, name: str) -> int:
    """Open a subfolder and create it if it is missing: an `enter` for `open_beneath`."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=fd)
    return os.open(name, FOLDER, dir_fd=fd)


def read_names(folder: Folder) -> None:
    """List a folder, sorted by name: the default `read` of `walk`."""
    # A set, because a name that is changed during the listing may be listed twice.
    folder.names = sorted(set(os.listdir(folder.fd)), reverse=True)


def read_unsorted(folder: Folder) -> None:
    """List a folder without sorting: a `read` for `walk`."""
    folder.names = os.listdir(folder.fd)


def open_folder(fd: int, name: str) -> int:
    """Open a subfolder, never through a link."""
    return os.open(name, FOLDER, dir_fd=fd)


def raise_unless_replaced(folder: Folder, name: str, error: OSError) -> None:
    """Raise the error unless the entry was removed, or replaced by a link: the default `on_error` of `walk`."""
    if error.errno not in _REPLACED:
        raise error


def ignore_error(folder: Folder, name: str, error: OSError) -> None:
    """Skip entries that cannot be read: an `on_error` for `walk`."""


def walk(
    root_fd: int,
    *,
    enter: Callable[[FolderEntry], bool] = lambda entry: True,
    skip: Callable[[Folder, str], bool] = lambda folder, name: False,
    in_place: bool = False,
    read: Callable[[Folder], None] = read_names,
    opener: Callable[[int, str], int] = open_folder,
    on_error: Callable[[Folder, str, OSError], None] = raise_unless_replaced,
) -> Iterator[FolderEntry]:
    """Yield every entry below a folder, each folder before its entries. O(entries) at any depth.

    Memory is O(names in the folders above the current one). Each folder is listed once; at most 18 descriptors are
    open. If a folder is moved while the walk is below it, its remaining entries may be skipped.

    Args:
        root_fd: Descriptor of the folder; the walk does not close it.
        enter: Returns whether to enter a folder; called after the folder was yielded.
        skip: Called with a folder and a name before `lstat`; True skips the name.
        in_place: Yield the entries of a folder directly after it; otherwise after its siblings.
        read: Fills `names` of a newly opened folder; may add subfolders to `folders` that are entered, but not yielded.
        opener: Opens a subfolder.
        on_error: Called with (folder, name, error) if an entry cannot be read; the name is empty for the folder itself.

    Raises:
        OSError: `on_error` raises it.
    """
    folder = Folder(fd=root_fd)
    try:
        _list(folder, read, on_error)
        while True:
            if folder.folders and (in_place or not folder.names):
                inner = _open_next(folder, opener, on_error)
                if inner is not None:
                    folder = inner
                    _list(folder, read, on_error)
            elif folder.names:
                name = folder.names.pop()
                entry = None if skip(folder, name) else _stat_entry(folder, name, on_error)
                if entry is None:
                    continue
                yield entry
                if entry.is_folder and enter(entry):
                    folder.folders.append(name)
            elif folder.parent is None:
                return
            else:
                folder = _leave(folder, folder.parent)
    finally:
        while folder.parent is not None:
            if folder.fd >= 0:
                os.close(folder.fd)
            folder = folder.parent


def _list(folder: Folder, read: Callable[[Folder], None], on_error: Callable[[Folder, str, OSError], None]) -> None:
    try:
        read(folder)
    except OSError as error:
        on_error(folder, "", error)


def _open_next(
    folder: Folder, opener: Callable[[int, str], int], on_error: Callable[[Folder, str, OSError], None]
) -> Folder | None:
    """Open the next subfolder to enter, and suspend its parent; None if it cannot be opened."""
    inner = Folder(folder.folders.popleft(), folder, depth=folder.depth + 1)
    try:
        inner.fd = opener(folder.fd, inner.name)
    except OSError as error:
        on_error(inner, "", error)
        return None
    folder.suspend()
    return inner


def _stat_entry(folder: Folder, name: str, on_error: Callable[[Folder, str, OSError], None]) -> FolderEntry | None:
    try:
        return FolderEntry(folder, name, os.stat(name, dir_fd=folder.fd, follow_symlinks=False))
    except OSError as error:
        on_error(folder, name, error)
        return None


def _leave(folder: Folder, parent: Folder) -> Folder:
    """Close a folder and return its parent, open; if the folder was moved, the nearest ancestor still in place."""
    is_open = parent.fd >= 0
    if not is_open:
        with suppress(OSError):
            is_open = parent.resume(os.open("..", FOLDER, dir_fd=folder.fd))
    os.close(folder.fd)
    folder.fd = -1
    return parent if is_open else _reopen_nearest(parent)


def _reopen_nearest(folder: Folder) -> Folder:
    """Reopen the folders from the top of the walk down to `folder`; return the last one that is still in place."""
    closed: list[Folder] = []
    while folder.fd < 0 and folder.parent is not None:
        closed.append(folder)
        folder = folder.parent
    for inner in reversed(closed):
        try:
            is_open = inner.resume(os.open(inner.name, FOLDER, dir_fd=folder.fd))
        except OSError:
            break
        if not is_open:
            break
        folder.suspend()
        folder = inner
    return folder


def identify(state: os.stat_result) -> tuple[int, int]:
    """Return the device and inode numbers, which together identify a file or folder."""
    return state.st_dev, state.st_ino


@contextmanager
def suppress_replaced() -> Generator[None]:
    """Suppress the error of an entry that was removed, or replaced by a link, after its folder was listed."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REPLACED:
            raise


def copy(
    source_fd: int,
    target_fd: int,
    *,
    skip: Callable[[FolderEntry], bool] = lambda entry: False,
    retarget: Callable[[str, str], str] = lambda path, target: target,
) -> None:
    """Copy the contents of a folder into an empty one: subfolders, regular files, and links as links. O(bytes).

    Creates no hard links. Copies timestamps, permissions without setuid, and user extended attributes.

    Args:
        skip: Returns whether to skip an entry; the contents of a skipped folder are skipped too.
        retarget: Returns the target of a copied link, given the link's path and its original target.

    Raises:
        OSError: Something cannot be read or written.
    """
    skipped: set[str] = set()

    def enter(entry: FolderEntry) -> bool:
        return entry.path not in skipped

    folders: list[tuple[str, ...]] = []
    for entry in walk(source_fd, enter=enter):
        if skip(entry):
            skipped.add(entry.path)
            continue
        *parents, name = entry.path.split("/")
        with open_beneath(target_fd, parents) as folder:
            if entry.is_folder:
                os.mkdir(name, 0o700, dir_fd=folder)
                folders.append((*parents, name))
            else:
                with suppress_replaced():
                    copy_entry(entry, folder, retarget=retarget)
    # After all entries, because adding an entry changes the folder's times. Inner folders first, because the copied
    # permissions of an outer folder may forbid entering it.
    for names in reversed(folders):
        with suppress_replaced(), open_beneath(source_fd, names) as old, open_beneath(target_fd, names) as new:
            _copy_metadata(old, new, 0o3777)
    _copy_metadata(source_fd, target_fd, 0o3777)


def copy_entry(
    entry: FolderEntry, folder_fd: int, *, retarget: Callable[[str, str], str] = lambda path, target: target
) -> None:
    """Copy a regular file or a link into another folder under the same name; skip other kinds.

    If the file system supports it, the two files share their blocks until one of them changes.

    Raises:
        FileExistsError: The folder already has an entry with this name.
    """
    if entry.is_link:
        try:
            target = os.readlink(entry.name, dir_fd=entry.folder_fd)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return  # the link was replaced by something else
            raise
        os.symlink(retarget(entry.path, target), entry.name, dir_fd=folder_fd)
    elif entry.is_file:
        with open(os.open(entry.name, FILE, dir_fd=entry.folder_fd), "rb") as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                return  # the file was replaced by a pipe or a device
            with open(os.open(entry.name, _CREATE, 0o600, dir_fd=folder_fd), "wb") as target_file:
                if not _clone(source.fileno(), target_file.fileno()):
                    shutil.copyfileobj(source, target_file, 1 << 20)
                target_file.flush()
                _copy_metadata(source.fileno(), target_file.fileno(), 0o777)


def _clone(source_fd: int, target_fd: int) -> bool:
    """Make the target share the blocks of the source; return False if the file system does not support it."""
    try:
        from fcntl import ioctl

        ioctl(target_fd, _FICLONE, source_fd)
    except (ImportError, OSError):
        return False
    return True


def _copy_metadata(source_fd: int, target_fd: int, mode_mask: int) -> None:
    """Copy the permissions in `mode_mask`, timestamps, and the user extended attributes, as far as supported."""
    state = os.fstat(source_fd)
    if hasattr(os, "listxattr"):
        with suppress(OSError):
            for name in os.listxattr(source_fd):
                if name.startswith("user."):
                    os.setxattr(target_fd, name, os.getxattr(source_fd, name))
    os.fchmod(target_fd, stat.S_IMODE(state.st_mode) & mode_mask)
    os.utime(target_fd, ns=(state.st_atime_ns, state.st_mtime_ns))


def remove(path: str | os.PathLike[str], *, should_stop: Callable[[], bool] = lambda: False) -> bool:
    """Remove a folder and its contents, at any depth, with two open descriptors.

    Args:
        should_stop: Called before each entry; if it returns True, the removal stops. Another call continues it.

    Returns:
        Whether the folder was removed completely.
    """
    numbers = count()
    with open_descriptor(path) as root:
        os.fchmod(root, 0o700)
        while names := list_names(root, 1000):
            for name in names:
                if should_stop() or not _remove_or_flatten(root, name, numbers, should_stop):
                    return False
    os.rmdir(path)
    return True


def _remove_or_flatten(root: int, name: str, numbers: Iterator[int], should_stop: Callable[[], bool]) -> bool:
    """Remove an entry of `root`; return False if `should_stop` stopped it.

    Moves the subfolders of a folder to `root`, so that the depth of the tree needs no recursion and no descriptors.
    """
    if not _is_folder(root, name):
        os.unlink(name, dir_fd=root)
        return True
    os.chmod(name, 0o700, dir_fd=root)
    with open_descriptor(name, dir_fd=root) as inner:
        while children := list_names(inner, 1000):
            for child in children:
                if should_stop():
                    return False
                if _is_folder(inner, child):
                    _remove_or_move(inner, child, root, numbers)
                else:
                    os.unlink(child, dir_fd=inner)
    os.rmdir(name, dir_fd=root)
    return True


def _remove_or_move(fd: int, name: str, root: int, numbers: Iterator[int]) -> None:
    """Remove a folder if it is empty; otherwise move it to `root`."""
    try:
        os.rmdir(name, dir_fd=fd)
    except OSError:  # the folder is not empty
        os.chmod(name, 0o700, dir_fd=fd)
        os.rename(name, _find_free_name(root, numbers), src_dir_fd=fd, dst_dir_fd=root)


def _find_free_name(root: int, numbers: Iterator[int]) -> str:
    for number in numbers:
        name = f".removing-{number}"
        try:
            os.stat(name, dir_fd=root, follow_symlinks=False)
        except FileNotFoundError:
            return name
    raise AssertionError("count() never ends")


def _is_folder(fd: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)


def list_names(fd: int, limit: int) -> list[str]:
    """Return at most `limit` names in a folder, unsorted."""
    names: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if len(names) >= limit:
                break
            names.append(entry.name)
    return names
