"""One run from request to result on this machine: prepare, start, watch, collect, remove; nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from bough.execution.base import CodeExecutionResult, Isolation
from bough.execution.child import Child, Launch
from bough.execution.files import opened, size_bytes
from bough.execution.identity import Identity
from bough.execution.outcome import result_of
from bough.execution.request import Plan
from bough.execution.workspace import Shelf, Workspace

WATCH_SECONDS = 0.05
"""How often the workspace of a run is measured; between two looks a program can write more than its bound."""

_T = TypeVar("_T")


async def run_process(
    plan: Plan,
    *,
    shelf: Shelf,
    launch: Callable[[Plan, Workspace], Launch],
    isolation: Isolation,
    identity: Identity,
) -> CodeExecutionResult:
    """Run `plan` by the command that `launch` makes of it; leaves no process and no file, however it ends.

    Args:
        identity: As whom.
    """
    workspace = await prepare(plan, shelf, identity)
    try:
        child = Child(launch(plan, workspace))
        ended = await child.run(timeout_seconds=plan.timeout_seconds, watch=lambda c: watch_size(c, plan, workspace))
        collected = await finished(workspace.collect, plan)
    finally:
        await finished(workspace.remove)
    return result_of(plan, ended, collected, isolation=isolation)


async def prepare(plan: Plan, shelf: Shelf, identity: Identity) -> Workspace:
    """Make the workspace of a run in another thread; it is gone again when the caller is cancelled meanwhile."""
    making = asyncio.ensure_future(asyncio.to_thread(_make, plan, shelf, identity))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        workspace = await making
        await asyncio.to_thread(workspace.remove)
        raise


def _make(plan: Plan, shelf: Shelf, identity: Identity) -> Workspace:
    return Workspace.prepare(plan, shelf.new_folder(), identity)


async def finished(work: Callable[..., _T], *args: object) -> _T:
    """Do blocking `work` in a thread, to its end even if the caller is cancelled; the cancellation comes after it."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def watch_size(child: Child, plan: Plan, workspace: Workspace) -> None:
    """End the run when its workspace outgrows `work_bytes`; looks from another thread, so it delays nothing."""
    limit = plan.request.limits.work_bytes
    allowed = limit if plan.workspace is None else limit + await asyncio.to_thread(_measure, workspace, 1 << 60)
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        if await asyncio.to_thread(_measure, workspace, allowed) > allowed:
            child.stop("work_bytes")
            return


def _measure(workspace: Workspace, stop_at: int) -> int:
    total = 0
    for folder in {workspace.work, workspace.tmp}:
        with opened(folder) as root:
            total += size_bytes(root, stop_at=stop_at)
    return total
