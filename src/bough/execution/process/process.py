"""Run one plan on this machine: prepare its folders, start and watch its processes, collect its files, clean up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from bough.cancellation import finish
from bough.execution.base import CodeExecutionResult, Isolation
from bough.execution.process.cgroup import DelayedGroup
from bough.execution.process.child import ChildProcess, Launch
from bough.execution.process.files import Collected
from bough.execution.process.identity import Identity
from bough.execution.process.proxy import AllowListProxy
from bough.execution.process.result import build_result
from bough.execution.process.run_directory import RunDirectory
from bough.execution.process.watch import watch
from bough.execution.process.workspace import Workspace
from bough.execution.request import Plan


async def run_process(
    plan: Plan,
    *,
    run_directory: RunDirectory,
    make_launch: Callable[[Plan, Workspace], Launch],
    isolation: Isolation,
    identity: Identity,
    make_child: Callable[[Launch], ChildProcess] = ChildProcess,
) -> CodeExecutionResult:
    """Run `plan` and return its result. No process and no temporary file remains, even after an error.

    Args:
        make_launch: Returns the command of the plan.
        identity: The user of the run.
        make_child: Creates the object that starts the command.
    """
    workspace = await prepare_workspace(plan, run_directory, identity)
    group = DelayedGroup(lambda: run_directory.new_group(plan.request.limits))
    proxy = AllowListProxy(plan.domain_rules)
    try:
        launch = replace(make_launch(plan, workspace), on_listener=proxy.serve if plan.domain_rules else None)
        process_end, (collected, memory_ran_out) = await make_child(launch).run(
            timeout_seconds=plan.timeout_seconds,
            watch=lambda child: watch(child, plan, workspace, group=group),
            collect_output=lambda: finish(asyncio.to_thread(_collect_and_remove, plan, workspace, group)),
        )
    except BaseException:
        await finish(asyncio.to_thread(_remove_run, workspace, group))
        raise
    finally:
        await proxy.close()
    return build_result(plan, process_end, collected, isolation=isolation, memory_ran_out=memory_ran_out)


def _collect_and_remove(plan: Plan, workspace: Workspace, group: DelayedGroup) -> tuple[Collected, bool]:
    """Return the output files and whether memory ran out; remove the folders and the control group of the run."""
    try:
        return workspace.collect(plan), group.memory_kills > 0
    finally:
        _remove_run(workspace, group)


def _remove_run(workspace: Workspace, group: DelayedGroup) -> None:
    """Remove the control group and the folders of a run. Idempotent."""
    group.close()
    workspace.remove()


async def prepare_workspace(plan: Plan, run_directory: RunDirectory, identity: Identity) -> Workspace:
    """Create the workspace of a run in another thread. If the caller is cancelled, the workspace is removed again."""
    preparing = asyncio.ensure_future(asyncio.to_thread(Workspace.prepare, plan, run_directory, identity))
    try:
        return await finish(preparing)
    except asyncio.CancelledError:
        if preparing.exception() is None:
            await finish(asyncio.to_thread(preparing.result().remove))
        raise
