"""One container for the whole of a task: its state stays from one command to the next.

Nothing of this machine is shown in it but one folder, the workspace, which lies at the task's working folder, and a
private folder for the hand-over of runs. Commands run as the task's user, root in most images, so the workspace has to
lie where no other user of this machine can get at it: a program inside can leave files of root there.

`execute` keeps the contract of every executor and needs `python3` in the image; `run_command` needs nothing.
Source: seed 003 (`TaskContainerExecutor`: one container a task, its own working folder, every exec bounded).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bough.cancellation import finish
from bough.errors import ExecutorError, InvalidInput
from bough.execution.base import CodeExecutionInput, CodeExecutionResult, ExecutionLimits, Mount
from bough.execution.container.archive import pack_file, pack_folder, pack_folders, pack_links, read_member
from bough.execution.container.child import ContainedRun
from bough.execution.container.command import CommandOutcome, ContainerCommand, run_in_container
from bough.execution.container.container import INSIDE_AT, OWNER_LABEL, ContainerCodeExecutor
from bough.execution.container.disk import LOOK_SECONDS, ContainerDisk
from bough.execution.container.engine import engine_errors
from bough.execution.container.exec_run import RunByExec, list_processes
from bough.execution.process.child import ChildProcess, Launch
from bough.execution.process.identity import Identity
from bough.execution.process.workspace import Workspace
from bough.execution.request import CODE_FOLDER, WORK, Plan
from bough.execution.sandbox.rung import INSIDE
from bough.execution.value_types import check_kinds

_RUNS: Final = "/run/bough/runs"
"""Where the folders of runs are seen inside."""

_WORKSPACE: Final = "/run/bough/workspace"
"""Where the workspace is mounted unless the task has a working folder of its own."""

_FIRST_PROCESS: Final = ("sh", "-c", "read line")
"""What the container lives for: a shell's own command, which no image lacks, waiting for a line that never comes."""

_RESTING_PROCESSES: Final = 2
"""The engine's init and the shell."""

_CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL")
"""What package managers and test scripts need as root."""

TASK_LIMITS: Final = ExecutionLimits(memory_bytes=2 << 30, processes=256)


