"""Control groups: the kernel's bound on memory and processes of a whole run, if this process may create them.

Supports versions 1 and 2. Resource limits count by process (memory) or by user (processes); a control group
counts what all processes of a run use together, and reports whether the kernel had to kill for it.
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
_NEEDED: Final = ("memory", "pids")
_REMOVE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Hierarchy:
    """The parent folder of each controller below which groups can be created, and the version."""

    version: int
    parents: Mapping[str, str]

    def make(self, name: str, limits: ExecutionLimits) -> Group:
        """Create a group with bounds.

        Raises:
            OSError: It is not permitted, or no longer permitted.
        """
        folders = {parent: os.path.join(parent, name) for parent in dict.fromkeys(self.parents.values())}
        group = Group(self.version, tuple(folders.values()))
        try:
            for folder in folders.values():
                os.mkdir(folder)
            for controller, parent in self.parents.items():
                self._set_bound(controller, folders[parent], limits)
        except OSError:
            group.remove()
            raise
        return group

    def _set_bound(self, controller: str, folder: str, limits: ExecutionLimits) -> None:
        if controller == "pids":
            _write(folder, "pids.max", limits.processes + _OWN_PROCESSES)
        elif self.version == 1:
            _write(folder, "memory.limit_in_bytes", limits.memory_bytes + _OWN_BYTES)
            _write_if_there(folder, "memory.memsw.limit_in_bytes", limits.memory_bytes + _OWN_BYTES)
        else:
            _write(folder, "memory.max", limits.memory_bytes + _OWN_BYTES)
            _write_if_there(folder, "memory.swap.max", 0)
            _write_if_there(folder, "memory.oom.group", 1)


@dataclass(frozen=True)
class Group:
    """The control group of one run."""

    version: int
    folders: Sequence[str]

    def take(self, pids: Sequence[int]) -> None:
        """Move running processes into the group; skips processes that have ended. Blocks, often for 20 ms."""
        for folder in self.folders:
            for pid in pids:
                with suppress(ProcessLookupError):
                    _write(folder, "cgroup.procs", pid)

    @property
    def memory_kills(self) -> int:
        """How often the kernel killed something in it for lack of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        counters = [line.partition(" ") for folder in self.folders for line in _lines(folder, name)]
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


class LateGroup:
    """A control group that is created, and entered, only after the run has lasted a while.

    To enter a group, the kernel waits for all its processors, 20 ms and more; a short run has ended by then.
    """

    def __init__(self, make: Callable[[], Group | None]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._group: Group | None = None
        self._closed = False

    @property
    def entered(self) -> bool:
        """Whether the kernel already bounds the run."""
        return self._group is not None

    def enter(self, pids: Callable[[], Sequence[int]]) -> None:
        """Create the group and move in the processes that `pids` returns, until it returns no new ones. Blocks.

        Processes that are forked later are in the group from their start.
        """
        with self._lock:
            if self._closed or self._group is not None:
                return
            group = self._make()
            moved: set[int] = set()
            while group is not None and (new := [pid for pid in pids() if pid not in moved]):
                group.take(new)
                moved.update(new)
            self._group = group

    @property
    def memory_kills(self) -> int:
        """How often the kernel killed something in it for lack of memory."""
        return 0 if self._group is None else self._group.memory_kills

    def close(self) -> None:
        """Remove the group, once its processes have ended. Blocks."""
        with self._lock:
            self._closed = True
            if self._group is not None:
                self._group.remove()


def find_memory_group(pid: int) -> Group | None:
    """Return the control group that bounds the memory of a process, to read its counters; None if not found."""
    groups = _read_groups(pid)
    version, mount, name = (1, os.path.join(ROOT, "memory"), "memory") if "memory" in groups else (2, ROOT, "")
    folder = os.path.join(mount, groups.get(name, "/").lstrip("/"))
    return Group(version, (folder,)) if os.path.isdir(folder) and folder.rstrip("/") != mount else None


def usable_hierarchy() -> Hierarchy | None:
    """Return the hierarchy in which creating a group with bounds has just worked; None if none does. Blocks."""
    for hierarchy in (_version_2(), _version_1()):
        if hierarchy is None:
            continue
        try:
            hierarchy.make(f"bough-probe-{secrets.token_hex(6)}", ExecutionLimits()).remove()
        except OSError:
            continue
        return hierarchy
    return None


def _version_1() -> Hierarchy | None:
    """Return the version 1 groups of this process."""
    own = _read_groups("self")
    mounted = {name: os.path.join(ROOT, name) for name in _NEEDED}
    if not all(name in own and os.path.isdir(path) for name, path in mounted.items()):
        return None
    parents = {name: _existing(path, own[name]) for name, path in mounted.items()}
    return Hierarchy(1, parents)


def _version_2() -> Hierarchy | None:
    """Return the first version 2 group, from this process's up to the root, that delegates its controllers."""
    if not os.path.exists(os.path.join(ROOT, "cgroup.controllers")):
        return None
    folder = _existing(ROOT, _read_groups("self").get("", "/"))
    for candidate in (folder, ROOT):
        if candidate == ROOT:
            _write_if_there(ROOT, "cgroup.subtree_control", "+memory +pids")
        delegated = " ".join(_lines(candidate, "cgroup.subtree_control")).split()
        if all(name in delegated for name in _NEEDED):
            return Hierarchy(2, dict.fromkeys(_NEEDED, candidate))
    return None


def _read_groups(pid: int | str) -> dict[str, str]:
    """Return the group of a process by controller; version 2 has the name ''."""
    groups: dict[str, str] = {}
    for line in _lines(f"/proc/{pid}", "cgroup"):
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _existing(mount: str, path: str) -> str:
    folder = os.path.join(mount, path.lstrip("/"))
    return folder.rstrip("/") if os.path.isdir(folder) else mount


def _lines(folder: str, name: str) -> list[str]:
    try:
        with open(os.path.join(folder, name)) as source:
            return source.read().splitlines()
    except OSError:
        return []


def _write(folder: str, name: str, value: int | str) -> None:
    with open(os.path.join(folder, name), "w") as target:
        target.write(str(value))


def _write_if_there(folder: str, name: str, value: int | str) -> None:
    try:
        _write(folder, name, value)
    except OSError:
        return
