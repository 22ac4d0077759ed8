"""Running code with the caller's rights, only if explicitly chosen.

Source: ADK (`UnsafeLocalCodeExecutor`), which runs code in the host's interpreter; this one never does.
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
from bough.execution.process.result import make_timed_out
from bough.execution.process.run_directory import RunDirectory
from bough.execution.process.workspace import Workspace
from bough.execution.request import CODE_FOLDER, WORK, Plan, plan, refuse_state
from bough.execution.sandbox.bubblewrap import configuration, resource_limits
from bough.execution.sandbox.rung import INSIDE

_log = logging.getLogger("bough.execution")


class UnsafeLocalCodeExecutor(CodeExecutorMixin):
    """Runs code as a child process with all rights of the caller, without any isolation.

    Time, output and processes are bounded as in every executor; memory, file size and open files by limits. Paths
    below `/work` and mount targets in `script` and `working_dir` are mapped to the host's folders. No name in a
    workspace is guarded.
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
            _log.warning("UnsafeLocalCodeExecutor runs code with all rights of this process; nothing is kept from it.")
        checked = plan(replace(request, guards=NO_GUARDS), default_timeout_seconds=self.default_timeout_seconds)
        refuse_state(checked.request)
        if checked.timeout_seconds == 0:
            return make_timed_out(checked, isolation=self.isolation)
        return await finish(
            run_process(
                checked,
                run_directory=self._run_directory,
                launch=_launch,
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


def _launch(inside: Plan, workspace: Workspace) -> Launch:
    workspace.make_private()
    outside = _on_host(inside, workspace)
    conf = configuration(outside, Identity())
    conf["limits"] = resource_limits(inside, count_processes=False)
    conf["python"] = None
    conf["home"] = _home(workspace)
    conf["argv"] = list(_argv(outside))
    return Launch(
        argv=[sys.executable, "-I", "-S", f"{INSIDE}/keeper.py", "start", CONF, STATUS],
        configuration=conf,
        stdin=inside.stdin,
        limits=inside.request.limits,
        env={},
    )


def _home(workspace: Workspace) -> str:
    return os.path.join(workspace.tmp, "home")


def _argv(plan: Plan) -> tuple[str, ...]:
    if plan.python is None:
        return plan.argv
    runner = (sys.executable, "-I", "-S", "-X", "utf8", f"{INSIDE}/program.py")
    return (*runner, plan.python, plan.path0, *plan.argv[1:])


def _on_host(inside: Plan, workspace: Workspace) -> Plan:
    """Return the plan with host paths."""
    places = {CODE_FOLDER: workspace.code, WORK: workspace.work}
    for mount in inside.mounts:
        places.update(_place(mount, workspace))
    env = {**inside.env, "HOME": _home(workspace), "TMPDIR": workspace.tmp, **inside.request.env}
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = ":".join(_map(path, places) for path in env["PYTHONPATH"].split(":"))
    mapped = {path: _map(path, places) for path in (inside.python or "", inside.path0, inside.cwd)}
    script = None if inside.request.script is None else os.fspath(inside.request.script)
    return replace(
        inside,
        python=None if inside.python is None else mapped[inside.python],
        argv=tuple(_map(arg, places) if _names_program(arg, inside, script) else arg for arg in inside.argv),
        path0=mapped[inside.path0],
        cwd=mapped[inside.cwd],
        env=env,
    )


def _names_program(arg: str, inside: Plan, script: str | None) -> bool:
    """Whether `arg` is the path that bough inserted, and not one of the caller's arguments."""
    if inside.code_file is not None:
        return arg == f"{CODE_FOLDER}/{inside.code_file[0]}"
    return script is not None and arg in (script, f"{WORK}/{script}")


def _place(mount: Mount, workspace: Workspace) -> dict[str, str]:
    if not mount.target.startswith(WORK + "/"):
        return {mount.target: mount.source}
    place = os.path.join(workspace.work, mount.target[len(WORK) + 1 :])
    if os.path.realpath(place) != mount.source:
        raise InvalidInput(
            f"Without a sandbox nothing can be mounted at {mount.target!r}.", hint="Use a sandboxed executor."
        )
    return {}


def _map(path: str, places: dict[str, str]) -> str:
    for inside in sorted(places, key=len, reverse=True):
        if path == inside or path.startswith(inside + "/"):
            return places[inside] + path[len(inside) :]
    return path
