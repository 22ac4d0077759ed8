"""Running code in containers of a local engine (Docker, or Podman through its socket), without network.

A fresh container runs one request with a read-only root file system, no capability and an unprivileged user.

A kept container (`keep=True`) runs every request and command of one task. Its files remain between runs; its
processes are ended. It mounts two host folders: the workspace, and a private folder through which runs are handed over.
Commands run as the task's user, which is root in most images. They can then leave files of root in the workspace, so no
other user of this machine must be able to enter the workspace.

In both kinds of container, the first process of a run is bough's own. It receives the descriptors of the run over a
socket, so the engine never sees what a program prints. Both kinds limit memory and processes, and install the same
system-call filter as every sandbox.
Source: ADK (`ContainerCodeExecutor`; `TaskContainerExecutor`: one container a task, its own working folder, every
exec with a timeout).
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
    peer_pid,
    remove_container,
)
from bough.execution.container.command import CommandOutcome, ContainerCommand, run_in_container
from bough.execution.container.disk import POLL_SECONDS, ContainerDisk
from bough.execution.container.engine import connect, engine_errors, explain_failure, is_refusal, parse_socket_path
from bough.execution.container.janitor import ContainerJanitor
from bough.execution.process.cgroup import find_memory_group
from bough.execution.process.child import ChildProcess, Launch
from bough.execution.process.disk_use import max_names
from bough.execution.process.guarded import refuse_guarded
from bough.execution.process.identity import Identity, identity_for
from bough.execution.process.process import prepare_workspace
from bough.execution.process.result import build_result, make_timeout_result
from bough.execution.process.run_directory import RunDirectory
from bough.execution.process.watch import watch
from bough.execution.process.workspace import Workspace
from bough.execution.request import CODE_FOLDER, WORK, Plan, make_plan, refuse_persistent_interpreter
from bough.execution.sandbox.bubblewrap import configuration
from bough.execution.sandbox.rung import INSIDE
from bough.execution.sandbox.seccomp import SECCOMP_INSTALL, build_filter
from bough.execution.value_types import check_types

_INSIDE_AT: Final = "/run/bough/inside"
"""The folder with the program of a run's first process, in a container."""

_OWNER_LABEL: Final = "bough.owner"
"""The label by which the janitor finds the containers of an executor that has ended."""

_EXCHANGE: Final = "/run/bough/exchange"
_RUNS: Final = "/run/bough/runs"
"""The folder of runs in a kept container."""

_WORKSPACE: Final = "/run/bough/workspace"
"""The mount point of the workspace in a kept container, unless the task sets a working folder."""

_IDLE_COMMAND: Final = ("sh", "-c", "read line")
"""The main process of a kept container, which waits forever for input. Any image with a shell can run it."""

_IDLE_PROCESSES: Final = 2
"""The number of processes in an idle kept container: the engine's init and the shell."""

_CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL")
"""Capabilities that package managers and test scripts need as root of a kept container."""

_START_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2
"""How often to check whether a container that has not connected yet has exited."""

_CONFINED: Final[Mapping[str, Any]] = {
    "command": [],
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "ipc_mode": "private",
    "working_dir": "/",
    "log_config": {"type": "none", "config": {}},
}
"""The engine's options for every container."""

TASK_LIMITS: Final = ExecutionLimits(memory_bytes=2 << 30, processes=256)
"""The default limits of a kept container."""


