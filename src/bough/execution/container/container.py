"""Running code in containers of a local engine (Docker, or Podman by its socket), without network.

A fresh container runs one request: read-only root, no capability, an unprivileged user. A kept container (`keep=True`)
serves a whole task: root of the image stays root, files stay, processes are ended between runs. It shows one folder of
this machine, the workspace, and a private folder for the hand-over of runs. Commands run as the task's user, root in
most images, so the workspace must lie where no other user of this machine can reach it: a program inside can leave
files of root there.

In both, the first process of a run is bough's own. It fetches the descriptors of the run by a socket, so the engine
never sees what a program prints. Both have bounds on memory and processes and the system-call filter of every sandbox.
Source: ADK (`ContainerCodeExecutor`; `TaskContainerExecutor`: one container a task, its own working folder, every
exec bounded).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

from bough.cancellation import finish
from bough.errors import ExecutorError, InvalidInput, NotSupported, SandboxUnavailable, Unavailable
from bough.execution.base import (
    NO_GUARDS,
    CodeExecutionInput,
    CodeExecutionResult,
    CodeExecutorMixin,
    ExecutionLimits,
    Isolation,
    Mount,
)
from bough.execution.container.archive import pack_file, pack_folder, pack_folders, pack_links, read_member
from bough.execution.container.child import (
    ContainerChild,
    ContainerRun,
    ExecRun,
    Invitation,
    NoGroup,
    list_processes,
    peer,
    remove_container,
)
from bough.execution.container.command import CommandOutcome, ContainerCommand, run_in_container
from bough.execution.container.disk import LOOK_SECONDS, ContainerDisk
from bough.execution.container.engine import connect, engine_errors, explain_failure, is_refusal, parse_socket_path
from bough.execution.container.janitor import ContainerJanitor
from bough.execution.process.cgroup import find_memory_group
from bough.execution.process.child import ChildProcess, Launch
from bough.execution.process.disk_use import max_names
from bough.execution.process.identity import Identity, identity_for
from bough.execution.process.process import prepare
from bough.execution.process.result import build_result, make_timed_out
from bough.execution.process.run_directory import RunDirectory
from bough.execution.process.watch import watch
from bough.execution.process.workspace import Workspace
from bough.execution.request import CODE_FOLDER, WORK, Plan, plan, refuse_state
from bough.execution.sandbox.bubblewrap import configuration
from bough.execution.sandbox.rung import INSIDE
from bough.execution.sandbox.seccomp import SECCOMP_INSTALL, filter_program
from bough.execution.value_types import check_kinds

_INSIDE_AT: Final = "/run/bough/inside"
"""The folder of bough's first process in a container."""

_OWNER_LABEL: Final = "bough.owner"
"""The label by which the janitor finds the containers of an executor that has ended."""

_EXCHANGE: Final = "/run/bough/exchange"
_RUNS: Final = "/run/bough/runs"
"""The folder of runs in a kept container."""

_WORKSPACE: Final = "/run/bough/workspace"
"""The mount point of the workspace in a kept container, unless the task sets a working folder."""

_KEEPING_PROCESS: Final = ("sh", "-c", "read line")
"""The main process of a kept container: a shell built-in, which every image has, waits for a line for ever."""

_RESTING_PROCESSES: Final = 2
"""Processes of an idle kept container: the engine's init and the shell."""

_CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL")
"""Capabilities that package managers and test scripts need as root of a kept container."""

_START_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.2
"""The interval of checks for a container that has not answered, in seconds."""

_CONFINED: Final[Mapping[str, Any]] = {
    "command": [],
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "ipc_mode": "private",
    "working_dir": "/",
    "log_config": {"type": "none", "config": {}},
}
"""Options of every container."""

TASK_LIMITS: Final = ExecutionLimits(memory_bytes=2 << 30, processes=256)


