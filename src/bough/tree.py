"""Folders that somebody else may change at any moment: walked, copied and removed without following a link.

A script can turn every name in its workspace into a link between two looks at it. So no path of more than one name is
given to the system here: each name is opened in the descriptor of its folder, and never through a link. What changed in
between is skipped. Only the standard library is used.
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
"""How a folder is opened: as a folder, never through a link."""

FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""How a file is read: never through a link, and without waiting for the other end of a pipe."""

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_REPLACED: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a name that was removed, or replaced by a link, after its folder was listed."""

_KEPT_OPEN: Final = 16
"""How many folders above the current one stay open in a walk; deeper ones are opened again by `..`."""

_FICLONE: Final = 0x40049409


@dataclass(slots=True, eq=False)
class Folder:
    """A folder that a walk is in, or below.

    Attributes:
        name: In the folder above.
        above: None for the top of the walk.
        fd: Its descriptor, open only while the walk is in it; -1 while it is closed.
        names: What is still to be looked at, in reverse order.
        folders: Names of folders that are still to be entered.
    """

    name: str = ""
    above: Folder | None = None
    fd: int = -1
    depth: int = 0
    names: list[str] = field(default_factory=list[str])
    folders: deque[str] = field(default_factory=deque[str])
    _path: str | None = None
    _identity: tuple[int, int] | None = None

    @property
    def path(self) -> str:
        """Relative to the top of the walk, with forward slashes; empty for the top. O(depth)."""
        if self._path is None:
            self._path = "/".join(self.parts)
        return self._path

    @property
    def parts(self) -> tuple[str, ...]:
        """The names that lead to it from the top of the walk. O(depth)."""
        parts: list[str] = []
        folder = self
        while folder.above is not None:
            parts.append(folder.name)
            folder = folder.above
        return tuple(reversed(parts))

    def suspend(self) -> None:
        """Close the descriptor, if it lies so deep that the walk does not keep it open for the folders below."""
        if self.depth >= _KEPT_OPEN:
            if self._identity is None:
                self._identity = identity_of(os.fstat(self.fd))
            os.close(self.fd)
            self.fd = -1

    def resume(self, fd: int) -> bool:
        """Take a descriptor again; return false and close it if it is another folder's."""
        if identity_of(os.fstat(fd)) != self._identity:
            os.close(fd)
            return False
        self.fd = fd
        return True


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One name in a folder.

    Attributes:
        folder: Its descriptor is open only until the next entry.
        state: As `lstat` returns it.
    """

    folder: Folder
    name: str
    state: os.stat_result

    @property
    def folder_fd(self) -> int:
        """Descriptor of its folder; open only until the next entry."""
        return self.folder.fd

    @property
    def path(self) -> str:
        """Relative to the top of the walk, with forward slashes. O(depth)."""
        path = self.folder.path
        return f"{path}/{self.name}" if path else self.name

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, not a link to one."""
        return stat.S_ISDIR(self.state.st_mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.state.st_mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.state.st_mode)


@contextmanager
def open_descriptor(name: str | os.PathLike[str], flags: int = FOLDER, *, dir_fd: int | None = None) -> Generator[int]:
    """Open a descriptor for the length of a `with` block."""
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
    """Open the folder that `names` lead to below `root`, name by name, for the length of a `with` block.

    At most two descriptors are open at a time.

    Args:
        root: A descriptor, which stays open, or a path that does not end in a link.
        names: Single names, without `..`.
        enter: Opens one folder in another; the default makes nothing.

    Raises:
        OSError: One of them is missing, is not a folder, or is a link.
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
    """Open a folder in another, made where it is missing: an `enter` of `open_beneath`."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=fd)
    return os.open(name, FOLDER, dir_fd=fd)


def read_names(folder: Folder) -> None:
    """List a folder, sorted by name: the usual `read` of `walk`."""
    folder.names = sorted(set(os.listdir(folder.fd)), reverse=True)  # a name that moves meanwhile may be listed twice


def read_unsorted(folder: Folder) -> None:
    """List a folder in no order: a `read` of `walk`."""
    folder.names = os.listdir(folder.fd)


def open_folder(fd: int, name: str) -> int:
    """Open a folder in another, never through a link."""
    return os.open(name, FOLDER, dir_fd=fd)


