"""The disk use of a run: the files in its folders, and the deleted files that its processes still have open."""

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
from bough.tree import identify, ignore_error, open_descriptor, read_unsorted, walk

_FOLDER_BYTES: Final = 4096
_NAME_BYTES: Final = 512
_PIDFD_GETFD: Final = 438
_DELETED: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+) .* \(deleted\)$", re.M)
"""A line of `/proc/PID/maps` about a deleted file: addresses, device and inode."""

_PRIVATE: Final = ("/tmp", "/dev/shm")  # noqa: S108
"""The mount points of a run's private file systems in memory, on rungs that can create them."""

_UNCOUNTED_SOCKETS: Final = 64
"""The buffers of this many sockets are not counted, because event loops and process pools have a few."""

_TMPFS: Final = 0x01021994

_IN_FLIGHT: Final = re.compile(rb"^scm_fds:\s*(\d+)$", re.M)


class DiskUse:
    """The disk use of some folders, counted in slices of time because a tree may have any depth and size.

    The blocks of a file count once, plus 512 bytes for each of its names. A folder counts as 4,096 bytes or more.

    Args:
        folders: The folders to count. One that does not exist counts as empty.
        limits: The run's limits; a file that cannot be measured counts as the largest that they allow.

    Attributes:
        counted_bytes: The bytes that the current pass has counted so far, or those of the last complete pass.
        socket_count: The number of sockets that the run's processes had at the latest call of `total_bytes`.
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
        """The maximum size of the buffers of the run's sockets."""
        return max(0, self.socket_count - _UNCOUNTED_SOCKETS) * _read_buffer_bytes()

    def measure(self) -> int:
        """Complete a pass and return its bytes. Blocks; O(entries)."""
        while not self.advance(3600.0):
            pass
        return self._latest_bytes

    def advance(self, seconds: float) -> bool:
        """Count for `seconds`; return whether the pass is complete. Until then, `counted_bytes` is a lower bound."""
        deadline = time.monotonic() + seconds
        if self._entry_sizes is None:
            self._entry_sizes, self.counted_bytes = self._iterate_sizes(), 0
            self._seen_links.clear()
        for number, entry_bytes in enumerate(self._entry_sizes):
            self.counted_bytes += entry_bytes
            if number % 64 == 63 and time.monotonic() > deadline:
                return False
        self._entry_sizes, self._latest_bytes = None, self.counted_bytes
        return True

    def total_bytes(self, pid: int, *, exclude: frozenset[int] = frozenset()) -> int:
        """Return the bytes of the latest pass, plus those of deleted files that descendants of `pid` still use. Blocks.

        A process uses a deleted file by an open descriptor, by a descriptor that was sent and not yet received, or by
        a mapping. A file that cannot be examined counts with the largest size that the limits allow. A process that
        hides its files counts as if it had the most and largest files that the limits allow.

        Args:
            exclude: Inodes of sockets in which descriptors sent by this process are waiting.
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
                        blocks_by_identity[identify(state)] = state.st_blocks * 512
            except PermissionError:
                if _is_first_process(member):
                    continue  # bough's own process, which hides its files from the program
                return self._latest_bytes + self._limits.open_files * self._limits.file_size_bytes
            for identity, size in self._list_mapped_deleted(member):
                if identity[0] in devices:
                    blocks_by_identity.setdefault(identity, size)
        # A descriptor is normally in flight for microseconds. One in two successive measurements is kept there.
        stuck_count = sum(
            min(in_flight[number], self._earlier_in_flight[number])
            for number in (in_flight.keys() & self._earlier_in_flight.keys()) - exclude
        )
        self._earlier_in_flight = in_flight
        self.socket_count = len(sockets)
        return self._latest_bytes + sum(blocks_by_identity.values()) + stuck_count * self._limits.file_size_bytes

    def count_private_names(self, pid: int) -> int:
        """Return the largest number of names in a private file system of the run; 0 if it has none. Blocks.

        The kernel limits the bytes of these file systems, but does not count the kilobyte that an empty file takes.
        All processes of a run see the same file systems; a process that has just exited is skipped.
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
        """Yield the bytes of each entry below the folders, except on other file systems that are mounted there."""
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
                    yield self._measure_entry(entry.state)

    def _measure_entry(self, state: os.stat_result) -> int:
        """Return the bytes that an entry adds to the disk use."""
        size = state.st_blocks * 512
        if stat.S_ISDIR(state.st_mode):
            return max(size, _FOLDER_BYTES)
        if state.st_nlink > 1:
            if identify(state) in self._seen_links:
                return _NAME_BYTES
            self._seen_links.add(identify(state))
        return size + _NAME_BYTES

    def _stat_descriptors(self, pid: int, in_flight: dict[int, int]) -> Iterator[os.stat_result]:
        """Yield the `stat` result of each descriptor of a process.

        All threads of a process share its descriptors, because the system-call filter refuses separate tables.

        Args:
            in_flight: Receives the number of descriptors sent to each socket and not yet received, by the inode.

        Raises:
            PermissionError: The descriptors cannot be read.
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
                    waiting_count = _count_in_flight(f"/proc/{pid}/fdinfo/{name}")
                    if waiting_count and not _is_first_process(pid):  # the host sends descriptors to the first process
                        in_flight[state.st_ino] = waiting_count
                yield state

    def _list_mapped_deleted(self, pid: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield ((device, inode), bytes) of each deleted file that a process has mapped."""
        try:
            with open(f"/proc/{pid}/maps", "rb") as source:
                text = source.read()
        except OSError:
            return
        if b" (deleted)\n" not in text:  # much faster than the regular expression
            return
        for begin, end, major, minor, number in _DELETED.findall(text):
            try:
                state = os.stat(f"/proc/{pid}/map_files/{begin.decode()}-{end.decode()}")
                yield identify(state), state.st_blocks * 512
            except OSError:  # only root may read `map_files`
                device = os.makedev(int(major, 16), int(minor, 16))
                yield (device, int(number)), self._limits.file_size_bytes