class KeepOptions(TypedDict, total=False):
    """Options of a kept container.

    Attributes:
        workspace: A folder of this machine that is mounted at `workdir`, and filled from the image if empty; the
            only workspace that requests can name. None: a private one, removed with the container.
        workdir: Working folder of commands (`/work`); `/work` of requests that name the workspace leads there.
        user: The user that runs commands; None for the image's.
        env: The environment of commands.
        limits: Limits of the whole container (`TASK_LIMITS`).
        cpus: Number of processors (1).
        disk_bytes: Bound on its files, without those of the image but with the workspace; None for no bound.
        network: Whether it has the engine's network (False).
        labels: Labels in addition to `bough=task` and `bough.owner`.
    """

    workspace: Path | None
    workdir: str
    user: str | None
    env: Mapping[str, str] | None
    limits: ExecutionLimits
    cpus: float
    disk_bytes: int | None
    network: bool
    labels: Mapping[str, str] | None


class ContainerCodeExecutor(CodeExecutorMixin):
    """Runs each request in a new container, or all of them in one container (`keep=True`).

    The engine must run on this machine: workspaces are mounted by path, and descriptors are passed over a socket.
    When the engine fails, the executor is unhealthy, and refuses at once until `reinitialize`.

    A kept container is created at the first use and removed by `aclose`. Runs and commands take turns. At a bound the
    container is killed and started again: its files stay, its processes end. Processes that `execute` leaves behind
    end in the same way; those of a command continue, as they may be a server under test, until a bound or
    `end_processes`. Memory, processes and disk are bounded for the whole container, the disk by measuring it
    while something runs; a memory bound in a request applies to each process.

    Args:
        image: Name or digest of a local image, never pulled; resolved once, and then pinned by its id.
            `execute` needs `python3` in it; `run_command` needs nothing.
        keep: Use one container for everything. `run_command` and the methods for files need it.
        docker_host: The engine's address, for example `unix:///run/docker.sock`; None reads the environment.
        default_timeout_seconds: For requests and commands without one; the start of the container does not count.
            None: 30, or 300 with `keep`.
        options: Options of the kept container.

    Raises:
        InvalidInput: Options of a kept container without `keep`.
    """

    stateful = False
    isolation = Isolation.CONTAINER

    def __init__(
        self,
        image: str,
        *,
        keep: bool = False,
        docker_host: str | None = None,
        default_timeout_seconds: float | None = None,
        **options: Unpack[KeepOptions],
    ) -> None:
        if options and not keep:
            raise InvalidInput(f"{', '.join(sorted(options))} need a kept container.", hint="Pass keep=True.")
        self.name = f"{'task-container' if keep else 'container'}:{image}"
        self.keep = keep
        if default_timeout_seconds is None:
            default_timeout_seconds = 300.0 if keep else 30.0
        self.default_timeout_seconds = default_timeout_seconds
        self._image = image
        self._docker_host = docker_host
        self._run_directory = RunDirectory(groups=False)
        self._engine: Any = None
        self._janitor: ContainerJanitor | None = None
        self._image_id = ""
        self._filter = b""
        self._failure: str | None = None
        self._closed = False
        self._connecting = asyncio.Lock()
        self._options = options
        self.workdir = options.get("workdir", WORK)
        # `/work` is a link that changes from run to run, and a mount in it could not be replaced.
        self._seat = _WORKSPACE if self.workdir == WORK else self.workdir
        self._workspace = options.get("workspace")
        self._env = dict(options.get("env") or {})
        self._limits = options.get("limits", TASK_LIMITS)
        self._turn = asyncio.Lock() if keep else nullcontext()
        self._container: Any = None
        self._disk: ContainerDisk | None = None
        self._shell = ""

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` in a container. Cancelling ends its processes.

        Safe for concurrent use: new containers run in parallel, runs in a kept one take turns.

        Raises:
            InvalidInput: The request is invalid; nothing was run. A kept container refuses another
                workspace, a writable mount, and a mount below `/work`.
            NotSupported: It asks for a persistent interpreter; nothing was run.
            SandboxUnavailable: The engine, the image or libseccomp is missing; nothing was run.
            Unavailable: The executor is closed, or the engine failed before.
            ExecutorError: The program, or the container, could not be started.
        """
        if self.keep:
            check_kinds(request)
            await asyncio.to_thread(self._check_places, request)
            request = replace(request, guards=NO_GUARDS)  # the workspace is thrown away with its task
        async with self._turn:
            if self._closed:
                raise Unavailable("The executor is closed.", hint="Make a new one, or call reinitialize().")
            checked = plan(request, default_timeout_seconds=self.default_timeout_seconds)
            refuse_state(checked.request)
            if self._failure is not None:
                raise Unavailable(
                    f"The container engine failed: {self._failure}", hint="Fix it, then call reinitialize()."
                )
            if checked.rules:
                raise InvalidInput(
                    "Containers have no network.", hint="Use a LocalSandboxCodeExecutor for network by domains."
                )
            await self._connect()
            if checked.timeout_seconds == 0:
                return make_timed_out(checked, isolation=self.isolation)
            return await finish(self._run(checked), cancel=True)

    async def healthy(self) -> bool:
        """Whether the engine answers and has the image."""
        if self._closed or self._failure is not None:
            return False
        try:
            await self._connect()
            return bool(await asyncio.to_thread(self._engine.ping))
        except (SandboxUnavailable, OSError, *engine_errors()):
            return False

    async def reinitialize(self) -> None:
        """Forget the failure and the kept container, and connect again at the next run."""
        await self.aclose()
        self._failure = None
        self._closed = False

    async def aclose(self) -> None:
        """Remove a kept container, disconnect from the engine, and remove the executor's folder. Idempotent."""
        container, self._container = self._container, None
        if container is not None:
            await finish(asyncio.to_thread(remove_container, container))
        self._workspace = self._options.get("workspace")
        self._closed = True
        engine, self._engine = self._engine, None
        janitor, self._janitor = self._janitor, None
        if engine is not None:
            await asyncio.to_thread(engine.close)
        # Only now: while a container of this executor may exist, the janitor must outlive a kill of this process.
        if janitor is not None:
            await asyncio.to_thread(janitor.close)
        await asyncio.to_thread(self._run_directory.close)

    # Of a kept container only.

    async def start(self) -> None:
        """Create and start the kept container, unless it is running.

        Raises:
            NotSupported: The executor keeps no container.
            SandboxUnavailable: The engine or the image is missing.
            ExecutorError: The container could not be started.
        """
        if not self.keep:
            raise NotSupported("The executor keeps no container.", hint="Pass keep=True.")
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
        """Run a command: a text with the image's bash or sh, a list unchanged. Cancelling ends all processes.

        Args:
            env: Replaces the task's environment.
            timeout_seconds: None for the executor's default.

        Raises:
            NotSupported: The executor keeps no container.
            SandboxUnavailable: The engine or the image is missing.
            ExecutorError: The engine refused.
        """
        await self.start()
        argv = (self._shell, "-c", command) if isinstance(command, str) else command
        prepared = ContainerCommand(
            argv=argv,
            user=user or self._options.get("user"),
            cwd=cwd or self._seat,
            env=self._env if env is None else env,
            timeout_seconds=self.default_timeout_seconds if timeout_seconds is None else timeout_seconds,
            stdout_bytes=self._limits.stdout_bytes,
            stderr_bytes=self._limits.stderr_bytes,
        )
        stop = threading.Event()
        async with self._turn:
            running = asyncio.ensure_future(asyncio.to_thread(self._run_command, prepared, stop))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                stop.set()
                # The turn is given up only when the command is gone; the next one would meet its processes.
                await finish(asyncio.wait([running]))
                raise

    async def end_processes(self) -> None:
        """End every process in the kept container; files stay."""
        await self.start()
        async with self._turn:
            await finish(asyncio.to_thread(self._restart))

    async def put_folder(self, source: Path, target: str) -> None:
        """Copy a folder of this machine to a new folder of the container, owned by root and executable for all."""
        await self.start()
        data = await asyncio.to_thread(pack_folder, source, target)
        await asyncio.to_thread(self._container.put_archive, "/", data)

    async def replace_folders(self, path: str, *, inside: Sequence[str] = ()) -> None:
        """Replace whatever is at `path`, a link too, by a new folder of root with the empty folders `inside`.

        The engine does it, without any program of the image, which could have been changed.
        """
        await self.start()
        folders = [path, *(f"{path}/{name}" for name in inside)]
        # A file replaces whatever has the name; a folder alone would keep what an existing one holds.
        await asyncio.to_thread(self._container.put_archive, "/", pack_file(path))
        await asyncio.to_thread(self._container.put_archive, "/", pack_folders(folders))

    async def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of a regular file of the kept container; None if it does not exist.

        Raises:
            InvalidInput: It is a link, a device or a folder, or too large.
        """
        await self.start()
        return await asyncio.to_thread(self._read_file, path, max_bytes)

    async def list_changes(self) -> list[str]:
        """Return the paths that were added, changed or deleted compared with the image."""
        await self.start()
        changes: list[dict[str, Any]] = await asyncio.to_thread(self._container.diff) or []
        return sorted(str(change["Path"]) for change in changes)

    # The engine.

    async def _connect(self) -> None:
        async with self._connecting:
            if self._engine is None:
                self._engine, self._image_id, self._filter = await asyncio.to_thread(self._open_engine)

    def _open_engine(self) -> tuple[Any, str, bytes]:
        try:
            program = filter_program()
        except (ImportError, RuntimeError) as error:
            raise SandboxUnavailable("libseccomp or pyseccomp is missing.", hint=SECCOMP_INSTALL) from error
        try:
            engine = connect(self._docker_host)
        except SandboxUnavailable as error:
            if error.__cause__ is not None and not isinstance(error.__cause__, ImportError):
                self._failure = error.message
            raise
        with ExitStack() as unless_it_works:
            unless_it_works.callback(engine.close)
            image_id = self._find_image(engine)
            # Before the first container: a kill of this process after its creation would leave it for ever.
            if path := parse_socket_path(self._docker_host):
                self._janitor = ContainerJanitor(path, f"{_OWNER_LABEL}={self._owner}")
            unless_it_works.pop_all()
        return engine, image_id, program

    @property
    def _owner(self) -> str:
        """The value of the label of this executor's containers."""
        return os.path.basename(self._run_directory.path)

    def _find_image(self, engine: Any) -> str:
        from docker import errors

        try:
            return str(engine.images.get(self._image).id)
        except errors.ImageNotFound as error:
            raise SandboxUnavailable(
                f"The engine has no image {self._image}.", hint=f"docker pull {self._image}"
            ) from error
        except (OSError, *engine_errors()) as error:
            self._failure = f"No container engine answers: {error}"
            raise SandboxUnavailable(self._failure, hint="apt-get install docker.io") from error

    def _answers(self) -> bool:
        """Whether the engine still answers. Blocks."""
        try:
            return bool(self._engine.ping())
        except (OSError, *engine_errors()):
            return False

    # One run.

    async def _run(self, checked: Plan) -> CodeExecutionResult:
        workspace = await prepare(checked, self._run_directory, self._choose_identity(checked))
        run: ContainerRun | None = None
        try:
            await finish(asyncio.to_thread(workspace.make_private))
            with Invitation(workspace) as invitation:
                start = self._start_in_kept if self.keep else self._start_fresh
                run = await finish(asyncio.to_thread(start, checked, workspace))
                connection = await self._await_answer(invitation, run)
            with connection:
                group = find_memory_group(peer(connection))
                child = ContainerChild(self._make_launch(checked, workspace), connection, run, group)
                ended, (collected, ran_out) = await child.run(
                    timeout_seconds=checked.timeout_seconds,
                    watch=lambda running: self._watch(running, checked, workspace),
                    harvest=lambda: child.harvest(workspace, checked),
                )
        finally:
            # Killing a client of the engine leaves the container running; only the engine ends it. And the folders
            # go last: a program that still runs would write below them.
            if run is not None:
                await finish(asyncio.to_thread(run.end))
            await finish(asyncio.to_thread(workspace.remove))
        return build_result(checked, ended, collected, isolation=self.isolation, memory_ran_out=ran_out)

    def _choose_identity(self, checked: Plan) -> Identity:
        """Return the user that starts a run: root in a kept container; else the workspace's owner, or an unused uid."""
        if self.keep:
            return Identity()
        # As root, never uid 0; an ordinary user's own, with whose files the container works.
        return identity_for(checked.workspace) if os.geteuid() == 0 else Identity(os.geteuid(), os.getegid())

    def _start_fresh(self, checked: Plan, workspace: Workspace) -> ContainerRun:
        """Create and start a container for one run. Blocks."""
        container: Any = None
        options = _make_fresh_options(checked, workspace, self._owner)
        with explain_failure("The container could not be started"):
            try:
                container = self._engine.containers.create(self._image_id, **options)
                container.start()
            except (OSError, *engine_errors()) as error:
                if container is not None:
                    remove_container(container)  # one that never ran is not removed automatically
                # A refusal concerns this request only. A healthy engine also answers 500, for example if a folder to
                # mount no longer exists.
                if not is_refusal(error) and not self._answers():
                    self._failure = str(error)
                raise
        return ContainerRun(container)

    def _start_in_kept(self, checked: Plan, workspace: Workspace) -> ContainerRun:
        """Link the run's folders to the paths that the program expects, and start its first process. Blocks."""
        self._make()
        folder = _locate_run(workspace)
        links = {CODE_FOLDER: f"{folder}/code", WORK: f"{folder}/work" if checked.workspace is None else self._seat}
        for number, mount in enumerate(checked.mounts):
            if _is_below(mount.source, checked.workspace):
                continue  # what guards a part of the workspace: this one is thrown away with its task
            _copy_mount(mount, os.path.join(workspace.folder, f"mount-{number}"))
            links[mount.target] = f"{folder}/mount-{number}"
        program = _make_first_command(f"{folder}/exchange")
        with explain_failure("The run could not be started"):
            self._container.put_archive("/", pack_links(links))
            resting = list_processes(self._container)  # before the run: what is more afterwards is the run's
            process = self._engine.api.exec_create(self._container.id, program, user="0:0", workdir="/")
            self._engine.api.exec_start(process["Id"], detach=True)
        return ExecRun(self._engine, self._container, process["Id"], resting, restart=self._restart)

    async def _await_answer(self, invitation: Invitation, run: ContainerRun) -> socket.socket:
        """Return the connection to the run's first process.

        Raises:
            ExecutorError: The container ended before, or did not start in time.
        """
        answering = asyncio.ensure_future(invitation.accept(lambda: asyncio.to_thread(run.first_process)))
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        connection: socket.socket | None = None
        try:
            while asyncio.get_running_loop().time() < deadline:
                if (await asyncio.wait([answering], timeout=_LOOK_SECONDS))[0]:
                    connection = answering.result()
                    return connection
                if await asyncio.to_thread(run.has_ended):
                    break
        finally:
            answering.cancel()
            await asyncio.wait([answering])
            if connection is None and not answering.cancelled() and answering.exception() is None:
                answering.result().close()  # it came while the run was cancelled
        raise ExecutorError("The container did not start.", hint=f"Does {self._image} have python3?")

    def _make_launch(self, checked: Plan, workspace: Workspace) -> Launch:
        settings = {**configuration(checked, Identity()), "filter": self._filter, "stays": True}
        if self.keep:
            home = f"{_locate_run(workspace)}/home"  # each run's own, where `/tmp` is the container's
            env = {**checked.env, "HOME": checked.request.env.get("HOME", home)}
            settings |= {"home": home, "env": env, "shown": []}
        else:
            settings["shown"] = workspace.list_shown(checked)
        return Launch(
            argv=(),
            configuration=settings,
            stdin=checked.stdin,
            limits=checked.request.limits,
            env={},
            kill_after_seconds=0.1,
            reports_last=True,
        )

    async def _watch(self, child: ChildProcess, checked: Plan, workspace: Workspace) -> None:
        """End the run if it exceeds a bound; cancelled at the run's end."""
        looking = asyncio.create_task(self._stop_when_full(child))
        try:
            await watch(child, checked, workspace, group=NoGroup(lambda: None))
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _stop_when_full(self, child: ChildProcess) -> None:
        if self._disk is None:
            return
        while not await asyncio.to_thread(self._disk.is_full):  # noqa: ASYNC110 - a disk tells nobody that it fills
            await asyncio.sleep(LOOK_SECONDS)
        child.stop("work_bytes")

    # The kept container. All of these block.

    def _check_places(self, request: CodeExecutionInput) -> None:
        requested, workspace = request.workspace, self._workspace
        if requested and os.path.isdir(requested) and (workspace is None or not os.path.samefile(requested, workspace)):
            raise InvalidInput(
                f"The task's container does not show {requested!r}.", hint="Name the workspace that it was made with."
            )
        for mount in request.mounts:
            if _is_below(mount.source, requested):
                continue
            if mount.writable or mount.target.startswith(f"{WORK}/"):
                raise InvalidInput(
                    f"A task's container cannot mount {mount.target!r} there.", hint="Mount it read-only beside /work."
                )

    def _make(self) -> None:
        """Create and start the container, and fill its workspace from the image."""
        if self._container is not None:
            return
        os.chmod(self._run_directory.path, 0o700)  # it may contain files of root, so no other user may enter it
        workspace = self._workspace or Path(self._run_directory.new_folder())
        self._workspace = workspace
        with explain_failure("The container could not be started"):
            container = self._engine.containers.create(self._image_id, **self._make_kept_options(workspace))
            try:
                if not os.listdir(workspace):
                    self._fill_workspace(container)
                container.start()
                self._shell = "bash" if container.exec_run(["bash", "-c", ":"]).exit_code == 0 else "sh"
            except BaseException:
                remove_container(container)
                raise
        self._container = container
        limit_bytes = self._options.get("disk_bytes")
        if limit_bytes is not None:
            self._disk = ContainerDisk(self._engine, container.id, workspace, limit_bytes)

    def _fill_workspace(self, container: Any) -> None:
        """Copy the image's files at the working folder into the workspace.

        The engine packs and unpacks them: this process writes no file of an image.
        """
        from docker import errors

        pattern = self._engine.containers.create(self._image_id, entrypoint=["sh"], command=[])
        try:
            content, _ = pattern.get_archive(self.workdir)
            container.put_archive(os.path.dirname(self.workdir), content)
        except errors.NotFound:
            return  # the image has no such folder
        finally:
            remove_container(pattern)

    def _make_kept_options(self, workspace: Path) -> dict[str, Any]:
        limits = self._limits
        return {
            **_CONFINED,
            **_limit_resources(limits.memory_bytes, limits.processes + _RESTING_PROCESSES),
            "entrypoint": list(_KEEPING_PROCESS),
            "init": True,
            "stdin_open": True,
            "detach": True,
            "environment": self._env,
            "user": "0:0",
            "network_mode": "bridge" if self._options.get("network") else "none",
            "cap_add": list(_CAPABILITIES),
            "hostname": "task",
            "nano_cpus": int(self._options.get("cpus", 1.0) * 1e9),
            "volumes": [
                f"{INSIDE}:{_INSIDE_AT}:ro",
                f"{self._run_directory.path}:{_RUNS}:rw",
                f"{workspace}:{self._seat}:rw",
            ],
            "labels": {**(self._options.get("labels") or {}), "bough": "task", _OWNER_LABEL: self._owner},
        }

    def _restart(self) -> None:
        """End every process of the container."""
        container = self._container
        try:
            container.kill()
        except engine_errors():
            container.reload()  # it may have stopped already; any other problem is reported by the start
        container.wait()  # a start while it still runs does nothing, and it would stay ended
        container.start()

    def _run_command(self, command: ContainerCommand, stop: threading.Event) -> CommandOutcome:
        is_full = (lambda: False) if self._disk is None else self._disk.is_full
        with explain_failure("The engine refused a command"):
            return run_in_container(
                self._engine, self._container.id, command, stop=stop, end=self._restart, is_full=is_full
            )

    def _read_file(self, path: str, max_bytes: int) -> bytes | None:
        from docker import errors

        try:
            content, _ = self._container.get_archive(path)
        except errors.NotFound:
            return None
        return read_member(content, path, max_bytes)


class TaskContainerExecutor(ContainerCodeExecutor):
    """A `ContainerCodeExecutor` with `keep=True`: one container for a whole task."""

    def __init__(
        self,
        image: str,
        *,
        docker_host: str | None = None,
        default_timeout_seconds: float | None = None,
        **options: Unpack[KeepOptions],
    ) -> None:
        super().__init__(
            image, keep=True, docker_host=docker_host, default_timeout_seconds=default_timeout_seconds, **options
        )


def _make_fresh_options(checked: Plan, workspace: Workspace, owner: str) -> dict[str, Any]:
    limits = checked.request.limits
    identity = workspace.identity
    private = (
        f"size={limits.tmp_bytes},nr_inodes={max_names(limits)},mode=1777,exec,uid={identity.uid},gid={identity.gid}"
    )
    return {
        **_CONFINED,
        **_limit_resources(limits.memory_bytes + (32 << 20), limits.processes + 4),
        "entrypoint": _make_first_command(_EXCHANGE),
        "environment": {},
        "user": f"{identity.uid}:{identity.gid}",
        "network_mode": "none",
        "read_only": True,
        "hostname": "sandbox",
        # The engine gives it the mode that the image's folder has; its owner, the run's user, may write in any case.
        "tmpfs": dict.fromkeys(("/tmp", "/dev/shm"), private),  # noqa: S108
        "volumes": [
            f"{INSIDE}:{_INSIDE_AT}:ro",
            f"{workspace.exchange}:{_EXCHANGE}:ro",
            f"{workspace.code}:{CODE_FOLDER}:ro",
            f"{workspace.work}:{WORK}:rw",
            *(f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}" for mount in checked.mounts),
        ],
        "mounts": [
            {
                "Type": "bind",
                "Source": f"{workspace.work}/{entry.path}",
                "Target": f"{WORK}/{entry.path}",
                "ReadOnly": True,
            }
            for entry in workspace.guards(checked)
        ],
        "auto_remove": True,
        "labels": {"bough": "run", _OWNER_LABEL: owner},
    }


def _limit_resources(memory_bytes: int, processes: int) -> dict[str, int]:
    # `memswap_limit` counts memory and swap together: a larger number than `mem_limit` would let runs swap.
    return {"mem_limit": memory_bytes, "memswap_limit": memory_bytes, "pids_limit": processes}


def _make_first_command(exchange: str) -> list[str]:
    """Return the command of a run's first process; `exchange` is the invitation's folder in the container."""
    invitation = (f"{exchange}/socket", f"{exchange}/token")
    return ["python3", "-I", "-S", "-X", "utf8", f"{_INSIDE_AT}/contained.py", *invitation]


def _locate_run(workspace: Workspace) -> str:
    """Return the path of a run's folder in a kept container."""
    return f"{_RUNS}/{os.path.basename(workspace.folder)}"


def _copy_mount(mount: Mount, target: str) -> None:
    """Copy the requested mounts into the folder of the run."""
    if os.path.isdir(mount.source):
        shutil.copytree(mount.source, target, symlinks=True)
    else:
        shutil.copy2(mount.source, target)


def _is_below(path: str, folder: str | os.PathLike[str] | None) -> bool:
    return folder is not None and os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)
