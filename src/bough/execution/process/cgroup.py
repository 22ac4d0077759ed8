"""Control groups: kernel limits on the memory and processes of a whole run, if this process may create them.

Supports versions 1 and 2. Resource limits apply per process (memory) or per user (processes). A control group limits
all processes of a run together, and reports whether the kernel killed one of them for lack of memory.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bough.execution.base import ExecutionLimits

ROOT: Final = "/sys/fs/cgroup"
_OWN_BYTES: Final = 16 << 20
"""Memory for bough's first process, in addition to the program's."""

_OWN_PROCESSES: Final = 4
"""Processes of bough, in addition to the program's."""

_CONTROLLERS: Final = ("memory", "pids")
_REMOVE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Hierarchy:
    """A control group version, and the folder in which groups can be created, by controller."""

    version: int
    parents: Mapping[str, str]

    def make_group(self, name: str, limits: ExecutionLimits) -> Group:
        """Create a group with limits.

        Raises:
            OSError: This process may not create groups here, or no longer may.
        """
        folders = {parent: os.path.join(parent, name) for parent in dict.fromkeys(self.parents.values())}
        group = Group(self.version, tuple(folders.values()))
        try:
            for folder in folders.values():
                os.mkdir(folder)
            for controller, parent in self.parents.items():
                self._set_limit(controller, folders[parent], limits)
        except OSError:
            group.remove()
            raise
        return group

    def _set_limit(self, controller: str, folder: str, limits: ExecutionLimits) -> None:
        """Write the limits of one controller into the folder of a group."""
        if controller == "pids":
            _write(folder, "pids.max", limits.processes + _OWN_PROCESSES)
        elif self.version == 1:
            _write(folder, "memory.limit_in_bytes", limits.memory_bytes + _OWN_BYTES)
            _write_if_supported(folder, "memory.memsw.limit_in_bytes", limits.memory_bytes + _OWN_BYTES)
        else:
            _write(folder, "memory.max", limits.memory_bytes + _OWN_BYTES)
            _write_if_supported(folder, "memory.swap.max", 0)
            # All processes of the run are killed together: without one of them, the others may wait forever.
            _write_if_supported(folder, "memory.oom.group", 1)


@dataclass(frozen=True)
class Group:
    """The control group of one run."""

    version: int
    folders: Sequence[str]

    def add_processes(self, pids: Sequence[int]) -> None:
        """Move running processes into the group; skip processes that have exited. Blocks, often for 20 ms."""
        for folder in self.folders:
            for pid in pids:
                with suppress(ProcessLookupError):
                    _write(folder, "cgroup.procs", pid)

    @property
    def memory_kills(self) -> int:
        """How many processes of the group the kernel has killed for lack of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        counters = [line.partition(" ") for folder in self.folders for line in _read_lines(folder, name)]
        return sum(int(value) for key, _, value in counters if key == "oom_kill")

    def remove(self) -> None:
        """Remove the group; waits up to two seconds for the last processes in it to exit. Blocks."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        for folder in self.folders:
            while os.path.isdir(folder):
                try:
                    os.rmdir(folder)
                except OSError:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.002)