def raise_unless_replaced(folder: Folder, name: str, error: OSError) -> None:
    """Ignore that a name was removed, or replaced by a link: the usual `on_error` of `walk`."""
    if error.errno not in _REPLACED:
        raise error


def ignore_error(folder: Folder, name: str, error: OSError) -> None:
    """Leave out what cannot be read: an `on_error` of `walk`."""


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
    """Yield every entry below a folder, each folder before what is in it. O(entries) at any depth.

    Memory is O(names in the folders above the current one). A folder is opened once; at most 18 descriptors are open.
    A folder that is moved while the walk is below it may be left out, with what is still to come of it.

    Args:
        root_fd: Stays open until the walk is over.
        enter: Whether to walk into a folder; called after it was yielded.
        skip: Called before a name is looked at; true leaves it out.
        in_place: Whether what is in a folder follows the folder; otherwise it follows the entries beside the folder.
        read: Fills `names` of a folder that was opened, and `folders` with what is to be entered and not yielded.
        opener: Opens a folder in another.
        on_error: Receives (folder, name, error) of what cannot be read; the name is empty for the folder itself.

    Raises:
        OSError: `on_error` raises it.
    """
    folder = Folder(fd=root_fd)
    try:
        _read(folder, read, on_error)
        while True:
            if folder.folders and (in_place or not folder.names):
                if (inner := _open(folder, opener, on_error)) is not None:
                    folder = inner
                    _read(folder, read, on_error)
            elif folder.names:
                name = folder.names.pop()
                entry = None if skip(folder, name) else _look_at(folder, name, on_error)
                if entry is None:
                    continue
                yield entry
                if entry.is_folder and enter(entry):
                    folder.folders.append(name)
            elif folder.above is None:
                return
            else:
                folder = _leave(folder, folder.above)
    finally:
        while folder.above is not None:
            if folder.fd >= 0:
                os.close(folder.fd)
            folder = folder.above


def _read(folder: Folder, read: Callable[[Folder], None], on_error: Callable[[Folder, str, OSError], None]) -> None:
    try:
        read(folder)
    except OSError as error:
        on_error(folder, "", error)


def _open(
    folder: Folder, opener: Callable[[int, str], int], on_error: Callable[[Folder, str, OSError], None]
) -> Folder | None:
    inner = Folder(folder.folders.popleft(), folder, depth=folder.depth + 1)
    try:
        inner.fd = opener(folder.fd, inner.name)
    except OSError as error:
        on_error(inner, "", error)
        return None
    folder.suspend()
    return inner


def _look_at(folder: Folder, name: str, on_error: Callable[[Folder, str, OSError], None]) -> FolderEntry | None:
    try:
        return FolderEntry(folder, name, os.stat(name, dir_fd=folder.fd, follow_symlinks=False))
    except OSError as error:
        on_error(folder, name, error)
        return None


def _leave(folder: Folder, above: Folder) -> Folder:
    """Close a folder and return the one above it, or, where the folder was moved, the nearest one still in place."""
    is_open = above.fd >= 0
    if not is_open:
        with suppress(OSError):
            is_open = above.resume(os.open("..", FOLDER, dir_fd=folder.fd))
    os.close(folder.fd)
    folder.fd = -1
    return above if is_open else _find_nearest(above)


def _find_nearest(folder: Folder) -> Folder:
    """Return the innermost folder of those that lead to this one that is still in its place, open."""
    closed: list[Folder] = []
    while folder.fd < 0 and folder.above is not None:
        closed.append(folder)
        folder = folder.above
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


def identity_of(state: os.stat_result) -> tuple[int, int]:
    """Return what tells a file or folder from every other one: device and number."""
    return state.st_dev, state.st_ino


