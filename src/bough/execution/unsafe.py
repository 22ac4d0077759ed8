"""Run code with the caller's rights. This executor is used only if it is chosen explicitly.

Source: ADK (`UnsafeLocalCodeExecutor`, which runs code in the host's interpreter; here it is a separate process).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import replace

from bough.cancellation import finish
from bough.errors import InvalidInput, Unavailable
from bough.execution.base import NO_GUARDS, CodeExecutionInput, CodeExecutionResult, CodeExecutorMixin, Isolation, Mount
from bough.execution.process.child import CONF, STATUS, Launch
from bough.execution.process.identity import Identity
from bough.execution.process.process import run_process
from bough.execution.process.result import make_timeout_result
from bough.execution.process.run_directory import RunDirectory
from bough.execution.process.workspace import Workspace
from bough.execution.request import CODE_FOLDER, WORK, Plan, make_plan, refuse_persistent_interpreter
from bough.execution.sandbox.bubblewrap import configuration, resource_limits
from bough.execution.sandbox.rung import INSIDE

_log = logging.getLogger("bough.execution")


class UnsafeLocalCodeExecutor(CodeExecutorMixin):
    """Runs code as a child process with all rights of the caller, without isolation.

    The limits of time, output, memory, file size and open files apply as in other executors, and all processes of a run
    are killed at its end. In `script` and `working_dir`, paths below `/work` and mount targets are mapped to host
    folders. No name in a workspace is guarded.
    """

    name = "unsafe-local"
    stateful = False
    isolation = Isolation.NONE

    def __init__(self, *, default_timeout_seconds: float = 30.0) -> None:
        self.default_timeout_seconds = default_timeout_seconds
        self._run_directory = RunDirectory(groups=False)
        self._closed = False
        self._warned = False

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` with the caller's rights; the first call logs a warning."""
        if self._closed:
            raise Unavailable("The executor is closed.", hint="Make a new one, or call reinitialize().")
        if not self._warned:
            self._warned = True
            _log.warning("UnsafeLocalCodeExecutor runs code with all rights of this process, without isolation.")
        plan = make_plan(replace(request, guards=NO_GUARDS), default_timeout_seconds=self.default_timeout_seconds)
        refuse_persistent_interpreter(plan.request)
        if plan.timeout_seconds == 0:
            return make_timeout_result(plan, isolation=self.isolation)
        return await finish(
            run_process(
                plan,
                run_directory=self._run_directory,
                make_launch=_make_launch,
                isolation=self.isolation,
                identity=Identity(),
            ),
            cancel=True,
        )

    async def healthy(self) -> bool:
        """Whether the executor is open."""
        return not self._closed

    async def reinitialize(self) -> None:
        """Open the executor again."""
        await self.aclose()
        self._closed = False

    async def aclose(self) -> None:
        """Remove the executor's folder. Idempotent."""
        self._closed = True
        await asyncio.to_thread(self._run_directory.close)


def _make_launch(plan: Plan, workspace: Workspace) -> Launch:
    """Return the command that runs `plan` on the host, under a first process that kills leftovers at the end."""
    workspace.make_private()
    host_plan = _map_to_host(plan, workspace)
    conf = configuration(host_plan, Identity())
    conf["limits"] = resource_limits(plan, count_processes=False)
    conf["python"] = None
    conf["home"] = _locate_home(workspace)
    conf["argv"] = list(_make_argv(host_plan))
    return Launch(
        argv=[sys.executable, "-I", "-S", f"{INSIDE}/keeper.py", "start", CONF, STATUS],
        configuration=conf,
        stdin=plan.stdin,
        limits=plan.request.limits,
        env={},
    )


def _locate_home(workspace: Workspace) -> str:
    return os.path.join(workspace.tmp, "home")


def _make_argv(plan: Plan) -> tuple[str, ...]:
    """Return the command of a plan; a Python file is run by bough's Python in a separate process."""
    if plan.python is None:
        return plan.argv
    runner = (sys.executable, "-I", "-S", "-X", "utf8", f"{INSIDE}/program.py")
    return (*runner, plan.python, plan.path0, *plan.argv[1:])


def _map_to_host(plan: Plan, workspace: Workspace) -> Plan:
    """Return the plan with host paths instead of paths inside a sandbox."""
    host_paths = {CODE_FOLDER: workspace.code, WORK: workspace.work}
    for mount in plan.mounts:
        host_paths.update(_map_mount(mount, workspace))
    env = {**plan.env, "HOME": _locate_home(workspace), "TMPDIR": workspace.tmp, **plan.request.env}
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = ":".join(_map_path(path, host_paths) for path in env["PYTHONPATH"].split(":"))
    script = None if plan.request.script is None else os.fspath(plan.request.script)
    return replace(
        plan,
        python=None if plan.python is None else _map_path(plan.python, host_paths),
        argv=tuple(_map_path(arg, host_paths) if _is_program_path(arg, plan, script) else arg for arg in plan.argv),
        path0=_map_path(plan.path0, host_paths),
        cwd=_map_path(plan.cwd, host_paths),
        env=env,
    )


def _is_program_path(arg: str, plan: Plan, script: str | None) -> bool:
    """Whether `arg` is the path of the code or script to run."""
    if plan.code_file is not None:
        return arg == f"{CODE_FOLDER}/{plan.code_file[0]}"
    return script is not None and arg in (script, f"{WORK}/{script}")


def _map_mount(mount: Mount, workspace: Workspace) -> dict[str, str]:
    """Return {target: source}; an empty dict if the mount only shows a file of the workspace at its own path.

    Raises:
        InvalidInput: The target lies below `/work`, and the source is another file.
    """
    if not mount.target.startswith(WORK + "/"):
        return {mount.target: mount.source}
    host_path = os.path.join(workspace.work, mount.target[len(WORK) + 1 :])
    if os.path.realpath(host_path) != mount.source:
        raise InvalidInput(
            f"Without a sandbox, nothing can be mounted at {mount.target!r}.", hint="Use an executor with a sandbox."
        )
    return {}


def _map_path(path: str, host_paths: dict[str, str]) -> str:
    """Return the host path of a sandbox path, by its longest known parent folder. Other paths are unchanged."""
    for folder in sorted(host_paths, key=len, reverse=True):
        if path == folder or path.startswith(folder + "/"):
            return host_paths[folder] + path[len(folder) :]
    return path