class DelayedGroup:
    """A control group that a run enters only after it has lasted a while.

    Moving a process into a group takes the kernel 20 ms or more, because it waits for all processors. Short runs end
    earlier and save this time.

    Args:
        make: Creates the group; returns None if this process cannot create one.
    """

    def __init__(self, make: Callable[[], Group | None]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._group: Group | None = None
        self._closed = False

    @property
    def entered(self) -> bool:
        """Whether the run is in the group, so that the kernel limits it."""
        return self._group is not None

    def enter(self, pids: Callable[[], Sequence[int]]) -> None:
        """Create the group and move the processes of the run into it. Blocks.

        Processes that are forked later are in the group from their start.

        Args:
            pids: Returns the processes of the run; called again until it returns no new ones.
        """
        with self._lock:
            if self._closed or self._group is not None:
                return
            group = self._make()
            if group is None:
                return
            moved_pids: set[int] = set()
            new_pids = pids()
            while new_pids:
                group.add_processes(new_pids)
                moved_pids.update(new_pids)
                new_pids = [pid for pid in pids() if pid not in moved_pids]
            self._group = group

    @property
    def memory_kills(self) -> int:
        """How many processes of the group the kernel has killed for lack of memory."""
        return 0 if self._group is None else self._group.memory_kills

    def close(self) -> None:
        """Remove the group, once its processes have ended. Blocks."""
        with self._lock:
            self._closed = True
            if self._group is not None:
                self._group.remove()


def find_memory_group(pid: int) -> Group | None:
    """Return the control group that limits the memory of a process, to read its counters; None if there is none."""
    groups = _read_groups(pid)
    if "memory" in groups:
        version, mount, controller = 1, os.path.join(ROOT, "memory"), "memory"
    else:
        version, mount, controller = 2, ROOT, ""
    folder = os.path.join(mount, groups.get(controller, "/").lstrip("/"))
    return Group(version, (folder,)) if os.path.isdir(folder) and folder.rstrip("/") != mount else None


def find_usable_hierarchy() -> Hierarchy | None:
    """Return a hierarchy in which this process can create groups with limits; None if there is none. Blocks.

    It creates and removes a group to find out.
    """
    for hierarchy in (_find_version_2(), _find_version_1()):
        if hierarchy is None:
            continue
        try:
            hierarchy.make_group(f"bough-probe-{secrets.token_hex(6)}", ExecutionLimits()).remove()
        except OSError:
            continue
        return hierarchy
    return None


def _find_version_1() -> Hierarchy | None:
    """Return the version 1 groups of this process; None if a controller is missing."""
    group_paths = _read_groups("self")
    mount_points = {name: os.path.join(ROOT, name) for name in _CONTROLLERS}
    if not all(name in group_paths and os.path.isdir(path) for name, path in mount_points.items()):
        return None
    parents = {name: _find_existing(path, group_paths[name]) for name, path in mount_points.items()}
    return Hierarchy(1, parents)


def _find_version_2() -> Hierarchy | None:
    """Return the version 2 group of this process, or else the root group, if it delegates the controllers."""
    if not os.path.exists(os.path.join(ROOT, "cgroup.controllers")):
        return None
    folder = _find_existing(ROOT, _read_groups("self").get("", "/"))
    for candidate in (folder, ROOT):
        if candidate == ROOT:
            _write_if_supported(ROOT, "cgroup.subtree_control", "+memory +pids")
        delegated = " ".join(_read_lines(candidate, "cgroup.subtree_control")).split()
        if all(name in delegated for name in _CONTROLLERS):
            return Hierarchy(2, dict.fromkeys(_CONTROLLERS, candidate))
    return None


def _read_groups(pid: int | str) -> dict[str, str]:
    """Return the groups of a process by controller; the group of version 2 has the key ''."""
    groups: dict[str, str] = {}
    for line in _read_lines(f"/proc/{pid}", "cgroup"):
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _find_existing(mount: str, path: str) -> str:
    """Return the folder of the group `path`, or of the root group if that folder does not exist in this namespace."""
    folder = os.path.join(mount, path.lstrip("/"))
    return folder.rstrip("/") if os.path.isdir(folder) else mount


def _read_lines(folder: str, name: str) -> list[str]:
    """Return the lines of a file; empty if it cannot be read."""
    try:
        with open(os.path.join(folder, name)) as source:
            return source.read().splitlines()
    except OSError:
        return []


def _write(folder: str, name: str, value: int | str) -> None:
    with open(os.path.join(folder, name), "w") as target:
        target.write(str(value))


def _write_if_supported(folder: str, name: str, value: int | str) -> None:
    try:
        _write(folder, name, value)
    except OSError:
        return
