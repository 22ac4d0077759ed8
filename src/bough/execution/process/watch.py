"""Watch the resources of a run that the kernel does not limit: disk, number of files, memory of all processes.

Measurements run in another thread, in short slices, so they never delay a timeout. Between two measurements a program
can exceed its limit.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from bough.execution.base import ExecutionLimits
from bough.execution.process.cgroup import DelayedGroup
from bough.execution.process.child import ChildProcess, list_descendants, read_numbers
from bough.execution.process.disk_use import DiskUse, max_names
from bough.execution.process.workspace import Workspace
from bough.execution.request import Plan

INTERVAL_SECONDS: Final = 0.05
"""The pause between two measurements."""

SLICE_SECONDS: Final = 0.02
"""How long one measurement counts files; a large folder takes several measurements."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


async def watch(child: ChildProcess, plan: Plan, workspace: Workspace, *, group: DelayedGroup) -> None:
    """Stop the run when it exceeds a limit: `work_bytes`, the number of names in `/tmp`, or `memory_bytes`.

    Runs until it is cancelled. It does not measure the memory of a run that was in its control group from the start.

    Args:
        group: The control group that the run enters as soon as its first process is ready.
    """
    limits = plan.request.limits
    work_limit_bytes = limits.work_bytes
    use = DiskUse((workspace.work, workspace.tmp), limits)
    if plan.workspace is not None:
        work_limit_bytes += await asyncio.to_thread(use.measure)
    # A session may be older than its group, and memory that was allocated earlier is never charged to the group.
    has_kernel_limit = group.entered and plan.request.execution_id is None
    has_entered = False
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        # Only when ready: a supervisor that is still loading has no children yet, and they would not enter the group.
        if child.is_ready and not has_entered:
            await asyncio.to_thread(group.enter, lambda: list_descendants(child.pid))
            has_entered = True
        reason = await asyncio.to_thread(_find_excess, use, child, limits, work_limit_bytes, has_kernel_limit)
        if reason is not None:
            child.stop(reason)


def _find_excess(
    use: DiskUse, child: ChildProcess, limits: ExecutionLimits, work_limit_bytes: int, has_kernel_limit: bool
) -> str | None:
    """Measure for a slice of time; return the name of a limit that the run exceeds, or None. Blocks."""
    is_complete = use.advance(SLICE_SECONDS)
    used_bytes = use.total_bytes(child.pid, exclude=child.sending_sockets) if is_complete else use.counted_bytes
    if used_bytes > work_limit_bytes:
        return "work_bytes"
    if use.count_private_names(child.pid) > max_names(limits):
        return "tmp_bytes"
    if not has_kernel_limit and exceeds_memory(child.pid, limits.memory_bytes - use.socket_bytes):
        return "memory"
    return None


def exceeds_memory(pid: int, limit_bytes: int) -> bool:
    """Whether the descendants of `pid` together use more than `limit_bytes`. Blocks; O(processes).

    The resident size is cheap to read, but counts a shared page once per process. Only if the sum exceeds the limit,
    the expensive proportional size is read, which divides shared pages among their processes.
    """
    pids = list_descendants(pid)
    if sum(_read_resident_bytes(pid) for pid in pids) <= limit_bytes:
        return False
    return sum(_read_proportional_bytes(pid) for pid in pids) > limit_bytes


def _read_resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process; 0 if it has exited."""
    numbers = read_numbers(f"/proc/{pid}/statm")
    return numbers[1] * _PAGE_BYTES if len(numbers) > 1 else 0


def _read_proportional_bytes(pid: int) -> int:
    """Return the resident bytes of a process, with shared pages divided among their processes if that is known."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as source:
            for line in source:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _read_resident_bytes(pid)
