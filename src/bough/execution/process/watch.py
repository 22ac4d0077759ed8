"""Watching what a run uses where the kernel does not count it: the size of its workspace, the memory of its processes.

It measures in another thread, a slice of time after the other, and never delays a timeout. Between two looks a program
can use more than its bound.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from bough.execution.process.cgroup import LateGroup
from bough.execution.process.child import ChildProcess
from bough.execution.process.files import open_descriptor
from bough.execution.process.tree import TreeCursor
from bough.execution.process.workspace import Workspace
from bough.execution.request import Plan

SECONDS: Final = 0.05
"""How often it looks."""

SLICE_SECONDS: Final = 0.02
"""How long it counts files at a time."""

_FOLDER_BYTES: Final = 4096
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


async def watch(child: ChildProcess, plan: Plan, workspace: Workspace, *, group: LateGroup) -> None:
    """End the run when its workspace outgrows `work_bytes`, or its memory `memory_bytes`.

    Memory is left to the kernel where the run is in a control group from its beginning.

    Args:
        group: What the run is moved into after the first look.
    """
    limits = plan.request.limits
    room = limits.work_bytes
    use = DiskUse((workspace.work, workspace.tmp))
    if plan.workspace is not None:
        room += await asyncio.to_thread(use.measure)
    # A session may have been there before its group, and memory that was taken before is counted elsewhere for ever.
    bounded = group.entered and plan.request.execution_id is None
    await asyncio.sleep(SECONDS)
    await asyncio.to_thread(group.enter, lambda: processes_below(child.pid))
    while True:
        await asyncio.sleep(SECONDS)
        if await asyncio.to_thread(use.advance, SLICE_SECONDS) and await asyncio.to_thread(use.total, child.pid) > room:
            child.stop("work_bytes")
        elif not bounded and await asyncio.to_thread(uses_more_memory, child.pid, limits.memory_bytes):
            child.stop("memory")


class DiskUse:
    """The bytes in use below some folders, counted in slices of time: a tree may be of any depth and size.

    A file counts with its blocks and 512 bytes for its name, a folder with 4,096.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._pass: Iterator[int] | None = None
        self._counted = 0
        self._latest = 0

    def measure(self) -> int:
        """Return what one whole pass counts. Blocks; O(entries)."""
        while not self.advance(3600.0):
            pass
        return self._latest

    def advance(self, seconds: float) -> bool:
        """Count on for so long; return whether a pass is complete now. A pass that is not tells nothing."""
        end = time.monotonic() + seconds
        if self._pass is None:
            self._pass, self._counted = self._entries(), 0
        for number, entry_bytes in enumerate(self._pass):
            self._counted += entry_bytes
            if number % 64 == 63 and time.monotonic() > end:
                return False
        self._pass, self._latest = None, self._counted
        return True

    def total(self, pid: int) -> int:
        """Return the latest pass, and files without a name that the processes below `pid` hold open. Blocks."""
        return self._latest + sum(self._nameless(pid).values())

    def _entries(self) -> Iterator[int]:
        for folder in self._folders:
            with suppress(FileNotFoundError), open_descriptor(folder) as root, TreeCursor(root) as cursor:
                for _, _, state in cursor:
                    yield _FOLDER_BYTES if stat.S_ISDIR(state.st_mode) else state.st_blocks * 512 + 512

    def _nameless(self, pid: int) -> dict[tuple[int, int], int]:
        """Return the bytes of files that were removed and are still open, each once; those that can be seen."""
        devices = {os.stat(folder).st_dev for folder in self._folders if os.path.isdir(folder)}
        found: dict[tuple[int, int], int] = {}
        for each in processes_below(pid):
            try:
                fds = os.listdir(f"/proc/{each}/fd")
            except OSError:
                continue
            for fd in fds:
                with suppress(OSError):
                    state = os.stat(f"/proc/{each}/fd/{fd}")
                    if stat.S_ISREG(state.st_mode) and not state.st_nlink and state.st_dev in devices:
                        found[state.st_dev, state.st_ino] = state.st_blocks * 512
        return found


def uses_more_memory(pid: int, limit_bytes: int) -> bool:
    """Whether the processes below `pid` together use more than `limit_bytes`. Blocks; O(processes).

    Resident pages are cheap to count, but pages that processes share count many times; only when those are too many are
    the shared ones divided by their users, which is dear.
    """
    pids = processes_below(pid)
    if sum(_resident(each) for each in pids) <= limit_bytes:
        return False
    return sum(_proportional(each) for each in pids) > limit_bytes


def processes_below(pid: int) -> list[int]:
    """Return the processes that descend from `pid`. Blocks."""
    found: list[int] = []
    todo = [pid]
    while todo:
        children = [child for task in _tasks(todo.pop()) for child in _numbers(f"{task}/children")]
        found += children
        todo += children
    return found


def _tasks(pid: int) -> list[str]:
    folder = f"/proc/{pid}/task"
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:
        return []


def _numbers(path: str) -> list[int]:
    try:
        with open(path) as source:
            return [int(word) for word in source.read().split()]
    except OSError:
        return []


def _resident(pid: int) -> int:
    numbers = _numbers(f"/proc/{pid}/statm")
    return numbers[1] * _PAGE_BYTES if len(numbers) > 1 else 0


def _proportional(pid: int) -> int:
    """Return the resident bytes of a process with shared pages divided; where that is not told, with all of them."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as source:
            for line in source:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _resident(pid)