class KeepOptions(TypedDict, total=False):
    """Options of a kept container.

    Attributes:
        workspace: A host folder that is mounted at `workdir`. If it is empty, it is filled with the image's files at
            that path. Requests can name no other workspace. None creates a private one, removed with the container.
            Use a folder for this task only: programs may create every name in it, also `.git` and `.bough`. A folder
            that has such a name before the container is created is refused.
        workdir: The working folder of commands (default: `/work`). In requests that name the workspace, `/work` is a
            link to it.
        user: The user that runs commands; None for the image's user.
        env: The environment of commands.
        limits: The limits of the whole container (default: `TASK_LIMITS`).
        cpus: Number of processors (default: 1).
        disk_bytes: Limit of the container's files, including the workspace and excluding the image; None for no limit.
        network: Whether the container is connected to the engine's network (default: False).
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
    After a failure of the engine, the executor is unhealthy and refuses every request until `reinitialize` is called.

    A kept container is created at the first use and removed by `aclose`. Runs and commands take turns. When a limit is
    exceeded, the container is killed and started again, which ends its processes and keeps its files. The container is
    also restarted if processes outlive a run of `execute`. Processes that outlive a command continue until a limit is
    exceeded or `end_processes` is called, because they may be a server under test. The limits of memory, processes and
    disk apply to the whole container. The disk use is measured while something runs. A memory limit in a request
    applies to each process.

    Args:
        image: Name or digest of a local image, which is never pulled. It is resolved once and then pinned by its id.
            `execute` needs `python3` in the image; `run_command` needs nothing.
        keep: Whether to use one container for everything; required by `run_command` and the methods for files.
        docker_host: The engine's address, for example `unix:///run/docker.sock`; None reads the environment.
        default_timeout_seconds: The timeout of requests and commands without one, not counting the start of the
            container. None means 30, or 300 with `keep`.
        options: Options of the kept container.

    Raises:
        InvalidInput: Options of a kept container are given without `keep`.
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
            raise InvalidInput(
                f"These options need a kept container: {', '.join(sorted(options))}.", hint="Pass keep=True."
            )
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
        # Never mounted at `/work` itself: each run replaces `/work` by a link, and a mount point cannot be replaced.
        self._workspace_target = _WORKSPACE if self.workdir == WORK else self.workdir
        self._workspace = options.get("workspace")
        self._workspace_checked = False
        self._env = dict(options.get("env") or {})
        self._limits = options.get("limits", TASK_LIMITS)
        self._turn = asyncio.Lock() if keep else nullcontext()
        self._container: Any = None
        self._disk: ContainerDisk | None = None
        self._shell = ""

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` in a container. Cancelling ends its processes.

        Safe for concurrent use: fresh containers run in parallel, runs in a kept container take turns.

        Raises:
            InvalidInput: The request is invalid; nothing was run. A kept container refuses another
                workspace, a writable mount, and a mount below `/work`.
            NotSupported: The request is for a persistent interpreter; nothing was run.
            SandboxUnavailable: The engine, the image or libseccomp is missing; nothing was run.
            Unavailable: The executor is closed, or the engine failed earlier.
            ExecutorError: The program or the container could not be started.
        """
        if self.keep:
            check_types(request)
            await asyncio.to_thread(self._check_mounts, request)
            # `refuse_guarded` has shown that the workspace has nothing to protect.
            request = replace(request, guards=NO_GUARDS)
        async with self._turn:
            if self._closed:
                raise Unavailable("The executor is closed.", hint="Make a new one, or call reinitialize().")
            plan = make_plan(request, default_timeout_seconds=self.default_timeout_seconds)
            refuse_persistent_interpreter(plan.request)
            if self._failure is not None:
                raise Unavailable(
                    f"The container engine failed: {self._failure}", hint="Fix it, then call reinitialize()."
                )
            if plan.domain_rules:
                raise InvalidInput(
                    "A container cannot allow single domains.", hint="Use a LocalSandboxCodeExecutor, which can."
                )
            await self._connect()
            if plan.timeout_seconds == 0:
                return make_timeout_result(plan, isolation=self.isolation)
            return await finish(self._run(plan), cancel=True)

    async def healthy(self) -> bool:
        """Whether the engine responds and has the image."""
        if self._closed or self._failure is not None:
            return False
        try:
            await self._connect()
            return bool(await asyncio.to_thread(self._engine.ping))
        except (SandboxUnavailable, OSError, *engine_errors()):
            return False

    async def reinitialize(self) -> None:
        """Close the executor and forget the engine's failure; the next run connects again."""
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
        # Last: while containers of this executor may exist, the janitor must be able to remove them after a kill.
        if janitor is not None:
            await asyncio.to_thread(janitor.close)
        await asyncio.to_thread(self._run_directory.close)

    # Only for a kept container.

    async def start(self) -> None:
        """Create and start the kept container if it does not exist.

        Raises:
            NotSupported: The executor was created without `keep`.
            SandboxUnavailable: The engine or the image is missing.
            ExecutorError: The container could not be started.
        """
        if not self.keep:
            raise NotSupported("This executor starts a new container for each run.", hint="Pass keep=True.")
        await self._connect()
        async with self._turn:
            await finish(asyncio.to_thread(self._ensure_container))

    async def run_command(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> CommandOutcome:
        """Run a command in the kept container. Cancelling ends all processes.

        Args:
            command: A string is run by the image's bash, or by sh if there is no bash; a sequence is run unchanged.
            env: The environment, instead of the task's.
            timeout_seconds: None for the executor's default.

        Raises:
            NotSupported: The executor was created without `keep`.
            SandboxUnavailable: The engine or the image is missing.
            ExecutorError: The engine refused the command.
        """
        await self.start()
        argv = (self._shell, "-c", command) if isinstance(command, str) else command
        container_command = ContainerCommand(
            argv=argv,
            user=user or self._options.get("user"),
            cwd=cwd or self._workspace_target,
            env=self._env if env is None else env,
            timeout_seconds=self.default_timeout_seconds if timeout_seconds is None else timeout_seconds,
            stdout_bytes=self._limits.stdout_bytes,
            stderr_bytes=self._limits.stderr_bytes,
        )
        stop = threading.Event()
        async with self._turn:
            running = asyncio.ensure_future(asyncio.to_thread(self._run_command, container_command, stop))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                stop.set()
                # The lock is held until the command has ended, because its processes would disturb the next run.
                await finish(asyncio.wait([running]))
                raise

    async def end_processes(self) -> None:
        """End every process in the kept container, without changing its files."""
        await self.start()
        async with self._turn:
            await finish(asyncio.to_thread(self._restart))

    async def put_folder(self, source: Path, target: str) -> None:
        """Copy a host folder to a new folder of the kept container, owned by root and executable for all."""
        await self.start()
        data = await asyncio.to_thread(pack_folder, source, target)
        await asyncio.to_thread(self._container.put_archive, "/", data)

    async def replace_folders(self, path: str, *, inside: Sequence[str] = ()) -> None:
        """Replace whatever is at `path` by a new folder of root that contains the empty folders `inside`.

        The engine does this, because a run may have changed the programs in the container.
        """
        await self.start()
        folders = [path, *(f"{path}/{name}" for name in inside)]
        # First unpack a file, which replaces an existing folder. A folder would be merged with the existing one.
        await asyncio.to_thread(self._container.put_archive, "/", pack_file(path))
        await asyncio.to_thread(self._container.put_archive, "/", pack_folders(folders))

    async def read_file(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of a regular file of the kept container; None if it does not exist.

        Raises:
            InvalidInput: The path is a link, a device or a folder, or the file is larger than `max_bytes`.
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
        """Connect to the engine and find the image, unless that was done before."""
        async with self._connecting:
            if self._engine is None:
                self._engine, self._image_id, self._filter = await asyncio.to_thread(self._open_engine)

    def _open_engine(self) -> tuple[Any, str, bytes]:
        """Return the engine's client, the image's id and the system-call filter; start the janitor. Blocks.

        Raises:
            SandboxUnavailable: The engine, the image or libseccomp is missing.
        """
        try:
            filter_code = build_filter()
        except (ImportError, RuntimeError) as error:
            raise SandboxUnavailable("libseccomp or pyseccomp is missing.", hint=SECCOMP_INSTALL) from error
        try:
            engine = connect(self._docker_host)
        except SandboxUnavailable as error:
            is_engine_failure = error.__cause__ is not None and not isinstance(error.__cause__, ImportError)
            if is_engine_failure:
                self._failure = error.message
            raise
        with ExitStack() as on_failure:
            on_failure.callback(engine.close)
            image_id = self._find_image(engine)
            socket_path = parse_socket_path(self._docker_host)
            # Before any container is created: if this process is killed, only the janitor removes its containers.
            if socket_path:
                self._janitor = ContainerJanitor(socket_path, f"{_OWNER_LABEL}={self._owner}")
            on_failure.pop_all()
        return engine, image_id, filter_code

    @property
    def _owner(self) -> str:
        """The value of `_OWNER_LABEL` on this executor's containers."""
        return os.path.basename(self._run_directory.path)

    def _find_image(self, engine: Any) -> str:
        """Return the id of the image.

        Raises:
            SandboxUnavailable: The engine does not have the image, or does not respond.
        """
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

    def _engine_answers(self) -> bool:
        """Whether the engine still responds. Blocks."""
        try:
            return bool(self._engine.ping())
        except (OSError, *engine_errors()):
            return False

    # One run.

    async def _run(self, plan: Plan) -> CodeExecutionResult:
        """Prepare the workspace, start the first process, run the program, collect its output, and clean up."""
        workspace = await prepare_workspace(plan, self._run_directory, self._choose_identity(plan))
        run: ContainerRun | None = None
        try:
            await finish(asyncio.to_thread(workspace.make_private))
            with Invitation(workspace) as invitation:
                start = self._start_in_kept_container if self.keep else self._start_fresh_container
                run = await finish(asyncio.to_thread(start, plan, workspace))
                connection = await self._await_connection(invitation, run)
            with connection:
                group = find_memory_group(peer_pid(connection))
                child = ContainerChild(self._make_launch(plan, workspace), connection, run, group)
                process_end, (collected, memory_ran_out) = await child.run(
                    timeout_seconds=plan.timeout_seconds,
                    watch=lambda running: self._watch(running, plan, workspace),
                    collect_output=lambda: child.collect_output(workspace, plan),
                )
        finally:
            # Only the engine can end a container. The folders are removed last, as a running program writes to them.
            if run is not None:
                await finish(asyncio.to_thread(run.end))
            await finish(asyncio.to_thread(workspace.remove))
        return build_result(plan, process_end, collected, isolation=self.isolation, memory_ran_out=memory_ran_out)

    def _choose_identity(self, plan: Plan) -> Identity:
        """Return the user of a run: root in a kept container, otherwise never root.

        In a fresh container it is the caller; if the caller is root, the owner of the workspace or an unused uid.
        """
        if self.keep:
            return Identity()
        return identity_for(plan.workspace) if os.geteuid() == 0 else Identity(os.geteuid(), os.getegid())

    def _start_fresh_container(self, plan: Plan, workspace: Workspace) -> ContainerRun:
        """Create and start a container for one run. Blocks."""
        container: Any = None
        options = _make_fresh_options(plan, workspace, self._owner)
        with explain_failure("The container could not be started"):
            try:
                container = self._engine.containers.create(self._image_id, **options)
                container.start()
            except (OSError, *engine_errors()) as error:
                if container is not None:
                    remove_container(container)  # `auto_remove` does not remove a container that never ran
                # A refusal concerns this request only. A healthy engine also responds with status 500, for example if
                # a folder to mount no longer exists.
                if not is_refusal(error) and not self._engine_answers():
                    self._failure = str(error)
                raise
        return ContainerRun(container)

    def _start_in_kept_container(self, plan: Plan, workspace: Workspace) -> ContainerRun:
        """Link the run's folders to the paths that the program expects, and start its first process. Blocks."""
        self._ensure_container()
        folder = _locate_run(workspace)
        links = {
            CODE_FOLDER: f"{folder}/code",
            WORK: f"{folder}/work" if plan.workspace is None else self._workspace_target,
        }
        for number, mount in enumerate(plan.mounts):
            if _is_path_below(mount.source, plan.workspace):
                continue  # it only makes a part of the workspace read-only, which a task's workspace does not need
            _copy_mount(mount, os.path.join(workspace.folder, f"mount-{number}"))
            links[mount.target] = f"{folder}/mount-{number}"
        command = _make_first_command(f"{folder}/exchange")
        with explain_failure("The run could not be started"):
            self._container.put_archive("/", pack_links(links))
            earlier_pids = list_processes(self._container)  # before the run: any other process afterwards belongs to it
            process = self._engine.api.exec_create(self._container.id, command, user="0:0", workdir="/")
            self._engine.api.exec_start(process["Id"], detach=True)
        return ExecRun(self._engine, self._container, process["Id"], earlier_pids, restart=self._restart)

    async def _await_connection(self, invitation: Invitation, run: ContainerRun) -> socket.socket:
        """Return the connection to the run's first process.

        Raises:
            ExecutorError: The container ended, or did not connect in time.
        """
        accepting = asyncio.ensure_future(invitation.accept(lambda: asyncio.to_thread(run.get_first_pid)))
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        connection: socket.socket | None = None
        try:
            while asyncio.get_running_loop().time() < deadline:
                await asyncio.wait([accepting], timeout=_POLL_SECONDS)
                if accepting.done():
                    connection = accepting.result()
                    return connection
                if await asyncio.to_thread(run.has_ended):
                    break
        finally:
            accepting.cancel()
            await asyncio.wait([accepting])
            if connection is None and not accepting.cancelled() and accepting.exception() is None:
                accepting.result().close()  # it was accepted while the run was being cancelled
        raise ExecutorError("The container did not start.", hint=f"Check that {self._image} contains python3.")

    def _make_launch(self, plan: Plan, workspace: Workspace) -> Launch:
        """Return the launch whose configuration the waiting first process receives."""
        settings = {**configuration(plan, Identity()), "filter": self._filter, "waits_for_host": True}
        if self.keep:
            home = f"{_locate_run(workspace)}/home"  # private to the run, unlike the container's `/tmp`
            env = {**plan.env, "HOME": plan.request.env.get("HOME", home)}
            settings |= {"home": home, "env": env, "shown": []}
        else:
            settings["shown"] = workspace.list_mounted(plan)
        return Launch(
            argv=(),
            configuration=settings,
            stdin=plan.stdin,
            limits=plan.request.limits,
            env={},
            kill_after_seconds=0.1,
            reports_last=True,
        )

    async def _watch(self, child: ChildProcess, plan: Plan, workspace: Workspace) -> None:
        """Stop the run when it exceeds a limit. Cancelled at the end of the run."""
        disk_check = asyncio.create_task(self._stop_when_full(child))
        try:
            await watch(child, plan, workspace, group=NoGroup(lambda: None))
        finally:
            disk_check.cancel()
            await asyncio.gather(disk_check, return_exceptions=True)

    async def _stop_when_full(self, child: ChildProcess) -> None:
        """Stop the run when the kept container exceeds its disk limit, if there is one."""
        if self._disk is None:
            return
        while not await asyncio.to_thread(self._disk.is_full):  # noqa: ASYNC110 - no event reports a growing disk use
            await asyncio.sleep(POLL_SECONDS)
        child.stop("work_bytes")

    # The kept container. All of these block.

    def _check_mounts(self, request: CodeExecutionInput) -> None:
        """Refuse a workspace or a mount that a running container cannot mount.

        Raises:
            InvalidInput: The workspace is not the container's, or a mount is writable or lies below `/work`.
        """
        requested, workspace = request.workspace, self._workspace
        if requested and os.path.isdir(requested) and (workspace is None or not os.path.samefile(requested, workspace)):
            raise InvalidInput(
                f"The task's container does not have the workspace {requested!r}.",
                hint="Use the workspace that the container was created with.",
            )
        for mount in request.mounts:
            if _is_path_below(mount.source, requested):
                continue
            if mount.writable or mount.target.startswith(f"{WORK}/"):
                raise InvalidInput(
                    f"The task's container cannot mount {mount.target!r}: the target lies below /work, or is writable.",
                    hint="Mount it read-only, outside of /work.",
                )

    def _ensure_container(self) -> None:
        """Create and start the container if it does not exist, and fill its workspace from the image."""
        if self._container is not None:
            return
        os.chmod(self._run_directory.path, 0o700)  # programs in the container can leave files of root in it
        if self._workspace is not None and not self._workspace_checked:
            refuse_guarded(self._workspace)
            self._workspace_checked = True  # later, the names may be those of the task's own programs
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
        """Copy the image's files in the working folder into the workspace.

        The engine packs and unpacks them, so that this process never writes a file of an image.
        """
        from docker import errors

        template = self._engine.containers.create(self._image_id, entrypoint=["sh"], command=[])
        try:
            content, _ = template.get_archive(self.workdir)
            container.put_archive(os.path.dirname(self.workdir), content)
        except errors.NotFound:
            return  # the image has no such folder
        finally:
            remove_container(template)

    def _make_kept_options(self, workspace: Path) -> dict[str, Any]:
        """Return the engine's options for the kept container."""
        limits = self._limits
        return {
            **_CONFINED,
            **_limit_resources(limits.memory_bytes, limits.processes + _IDLE_PROCESSES),
            "entrypoint": list(_IDLE_COMMAND),
            "init": True,  # reaps orphans, which the shell would leave as zombies
            "stdin_open": True,  # `read` would end at once on a closed stdin, and with it the container
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
                f"{workspace}:{self._workspace_target}:rw",
            ],
            "labels": {**(self._options.get("labels") or {}), "bough": "task", _OWNER_LABEL: self._owner},
        }

    def _restart(self) -> None:
        """Kill the container and start it again, which ends every process in it."""
        container = self._container
        try:
            container.kill()
        except engine_errors():
            container.reload()  # it may have stopped already; any other problem makes `start` fail
        container.wait()  # starting a container that still runs has no effect, so it would remain stopped
        container.start()

    def _run_command(self, command: ContainerCommand, stop: threading.Event) -> CommandOutcome:
        """Run a command until it ends, exceeds a limit, or `stop` is set."""
        is_full = (lambda: False) if self._disk is None else self._disk.is_full
        with explain_failure("The engine refused a command"):
            return run_in_container(
                self._engine, self._container.id, command, stop=stop, end_processes=self._restart, is_full=is_full
            )

    def _read_file(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of a regular file of the container; None if it does not exist."""
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


def _make_fresh_options(plan: Plan, workspace: Workspace, owner: str) -> dict[str, Any]:
    """Return the engine's options for a container that runs one request."""
    limits = plan.request.limits
    identity = workspace.identity
    tmpfs = (
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
        # The engine replaces the mode by that of the image's folder; the run's user may write because it is the owner.
        "tmpfs": dict.fromkeys(("/tmp", "/dev/shm"), tmpfs),  # noqa: S108
        "volumes": [
            f"{INSIDE}:{_INSIDE_AT}:ro",
            f"{workspace.exchange}:{_EXCHANGE}:ro",
            f"{workspace.code}:{CODE_FOLDER}:ro",
            f"{workspace.work}:{WORK}:rw",
            *(f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}" for mount in plan.mounts),
        ],
        "mounts": [
            {
                "Type": "bind",
                "Source": f"{workspace.work}/{entry.path}",
                "Target": f"{WORK}/{entry.path}",
                "ReadOnly": True,
            }
            for entry in workspace.list_guarded(plan)
        ],
        "auto_remove": True,
        "labels": {"bough": "run", _OWNER_LABEL: owner},
    }


def _limit_resources(memory_bytes: int, processes: int) -> dict[str, int]:
    # `memswap_limit` is the limit of memory and swap together: with a larger number than `mem_limit` a run could swap.
    return {"mem_limit": memory_bytes, "memswap_limit": memory_bytes, "pids_limit": processes}


def _make_first_command(exchange: str) -> list[str]:
    """Return the command of a run's first process; `exchange` is the folder of socket and token in the container."""
    invitation = (f"{exchange}/socket", f"{exchange}/token")
    return ["python3", "-I", "-S", "-X", "utf8", f"{_INSIDE_AT}/contained.py", *invitation]


def _locate_run(workspace: Workspace) -> str:
    """Return the path of a run's folder in a kept container."""
    return f"{_RUNS}/{os.path.basename(workspace.folder)}"


def _copy_mount(mount: Mount, target: str) -> None:
    """Copy the source of a mount to `target`, in the folder of the run."""
    if os.path.isdir(mount.source):
        shutil.copytree(mount.source, target, symlinks=True)
    else:
        shutil.copy2(mount.source, target)


def _is_path_below(path: str, folder: str | os.PathLike[str] | None) -> bool:
    """Whether `path` lies below `folder`, with links resolved; False if there is no folder."""
    return folder is not None and os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)