def _is_in_memory(path: str) -> bool:
    """Whether a path is on a file system in memory."""
    state = (ctypes.c_long * 32)()  # a `struct statfs`, which begins with the type
    return ctypes.CDLL(None).statfs(os.fsencode(path), state) == 0 and state[0] == _TMPFS


@cache
def _read_buffer_bytes() -> int:
    """Return the maximum size of one socket's buffer, which the system-call filter lets no program raise."""
    numbers = read_numbers("/proc/sys/net/core/wmem_default")
    return numbers[0] if numbers else 212_992


def max_names(limits: ExecutionLimits) -> int:
    """Return the maximum number of names in a file system of `tmp_bytes`; each name counts as in a workspace."""
    return limits.tmp_bytes // _NAME_BYTES


def _stat_hidden_descriptors(pid: int, max_count: int) -> Iterator[os.stat_result]:
    """Yield the `stat` result of each descriptor of a process that has made its folder in `/proc` unreadable.

    Raises:
        PermissionError: The descriptors cannot be duplicated either.
    """
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in range(max_count):
            fd = syscall(_PIDFD_GETFD, pidfd, number, 0)
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
    """Whether a process is the first one of its process namespace, which is bough's own and never the program."""
    try:
        with open(f"/proc/{pid}/status", "rb") as source:
            return re.search(rb"^NSpid:.*\t1$", source.read(), re.M) is not None
    except OSError:
        return True  # it has exited


def _count_in_flight(path: str) -> int:
    """Return the number of descriptors that were sent to a socket and not yet received, from its `fdinfo` file."""
    try:
        with open(path, "rb") as source:
            match = _IN_FLIGHT.search(source.read())
    except OSError:
        return 0
    return 0 if match is None else int(match.group(1))