@contextmanager
def suppress_replaced() -> Generator[None]:
    """Ignore that a name was removed, or replaced by a link, after its folder was listed."""
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
    """Copy what is below one folder into another, empty one: folders, regular files, links as links. O(bytes).

    Nothing is hard-linked. Times, permissions without setuid, and extended attributes of users are copied.

    Args:
        skip: Whether to leave an entry out; a folder with everything in it.
        retarget: Returns the target of a copied link, from the link's path and its target.

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
    for names in reversed(folders):  # inner folders first: entering a folder needs its permissions, writing its times
        with suppress_replaced(), open_beneath(source_fd, names) as old, open_beneath(target_fd, names) as new:
            _copy_state(old, new, 0o3777)
    _copy_state(source_fd, target_fd, 0o3777)


def copy_entry(
    entry: FolderEntry, folder_fd: int, *, retarget: Callable[[str, str], str] = lambda path, target: target
) -> None:
    """Copy a regular file or a link into another folder under its name; other kinds are left out.

    The blocks of a file are shared until one of the two changes, where the file system can.

    Raises:
        FileExistsError: There is something of that name.
    """
    if entry.is_link:
        try:
            target = os.readlink(entry.name, dir_fd=entry.folder_fd)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return  # it was replaced by something else
            raise
        os.symlink(retarget(entry.path, target), entry.name, dir_fd=folder_fd)
    elif entry.is_file:
        with open(os.open(entry.name, FILE, dir_fd=entry.folder_fd), "rb") as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                return  # it was replaced by a pipe or a device
            with open(os.open(entry.name, _CREATE, 0o600, dir_fd=folder_fd), "wb") as target_file:
                if not _clone(source.fileno(), target_file.fileno()):
                    shutil.copyfileobj(source, target_file, 1 << 20)
                target_file.flush()
                _copy_state(source.fileno(), target_file.fileno(), 0o777)


def _clone(source_fd: int, target_fd: int) -> bool:
    try:
        from fcntl import ioctl

        ioctl(target_fd, _FICLONE, source_fd)
    except (ImportError, OSError):
        return False
    return True


def _copy_state(source_fd: int, target_fd: int, mode: int) -> None:
    """Copy permissions within `mode`, times, and extended attributes of users, as far as the file system has them."""
    state = os.fstat(source_fd)
    if hasattr(os, "listxattr"):
        with suppress(OSError):
            for name in os.listxattr(source_fd):
                if name.startswith("user."):
                    os.setxattr(target_fd, name, os.getxattr(source_fd, name))
    os.fchmod(target_fd, stat.S_IMODE(state.st_mode) & mode)
    os.utime(target_fd, ns=(state.st_atime_ns, state.st_mtime_ns))


def remove(path: str | os.PathLike[str], *, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Remove the folder `path` and everything in it, at any depth, with two open descriptors.

    Args:
        is_over: Called before each entry; once it returns true, the rest is left for another call.

    Returns:
        Whether all of it is gone.
    """
    numbers = count()
    with open_descriptor(path) as root:
        os.fchmod(root, 0o700)
        while names := list_names(root, 1000):
            for name in names:
                if is_over() or not _remove_or_flatten(root, name, numbers, is_over):
                    return False
    os.rmdir(path)
    return True


def _remove_or_flatten(root: int, name: str, numbers: Iterator[int], is_over: Callable[[], bool]) -> bool:
    """Remove `name`; of a folder, move its folders up to `root`, so that depth costs neither stack nor descriptors."""
    if not _is_folder(root, name):
        os.unlink(name, dir_fd=root)
        return True
    os.chmod(name, 0o700, dir_fd=root)
    with open_descriptor(name, dir_fd=root) as inner:
        while children := list_names(inner, 1000):
            for child in children:
                if is_over():
                    return False
                if _is_folder(inner, child):
                    _remove_or_move(inner, child, root, numbers)
                else:
                    os.unlink(child, dir_fd=inner)
    os.rmdir(name, dir_fd=root)
    return True


def _remove_or_move(fd: int, name: str, root: int, numbers: Iterator[int]) -> None:
    """Remove a folder if it is empty, else move it to `root`."""
    try:
        os.rmdir(name, dir_fd=fd)
    except OSError:
        os.chmod(name, 0o700, dir_fd=fd)
        os.rename(name, _free_name(root, numbers), src_dir_fd=fd, dst_dir_fd=root)


def _free_name(root: int, numbers: Iterator[int]) -> str:
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
    """Return names in a folder, in no order, at most `limit`."""
    names: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if len(names) >= limit:
                break
            names.append(entry.name)
    return names
