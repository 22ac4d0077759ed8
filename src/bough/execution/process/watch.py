"""Watching the resources of a run that the kernel does not bound: disk, number of names, memory of its processes.

It measures in slices of time in another thread, and never delays a timeout. Between two measurements a program
can exceed its bound.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from bough.execution.base import ExecutionLimits
from bough.execution.process.cgroup import LateGroup
from bough.execution.process.child import ChildProcess, processes_below, read_numbers
from bough.execution.process.disk_use import DiskUse, max_names
from bough.execution.process.workspace import Workspace
from bough.execution.request import Plan

SECONDS: Final = 0.05
"""The interval of measurements, in seconds."""

SLICE_SECONDS: Final = 0.02
"""The length of a slice of counting files, in seconds."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


async def watch(child: ChildProcess, plan: Plan, workspace: Workspace, *, group: LateGroup) -> None:
    """End the run when its workspace exceeds `work_bytes`, its own file systems `tmp_bytes`, or its memory its bound.

    The kernel bounds the memory if the run is in a control group from its start.

    Args:
        group: The control group that the run enters after the first measurement.
    """
    limits = plan.request.limits
    room = limits.work_bytes
    use = DiskUse((workspace.work, workspace.tmp), limits)
    if plan.workspace is not None:
        room += await asyncio.to_thread(use.measure)
    # A session may be older than its group, and memory allocated before is charged to another group for ever.
    is_bounded = group.entered and plan.request.execution_id is None
    has_entered = False
    while True:
        await asyncio.sleep(SECONDS)
        # Not before: a supervisor that is still loading has no children to move, and later ones would not be in it.
        if child.stands and not has_entered:
            await asyncio.to_thread(group.enter, lambda: processes_below(child.pid))
            has_entered = True
        reason = await asyncio.to_thread(_find_excess, use, child, limits, room, is_bounded)
        if reason is not None:
            child.stop(reason)


def _find_excess(use: DiskUse, child: ChildProcess, limits: ExecutionLimits, room: int, is_bounded: bool) -> str | None:
    """Count files for a slice of time and return the bound that the run exceeds; None if none is known. Blocks."""
    is_complete = use.advance(SLICE_SECONDS)
    if (use.total(child.pid, but=child.own_sockets) if is_complete else use.counted) > room:
        return "work_bytes"
    if use.count_private_names(child.pid) > max_names(limits):
        return "tmp_bytes"
    if not is_bounded and uses_more_memory(child.pid, limits.memory_bytes - use.socket_bytes):
        return "memory"
    return None


def uses_more_memory(pid: int, limit_bytes: int) -> bool:
    """Whether the processes below `pid` together use more than `limit_bytes`. Blocks; O(processes).

    Resident pages are cheap to count, but shared pages count once per process. Only if these are too many are
    the shared ones divided by their users, which is expensive.
    """
    pids = processes_below(pid)
    if sum(_resident(pid) for pid in pids) <= limit_bytes:
        return False
    return sum(_proportional(pid) for pid in pids) > limit_bytes


def _resident(pid: int) -> int:
    numbers = read_numbers(f"/proc/{pid}/statm")
    return numbers[1] * _PAGE_BYTES if len(numbers) > 1 else 0


def _proportional(pid: int) -> int:
    """Return the resident bytes of a process with shared pages divided by their users; undivided if unknown."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as source:
            for line in source:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _resident(pid)
