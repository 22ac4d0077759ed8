"""The disk use of a run: the files in its folders, and the deleted files that its processes still hold."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Final

from bough.execution.base import ExecutionLimits
from bough.execution.process.child import list_descendants, read_numbers
from bough.tree import identity_of, ignore_error, open_descriptor, read_unsorted, walk

_FOLDER_BYTES: Final = 4096
_NAME_BYTES: Final = 512
_PIDFD_GETFD: Final = 438
_DELETED: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+) .* \(deleted\)$", re.M)
"""A mapping of a deleted file: addresses, device and inode."""

_PRIVATE: Final = ("/tmp", "/dev/shm")  # noqa: S108
"""The mount points of a run's file systems in memory, on rungs that can create them."""

_UNCOUNTED_SOCKETS: Final = 64
"""This many are not counted_bytes: event loops and pools of processes have some, which are empty."""

_TMPFS: Final = 0x01021994

_IN_FLIGHT: Final = re.compile(rb"^scm_fds:\s*(\d+)$", re.M)


class DiskUse:
    """The bytes in use below some folders, counted_bytes in slices of time: a tree may be of any depth and size.

    A file counts with its blocks, once, and 512 bytes for each name; a folder with 4,096 at least.

    Args:
        limits: The run's limits; what cannot be measured counts as much as they allow.

    Attributes:
        counted_bytes: The bytes that the current pass has counted_bytes so far, or that the last complete pass counted_bytes.
        sockets: Number of the processes' sockets at the latest call of `total_bytes`.
    """

    def __init__(self, folders: Sequence[str], limits: ExecutionLimits | None = None) -> None:
        self._folders = folders
        self._limits = limits or ExecutionLimits()
        self._entry_sizes: Iterator[int] | None = None
        self.counted_bytes = 0
        self._latest_bytes = 0
        self._seen_links: set[tuple[int, int]] = set()
        self._earlier_in_flight: dict[int, int] = {}
        self.socket_count = 0

    @property
    def socket_bytes(self) -> int:
        """The most bytes that the buffers of these sockets may take."""
        return max(0, self.socket_count - _UNCOUNTED_SOCKETS) * _buffer_bytes()

    def measure(self) -> int:
        """Return the bytes counted_bytes by one whole pass. Blocks; O(entries)."""
        while not self.advance(3600.0):
            pass
        return self._latest_bytes

    def advance(self, seconds: float) -> bool:
        """Count for some seconds; return whether a pass is complete. Until it is, `counted_bytes` is a lower bound."""
        end = time.monotonic() + seconds
        if self._entry_sizes is None:
            self._entry_sizes, self.counted_bytes = self._iterate_sizes(), 0
            self._seen_links.clear()
        for number, entry_bytes in enumerate(self._entry_sizes):
            self.counted_bytes += entry_bytes
            if number % 64 == 63 and time.monotonic() > end:
                return False
        self._entry_sizes, self._latest_bytes = None, self.counted_bytes
        return True

    def total_bytes(self, pid: int, *, exclude: frozenset[int] = frozenset()) -> int:
        """Return the bytes of the latest pass plus those of deleted files that the processes below `pid` hold. Blocks.

        A file is held by a descriptor, open or sent and not yet received, or by a mapping. A file that cannot
        be examined counts with the largest possible size, and so does a process that hides its files.

        Args:
            exclude: Sockets whose waiting descriptors were sent by this process.
        """
        devices = {os.stat(folder).st_dev for folder in self._folders if os.path.isdir(folder)}
        blocks_by_identity: dict[tuple[int, int], int] = {}
        in_flight: dict[int, int] = {}
        sockets: set[int] = set()
        for member in list_descendants(pid):
            try:
                for state in self._stat_descriptors(member, in_flight):
                    if stat.S_ISSOCK(state.st_mode):
                        sockets.add(state.st_ino)
                    if stat.S_ISREG(state.st_mode) and not state.st_nlink and state.st_dev in devices:
                        blocks_by_identity[identity_of(state)] = state.st_blocks * 512
            except PermissionError:
                if _is_first_process(member):
                    continue  # bough's own, which hides from the program
                return self._latest_bytes + self._limits.open_files * self._limits.file_size_bytes
            for identity, size in self._list_mapped_deleted(member):
                if identity[0] in devices:
                    blocks_by_identity.setdefault(identity, size)
        # A descriptor is in flight for microseconds; if it is there twice in a row, the program keeps it there.
        stuck_count = sum(
            min(in_flight[number], self._earlier_in_flight[number])
            for number in (in_flight.keys() & self._earlier_in_flight.keys()) - exclude
        )
        self._earlier_in_flight = in_flight
        self.socket_count = len(sockets)
        return self._latest_bytes + sum(blocks_by_identity.values()) + stuck_count * self._limits.file_size_bytes

    def count_private_names(self, pid: int) -> int:
        """Return the number of names in the fullest of a run's file systems in memory; 0 without one.

        The kernel bounds their bytes, exclude does not count the kilobyte of its memory that an empty file takes. All
        processes of a run see the same file systems; a process that has just exited is skipped. Blocks.
        """
        host_devices = {os.stat(path).st_dev for path in (*self._folders, *_PRIVATE) if os.path.isdir(path)}
        for member in list_descendants(pid):
            with suppress(OSError):
                roots = [f"/proc/{member}/root{path}" for path in _PRIVATE]
                private_roots = [
                    path for path in roots if os.stat(path).st_dev not in host_devices and _is_in_memory(path)
                ]
                states = [os.statvfs(path) for path in private_roots]
                return max((state.f_files - state.f_ffree for state in states), default=0)
        return 0

    def _iterate_sizes(self) -> Iterator[int]:
        for folder in self._folders:
            with suppress(FileNotFoundError), open_descriptor(folder) as root:
                device = os.fstat(root).st_dev
                entries = walk(
                    root,
                    enter=lambda entry, device=device: entry.state.st_dev == device,
                    read=read_unsorted,
                    on_error=ignore_error,
                )
                for entry in entries:
                    yield self._entry_bytes(entry.state)

    def _entry_bytes(self, state: os.stat_result) -> int:
        """Return the bytes that an entry counts."""
        size = state.st_blocks * 512
        if stat.S_ISDIR(state.st_mode):
            return max(size, _FOLDER_BYTES)
        if state.st_nlink > 1:
            if identity_of(state) in self._seen_links:
                return _NAME_BYTES
            self._seen_links.add(identity_of(state))
        return size + _NAME_BYTES

    def _stat_descriptors(self, pid: int, in_flight: dict[int, int]) -> Iterator[os.stat_result]:
        """Yield the `stat` result of each descriptor of a process, and count descriptors on the way to its sockets.

        All threads of a process share them: the system-call filter lets no thread have its own.

        Raises:
            PermissionError: They cannot be read.
        """
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except PermissionError:
            yield from _stat_hidden_descriptors(pid, self._limits.open_files)
            return
        except OSError:
            return
        for name in names:
            with suppress(OSError):
                state = os.stat(f"{folder}/{name}")
                if stat.S_ISSOCK(state.st_mode):
                    waiting = _count_in_flight(f"/proc/{pid}/fdinfo/{name}")
                    if waiting and not _is_first_process(pid):  # that one is sent descriptors from outside
                        in_flight[state.st_ino] = waiting
                yield state

    def _list_mapped_deleted(self, pid: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield (device, inode) and bytes of each deleted file that a process has mapped."""
        try:
            with open(f"/proc/{pid}/maps", "rb") as source:
                text = source.read()
        except OSError:
            return
        for begin, end, major, minor, number in _DELETED.findall(text) if b" (deleted)\n" in text else ():
            try:
                state = os.stat(f"/proc/{pid}/map_files/{begin.decode()}-{end.decode()}")
                yield identity_of(state), state.st_blocks * 512
            except OSError:  # only root may read it
                device = os.makedev(int(major, 16), int(minor, 16))
                yield (device, int(number)), self._limits.file_size_bytes


def _is_in_memory(path: str) -> bool:
    """Whether a path is on a file system in memory."""
    state = (ctypes.c_long * 32)()  # the first is its type
    return ctypes.CDLL(None).statfs(os.fsencode(path), state) == 0 and state[0] == _TMPFS


@cache
def _buffer_bytes() -> int:
    """Return the memory that unread data of one socket can take; the system-call filter lets no program raise it."""
    numbers = read_numbers("/proc/sys/net/core/wmem_default")
    return numbers[0] if numbers else 212_992


def max_names(limits: ExecutionLimits) -> int:
    """Return the maximum number of names in a file system in memory; each counts as many bytes as in a workspace."""
    return limits.tmp_bytes // _NAME_BYTES


def _stat_hidden_descriptors(pid: int, max_count: int) -> Iterator[os.stat_result]:
    """Yield the `stat` result of each descriptor of a process that made its folder in `/proc` unreadable.

    Raises:
        PermissionError: They cannot be duplicated either.
    """
    call = ctypes.CDLL(None, use_errno=True).syscall
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in range(max_count):
            fd = call(_PIDFD_GETFD, pidfd, number, 0)
            if fd < 0 and ctypes.get_errno() in (errno.EPERM, errno.EACCES, errno.ENOSYS):
                raise PermissionError(f"descriptors of {pid}")
            if fd >= 0:
                try:
                    yield os.fstat(fd)
                finally:
                    os.close(fd)
    finally:
        os.close(pidfd)


def _is_first_process(pid: int) -> bool:
    """Whether a process is the first one of its process namespace, which no program can become."""
    try:
        with open(f"/proc/{pid}/status", "rb") as source:
            return re.search(rb"^NSpid:.*\t1$", source.read(), re.M) is not None
    except OSError:
        return True  # gone


def _count_in_flight(path: str) -> int:
    """Return how many descriptors were sent to a socket and not received yet."""
    try:
        with open(path, "rb") as source:
            match = _IN_FLIGHT.search(source.read())
    except OSError:
        return 0
    return 0 if match is None else int(match.group(1))
