"""Control groups: the kernel's own bound on the memory and the processes of a whole run, where it may be used.

Version 1 and version 2 are known. Resource limits count by process (memory) or by user (processes); a control group
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
"""What bough's own first process may use on top of the program."""

_OWN_PROCESSES: Final = 4
_NEEDED: Final = ("memory", "pids")
_REMOVE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Hierarchy:
    """Where groups can be made: the parent folder of each controller, and which version it is."""

    version: int
    parents: Mapping[str, str]

    def make(self, name: str, limits: ExecutionLimits) -> Group:
        """Make and bound a group.

        Raises:
            OSError: It is not allowed, or not any more.
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
    """One run's control group."""

    version: int
    folders: Sequence[str]

    def take(self, pids: Sequence[int]) -> None:
        """Move running processes in; one that has ended meanwhile is passed over. Blocks, often for 20 ms."""
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
        """Remove it; waits up to two seconds for the last processes in it to be gone. Blocks."""
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
    """The control group of a run that is made, and entered, only once the run has lasted a while.

    To enter one makes the kernel wait for all its processors, 20 ms and more; a short run is over by then.
    """

    def __init__(self, make: Callable[[], Group | None]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._group: Group | None = None
        self._closed = False

    @property
    def entered(self) -> bool:
        """Whether the kernel bounds the run by now."""
        return self._group is not None

    def enter(self, pids: Callable[[], Sequence[int]]) -> None:
        """Make the group and move everything in that `pids` returns, until it returns nothing new. Blocks.

        Once is enough: what is forked later is in it from its beginning.
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
        """Remove it, once everything in it has ended. Blocks."""
        with self._lock:
            self._closed = True
            if self._group is not None:
                self._group.remove()


def find_memory_group(pid: int) -> Group | None:
    """Return the control group that bounds the memory of a process, to look at; None where it cannot be found."""
    groups = _read_groups(pid)
    version, mount, name = (1, os.path.join(ROOT, "memory"), "memory") if "memory" in groups else (2, ROOT, "")
    folder = os.path.join(mount, groups.get(name, "/").lstrip("/"))
    return Group(version, (folder,)) if os.path.isdir(folder) and folder.rstrip("/") != mount else None


def usable_hierarchy() -> Hierarchy | None:
    """Return where groups with memory and process bounds can really be made, by making one; None: nowhere. Blocks."""
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
    """Return this process's own groups of version 1."""
    own = _read_groups("self")
    mounted = {name: os.path.join(ROOT, name) for name in _NEEDED}
    if not all(name in own and os.path.isdir(path) for name, path in mounted.items()):
        return None
    parents = {name: _existing(path, own[name]) for name, path in mounted.items()}
    return Hierarchy(1, parents)


def _version_2() -> Hierarchy | None:
    """Return the first group of version 2, from this process's own to the root, that hands its controllers down."""
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
