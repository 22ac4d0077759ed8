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
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Final

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a folder is opened: as a folder, never through a link."""

FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
"""How a file is read: never through a link, and without waiting for the other end of a pipe."""

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_REPLACED: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a name that was removed, or replaced by a link, after its folder was listed."""

_FICLONE: Final = 0x40049409


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One name in a folder.

    Attributes:
        folder_fd: Descriptor of its folder; open only until the next entry.
        path: Relative to the top of the walk, with forward slashes.
        state: As `lstat` returns it.
    """

    folder_fd: int
    name: str
    path: str
    state: os.stat_result

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


def walk(root_fd: int, *, enter: Callable[[FolderEntry], bool] = lambda entry: True) -> Iterator[FolderEntry]:
    """Yield every entry below a folder, each folder before what is in it. O(entries), two open descriptors.

    The entries of one folder follow each other, sorted by name.

    Args:
        enter: Whether to walk into a folder; called after it was yielded.

    Raises:
        OSError: A folder cannot be read; one that was removed or replaced by a link since its name was read is skipped.
    """
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        names = waiting.pop()
        with suppress_replaced(), open_beneath(root_fd, names) as folder:
            entries = list(list_folder(folder, "/".join(names)))
            yield from entries
            waiting += [(*names, entry.name) for entry in reversed(entries) if entry.is_folder and enter(entry)]


def list_folder(folder_fd: int, path: str = "") -> Iterator[FolderEntry]:
    """Yield the entries of one folder, sorted by name.

    Args:
        path: Of the folder, relative to the top of the walk.
    """
    for name in sorted(set(os.listdir(folder_fd))):  # a name that moves meanwhile may be listed twice
        with suppress_replaced():
            state = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            yield FolderEntry(folder_fd, name, f"{path}/{name}" if path else name, state)


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
        while names := _names(root, 1000):
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
        while children := _names(inner, 1000):
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


def _names(fd: int, limit: int) -> list[str]:
    names: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if len(names) >= limit:
                break
            names.append(entry.name)
    return names