class TaskContainerExecutor(ContainerCodeExecutor):
    """Runs everything in one container, which is made at the first use and removed by `aclose`.

    Runs and commands take turns. At a bound the container is killed and started again: its files stay, every process
    is gone. What a run of `execute` leaves behind is ended in the same way; what a command leaves runs on, for it may
    be a server under test, until a bound or `end_processes`.

    Memory, processes and disk are bounded for all of the container together, the disk by looking at it while something
    runs; a bound of memory in a request holds for each process.

    Args:
        image: Name or digest of an image of the engine; it is never pulled.
        workspace: A folder of this machine that is shown at `workdir`, filled from the image where it is empty; the
            only workspace that requests can name. None: a private one, removed with the container.
        workdir: Where commands run; `/work` of requests that name the workspace leads there.
        user: As whom commands run; None: the image's.
        network: Whether the container has the engine's network.
        cpus: How many processors it may use.
        disk_bytes: How much its files may take beside those of the image, the workspace included; None: unbounded.
        labels: Of the container, beside `bough=task` and `bough.owner`.
    """

    guards_workspaces = False  # the workspace is thrown away with its task

    def __init__(
        self,
        image: str,
        *,
        workspace: Path | None = None,
        workdir: str = WORK,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        limits: ExecutionLimits = TASK_LIMITS,
        cpus: float = 1.0,
        disk_bytes: int | None = None,
        network: bool = False,
        labels: Mapping[str, str] | None = None,
        docker_host: str | None = None,
        default_timeout_seconds: float = 300.0,
    ) -> None:
        super().__init__(image, docker_host=docker_host, default_timeout_seconds=default_timeout_seconds)
        self.name = f"task-container:{image}"
        self.workdir = workdir
        # `/work` leads elsewhere from one run to the next, and what is mounted there could not be replaced.
        self._seat = _WORKSPACE if workdir == WORK else workdir
        self._workspace = workspace
        self._user, self._env = user, dict(env or {})
        self._limits, self._cpus, self._network = limits, cpus, network
        self._disk_bytes = disk_bytes
        self._disk: ContainerDisk | None = None
        self._labels = {**(labels or {}), "bough": "task"}
        self._turn = asyncio.Lock()
        self._container: Any = None
        self._owns_workspace = workspace is None
        self._shell = ""

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` in the container; see `ContainerCodeExecutor.execute`.

        Raises:
            InvalidInput: As there; or it names another workspace, a writable mount, or a mount below `/work`.
        """
        check_kinds(request)
        await asyncio.to_thread(self._check_places, request)
        async with self._turn:
            return await super().execute(request)

    async def start(self) -> None:
        """Make and start the container, where it is not there.

        Raises:
            SandboxUnavailable: The engine or the image is missing.
            ExecutorError: The container could not be started.
        """
        await self._connect()
        async with self._turn:
            await finish(asyncio.to_thread(self._make))

    async def run_command(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> CommandOutcome:
        """Run a command: a text by the image's bash, or its sh; a list as it stands. Cancelling ends all processes.

        Args:
            env: Instead of the task's.
            timeout_seconds: None: the executor's default.

        Raises:
            SandboxUnavailable: The engine or the image is missing.
            ExecutorError: The engine refuses.
        """
        await self.start()
        argv = (self._shell, "-c", command) if isinstance(command, str) else command
        wanted = ContainerCommand(
            argv=argv,
            user=user or self._user,
            cwd=cwd or self._seat,
            env=self._env if env is None else env,
            timeout_seconds=self.default_timeout_seconds if timeout_seconds is None else timeout_seconds,
            stdout_bytes=self._limits.stdout_bytes,
            stderr_bytes=self._limits.stderr_bytes,
        )
        stop = threading.Event()
        async with self._turn:
            running = asyncio.ensure_future(asyncio.to_thread(self._run_command, wanted, stop))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                stop.set()
                await finish(asyncio.wait([running]))
                raise

    async def end_processes(self) -> None:
        """End every process in the container; files stay."""
        await self.start()
        async with self._turn:
            await finish(asyncio.to_thread(self.restart))

    async def put_folder(self, source: Path, target: str) -> None:
        """Copy a folder of this machine to a new folder of the container, of root, everything executable for all."""
        await self.start()
        data = await asyncio.to_thread(pack_folder, source, target)
        await asyncio.to_thread(self._container.put_archive, "/", data)

    async def replace_folders(self, path: str, *, inside: Sequence[str] = ()) -> None:
        """Put a new folder of root, with empty ones `inside`, in the place of what is there, a link too.

        The engine does it; no program of the image, which could have been changed, takes part.
        """
        await self.start()
        folders = [path, *(f"{path}/{name}" for name in inside)]
        await asyncio.to_thread(self._container.put_archive, "/", pack_file(path))
        await asyncio.to_thread(self._container.put_archive, "/", pack_folders(folders))

    async def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of a regular file of the container; None where there is none.

        Raises:
            InvalidInput: It is a link, a device or a folder, or too large.
        """
        await self.start()
        return await asyncio.to_thread(self._read_file, path, max_bytes)

    async def list_changes(self) -> list[str]:
        """Return the paths that are new, changed or gone compared with the image."""
        await self.start()
        found: list[dict[str, Any]] = await asyncio.to_thread(self._container.diff) or []
        return sorted(str(each["Path"]) for each in found)

    async def aclose(self) -> None:
        """Remove the container, its volumes and its folder; closing twice is fine."""
        container, self._container = self._container, None
        if container is not None:
            await finish(asyncio.to_thread(_remove, container))
        if self._owns_workspace:
            self._workspace = None
        await super().aclose()

    # Inside.

    def _check_places(self, request: CodeExecutionInput) -> None:
        wanted, known = request.workspace, self._workspace
        if wanted and os.path.isdir(wanted) and (known is None or not os.path.samefile(wanted, known)):
            raise InvalidInput(
                f"The task's container does not show {wanted!r}.", hint="Name the workspace that it was made with."
            )
        for mount in request.mounts:
            if _is_below(mount.source, wanted):
                continue
            if mount.writable or mount.target.startswith(f"{WORK}/"):
                raise InvalidInput(
                    f"A task's container cannot mount {mount.target!r} there.", hint="Mount it read-only beside /work."
                )

    def _run_command(self, wanted: ContainerCommand, stop: threading.Event) -> CommandOutcome:
        try:
            return run_in_container(
                self._engine, self._container.id, wanted, stop=stop, end=self.restart, is_full=self._is_full
            )
        except (OSError, *engine_errors()) as error:
            raise ExecutorError(
                f"The engine refused a command: {error}", hint="Check that the container engine is running."
            ) from error

    def _make(self) -> None:
        """Make and start the container, its workspace filled from the image. Blocks."""
        if self._container is not None:
            return
        os.chmod(self._run_directory.path, 0o700)  # files of root may lie in it: nobody else passes through
        if self._workspace is None:
            self._workspace = Path(self._run_directory.new_folder())
        try:
            container = self._engine.containers.create(self._image_id, **self._options())
            try:
                if not os.listdir(self._workspace):
                    self._fill_workspace(container)
                container.start()
                self._shell = "bash" if _has_bash(container) else "sh"
            except BaseException:
                _remove(container)
                raise
        except (OSError, *engine_errors()) as error:
            raise ExecutorError(
                f"The container could not be started: {error}", hint="Check that the container engine is running."
            ) from error
        self._container = container
        if self._disk_bytes is not None:
            self._disk = ContainerDisk(self._engine, container.id, self._workspace, self._disk_bytes)

    def _is_full(self) -> bool:
        return self._disk is not None and self._disk.is_full()

    def _fill_workspace(self, container: Any) -> None:
        """Put what the image has at the working folder into the workspace. Blocks.

        The engine packs and unpacks it: nothing of an image is written by this process.
        """
        from docker import errors

        pattern = self._engine.containers.create(self._image_id, entrypoint=["sh"], command=[])
        try:
            content, _ = pattern.get_archive(self.workdir)
            container.put_archive(os.path.dirname(self.workdir), content)
        except errors.NotFound:
            return  # the image has no such folder
        finally:
            _remove(pattern)

    def _options(self) -> dict[str, Any]:
        limits = self._limits
        return {
            "entrypoint": list(_FIRST_PROCESS),
            "command": [],
            "init": True,
            "stdin_open": True,
            "detach": True,
            "environment": self._env,
            "user": "0:0",
            "network_mode": "bridge" if self._network else "none",
            "cap_drop": ["ALL"],
            "cap_add": list(_CAPABILITIES),
            "security_opt": ["no-new-privileges"],
            "ipc_mode": "private",
            "hostname": "task",
            "working_dir": "/",
            "pids_limit": limits.processes + _RESTING_PROCESSES,
            "mem_limit": limits.memory_bytes,
            "memswap_limit": limits.memory_bytes,
            "nano_cpus": int(self._cpus * 1e9),
            "volumes": [
                f"{INSIDE}:{INSIDE_AT}:ro",
                f"{self._run_directory.path}:{_RUNS}:rw",
                f"{self._workspace}:{self._seat}:rw",
            ],
            "labels": {**self._labels, OWNER_LABEL: self._owner},
            "log_config": {"type": "none", "config": {}},
        }

    def restart(self) -> None:
        """End every process of the container. Blocks."""
        container = self._container
        try:
            container.kill()
        except engine_errors():
            container.reload()  # it may have ended by itself; whatever else it is, the start tells
        container.wait()
        container.start()

    def _read_file(self, path: str, max_bytes: int) -> bytes | None:
        from docker import errors

        try:
            content, _ = self._container.get_archive(path)
        except errors.NotFound:
            return None
        return read_member(content, path, max_bytes)

    # Of the base: what a run is, how it begins, and what it may use.

    async def _watch(self, child: ChildProcess, checked: Plan, workspace: Workspace) -> None:
        looking = asyncio.create_task(self._stop_when_full(child))
        try:
            await super()._watch(child, checked, workspace)
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _stop_when_full(self, child: ChildProcess) -> None:
        while not await asyncio.to_thread(self._is_full):  # noqa: ASYNC110 - a disk tells nobody that it fills
            await asyncio.sleep(LOOK_SECONDS)
        child.stop("work_bytes")

    def _identity(self, checked: Plan) -> Identity:
        return Identity()

    def _start(self, checked: Plan, workspace: Workspace) -> ContainedRun:
        """Lay the run's folders where the program looks for them, and start its first process. Blocks."""
        self._make()
        inside = _locate_run(workspace)
        links = {CODE_FOLDER: f"{inside}/code", WORK: f"{inside}/work" if checked.workspace is None else self._seat}
        for number, mount in enumerate(checked.mounts):
            if _is_below(mount.source, checked.workspace):
                continue  # what guards a part of the workspace: this one is thrown away with its task
            _copy_mount(mount, os.path.join(workspace.folder, f"mount-{number}"))
            links[mount.target] = f"{inside}/mount-{number}"
        invitation = [f"{inside}/exchange/socket", f"{inside}/exchange/token"]
        program = ["python3", "-I", "-S", "-X", "utf8", f"{INSIDE_AT}/contained.py", *invitation]
        try:
            self._container.put_archive("/", pack_links(links))
            resting = list_processes(self._container)
            made = self._engine.api.exec_create(self._container.id, program, user="0:0", workdir="/")
            self._engine.api.exec_start(made["Id"], detach=True)
        except (OSError, *engine_errors()) as error:
            raise ExecutorError(
                f"The run could not be started: {error}", hint="Check that the container engine is running."
            ) from error
        return RunByExec(self._engine, self._container, made["Id"], resting, restart=self.restart)

    def _launch(self, checked: Plan, workspace: Workspace) -> Launch:
        found = super()._launch(checked, workspace)
        home = f"{_locate_run(workspace)}/home"  # each run's own, where `/tmp` is the container's
        env = {**checked.env, "HOME": checked.request.env.get("HOME", home)}
        return replace(found, configuration={**found.configuration, "home": home, "env": env})


def _locate_run(workspace: Workspace) -> str:
    """Return where the folder of a run is seen in the container."""
    return f"{_RUNS}/{os.path.basename(workspace.folder)}"


def _copy_mount(mount: Mount, target: str) -> None:
    """Copy what shall be mounted into the folder of the run."""
    if os.path.isdir(mount.source):
        shutil.copytree(mount.source, target, symlinks=True)
    else:
        shutil.copy2(mount.source, target)


def _is_below(path: str, folder: str | os.PathLike[str] | None) -> bool:
    return folder is not None and os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


def _has_bash(container: Any) -> bool:
    return bool(container.exec_run(["bash", "-c", ":"]).exit_code == 0)


def _remove(container: Any) -> None:
    with suppress(*engine_errors()):
        container.remove(force=True, v=True)
