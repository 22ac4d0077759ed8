"""Running code in containers of a local engine (Docker, or Podman by its socket): one container a run, without network.

The container gets a read-only root, no capability, no new privileges, bounds on memory, processes and files, an
unprivileged user, and the same system-call filter as every other sandbox. Its first process is bough's own; it holds
the run's descriptors, which the host hands over by a socket, so the engine never sees what a program prints.
Source: seed 003 (`ContainerCodeExecutor`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from contextlib import ExitStack, suppress
from typing import Any, Final

from bough.cancellation import finished
from bough.errors import ExecutorError, InvalidInput, SandboxUnavailable, Unavailable
from bough.execution.base import CodeExecutionInput, CodeExecutionResult, Isolation
from bough.execution.process.cgroup import Group, LateGroup, memory_group_of
from bough.execution.process.child import ChildProcess, Launch
from bough.execution.process.files import Collected, opened
from bough.execution.process.identity import Identity, identity_for
from bough.execution.process.process import prepare
from bough.execution.process.result import result_of, timed_out_at_once
from bough.execution.process.run_directory import Shelf
from bough.execution.process.watch import watch
from bough.execution.process.workspace import Workspace
from bough.execution.request import CODE_FOLDER, WORK, Plan, plan
from bough.execution.sandbox.bubblewrap import configuration
from bough.execution.sandbox.rung import INSIDE
from bough.execution.sandbox.seccomp import SECCOMP_INSTALL, filter_program

_INSIDE: Final = "/run/bough/inside"
_LETTERBOX: Final = "/run/bough/letterbox"
_START_SECONDS: Final = 60.0


DEFAULT_HOST = "unix:///var/run/docker.sock"
"""Where an engine listens unless `DOCKER_HOST` says otherwise."""


class ContainerCodeExecutor:
    """Runs code in a fresh container each time.

    The engine has to run on this machine: workspaces are shown to it by path, and descriptors are passed by a socket.
    When the engine fails, the executor is unhealthy, and refuses at once until `reinitialize`.

    Args:
        image: Name or digest of an image with `python3`; resolved once, and then pinned by its id.
        docker_host: Where the engine listens, for example `unix:///run/docker.sock`; None: as the environment says.
        default_timeout_seconds: For requests that name none; the start of the container does not count.
    """

    stateful = False
    isolation = Isolation.CONTAINER

    def __init__(self, image: str, *, docker_host: str | None = None, default_timeout_seconds: float = 30.0) -> None:
        self.name = f"container:{image}"
        self.default_timeout_seconds = default_timeout_seconds
        self._image = image
        self._docker_host = docker_host
        self._shelf = Shelf(groups=False)
        self._engine: Any = None
        self._image_id = ""
        self._filter = b""
        self._failure: str | None = None
        self._closed = False
        self._connecting = asyncio.Lock()

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` in a container of its own. Safe for concurrent use; cancelling ends the container.

        Raises:
            InvalidInput: Something in the request is refused; nothing was run.
            SandboxUnavailable: The engine, the image or libseccomp is missing; nothing was run.
            Unavailable: It is closed, or the engine failed before.
            ExecutorError: The program, or the container, could not be started.
        """
        if self._closed:
            raise Unavailable("The executor is closed.", hint="Make a new one, or call reinitialize().")
        checked = plan(request, default_timeout_seconds=self.default_timeout_seconds)
        if self._failure is not None:
            raise Unavailable(
                f"The container engine failed: {self._failure}", hint="Mend it, then call reinitialize()."
            )
        if checked.rules:
            raise InvalidInput(
                "Containers have no network.", hint="Use a LocalSandboxCodeExecutor for network by domains."
            )
        await self._connect()
        if checked.timeout_seconds == 0:
            return timed_out_at_once(checked, isolation=self.isolation)
        return await finished(self._run(checked), cancel=True)

    async def healthy(self) -> bool:
        """Whether the engine answers and has the image."""
        if self._closed or self._failure is not None:
            return False
        try:
            await self._connect()
            return bool(await asyncio.to_thread(self._engine.ping))
        except (SandboxUnavailable, OSError, *_engine_errors()):
            return False

    async def reinitialize(self) -> None:
        """Forget what failed and connect anew at the next run."""
        await self.aclose()
        self._failure = None
        self._closed = False

    async def aclose(self) -> None:
        """Let go of the engine and remove the executor's folder; closing twice is fine."""
        self._closed = True
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.close)
        await asyncio.to_thread(self._shelf.close)

    async def _connect(self) -> None:
        async with self._connecting:
            if self._engine is None:
                self._engine, self._image_id, self._filter = await asyncio.to_thread(self._connected)

    def _connected(self) -> tuple[Any, str, bytes]:
        try:
            import docker
            from docker import errors
        except ImportError as error:
            raise SandboxUnavailable("The docker SDK is not installed.", hint="pip install 'bough[docker]'") from error
        try:
            program = filter_program()
        except (ImportError, RuntimeError) as error:
            raise SandboxUnavailable("libseccomp or pyseccomp is missing.", hint=SECCOMP_INSTALL) from error
        try:
            _knock(self._docker_host or os.environ.get("DOCKER_HOST", DEFAULT_HOST))
            engine: Any = docker.DockerClient(self._docker_host) if self._docker_host else docker.from_env()
            with ExitStack() as unless_it_works:
                unless_it_works.callback(engine.close)
                image_id = str(engine.images.get(self._image).id)
                unless_it_works.pop_all()
        except errors.ImageNotFound as error:
            raise SandboxUnavailable(
                f"The engine has no image {self._image}.", hint=f"docker pull {self._image}"
            ) from error
        except (errors.DockerException, OSError) as error:
            self._failure = f"No container engine answers: {error}"
            raise SandboxUnavailable(self._failure, hint="apt-get install docker.io") from error
        return engine, image_id, program

    async def _run(self, checked: Plan) -> CodeExecutionResult:
        workspace = await prepare(checked, self._shelf, _identity(checked))
        container: Any = None
        try:
            await finished(asyncio.to_thread(workspace.make_private))
            with _listener(workspace) as listener:
                container = await finished(asyncio.to_thread(self._start, checked, workspace))
                connection = await self._answered(listener, container)
            with connection:
                group = memory_group_of(_peer(connection))
                child = ContainerChild(self._launch(checked, workspace), connection, container)
                ended, (collected, ran_out) = await child.run(
                    timeout_seconds=checked.timeout_seconds,
                    watch=lambda it: watch(it, checked, workspace, group=_NoGroup(lambda: None)),
                    harvest=lambda: child.harvest(workspace, checked, group),
                )
        finally:
            await finished(asyncio.to_thread(_remove, container))
            await finished(asyncio.to_thread(workspace.remove))
        return result_of(checked, ended, collected, isolation=self.isolation, memory_ran_out=ran_out)

    def _start(self, checked: Plan, workspace: Workspace) -> Any:
        """Create and start the container. Blocks."""
        try:
            container = self._engine.containers.create(self._image_id, **_options(checked, workspace))
            container.start()
        except (OSError, *_engine_errors()) as error:
            self._failure = str(error)
            raise ExecutorError(f"The container could not be started: {error}", hint="Look at the engine.") from error
        return container

    async def _answered(self, listener: socket.socket, container: Any) -> socket.socket:
        """Return the connection to the container's first process."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_START_SECONDS):
                connection, _ = await loop.sock_accept(listener)
        except TimeoutError as error:
            raise ExecutorError("The container did not come up.", hint=f"Does {self._image} have python3?") from error
        return connection

    def _launch(self, checked: Plan, workspace: Workspace) -> Launch:
        conf = configuration(checked, Identity())
        return Launch(
            argv=(),
            configuration={**conf, "filter": self._filter, "stays": True},
            stdin=checked.request.stdin,
            limits=checked.request.limits,
            env={},
            kill_after_seconds=0.1,
            reports_last=True,
        )


class ContainerChild(ChildProcess):
    """A run whose first process waits in a container; it ends when that process is gone."""

    def __init__(self, launch: Launch, connection: socket.socket, container: Any) -> None:
        super().__init__(launch)
        self._connection = connection
        self._container = container

    @property
    def pid(self) -> int:
        """No process of this machine that could be looked below; the engine bounds what there is."""
        return 0

    async def harvest(self, workspace: Workspace, plan: Plan, group: Group | None) -> tuple[Collected, bool]:
        """Return what came out, and whether memory ran out; then let the container go, and its control group with it.

        The first process stays until the host hangs up: with it the engine takes the group away, and what it counted.
        """
        try:
            ran_out = group is not None and group.memory_kills > 0
            return await finished(asyncio.to_thread(workspace.collect, plan)), ran_out
        finally:
            if self._status.fileno() >= 0:
                self._status.shutdown(socket.SHUT_WR)

    def _spawn(self, fds: tuple[int, int | None, int, int, int]) -> None:
        conf, stdin, stdout, stderr, status = fds
        source = os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)
        try:
            rights = array.array("i", [conf, source, stdout, stderr, status])
            self._connection.sendmsg([b"g"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        finally:
            os.close(source)

    def _kill(self) -> None:
        if not self._exited.done():
            self._loop.run_in_executor(None, _remove, self._container)

    def _hang_up(self) -> None:
        super()._hang_up()
        if not self._exited.done():
            self._exited.set_result(None)


class _NoGroup(LateGroup):
    """The engine has the run in a control group of its own."""

    @property
    def entered(self) -> bool:
        return True


def _identity(checked: Plan) -> Identity:
    """Return whom the container runs as: the owner of the workspace, or a user that nobody else is."""
    # As root, never uid 0; an ordinary user's own, with whose files the container works.
    return identity_for(checked.workspace) if os.geteuid() == 0 else Identity(os.geteuid(), os.getegid())


def _listener(workspace: Workspace) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.path.join(workspace.letterbox, "socket")
    with opened(workspace.letterbox) as folder:
        listener.bind(f"/proc/self/fd/{folder}/socket")  # the name of a socket has at most 107 bytes
    os.chmod(path, 0o666)  # noqa: S103 - the container's user connects; nobody else can pass the folder's random name
    listener.listen(1)
    listener.setblocking(False)
    return listener


def _peer(connection: socket.socket) -> int:
    """Return the process on the other side as this machine numbers it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def _options(checked: Plan, workspace: Workspace) -> dict[str, Any]:
    limits = checked.request.limits
    identity = workspace.identity
    volumes = [f"{INSIDE}:{_INSIDE}:ro", f"{workspace.letterbox}:{_LETTERBOX}:ro", f"{workspace.code}:{CODE_FOLDER}:ro"]
    volumes.append(f"{workspace.work}:{WORK}:rw")
    volumes += [f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}" for mount in checked.mounts]
    return {
        "entrypoint": ["python3", "-I", "-S", "-X", "utf8", f"{_INSIDE}/contained.py", f"{_LETTERBOX}/socket"],
        "command": [],
        "environment": {},
        "user": f"{identity.uid}:{identity.gid}",
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "ipc_mode": "private",
        "hostname": "sandbox",
        "working_dir": "/",
        "pids_limit": limits.processes + 4,
        "mem_limit": limits.memory_bytes + (32 << 20),
        "memswap_limit": limits.memory_bytes + (32 << 20),
        "shm_size": limits.tmp_bytes,
        # The engine gives it the mode that the image's folder has; its owner, the run's user, may write in any case.
        "tmpfs": {"/tmp": f"size={limits.tmp_bytes},mode=1777,exec,uid={identity.uid},gid={identity.gid}"},  # noqa: S108
        "volumes": volumes,
        "auto_remove": True,
        "labels": {"bough": "run"},
        "log_config": {"type": "none", "config": {}},
    }


def _remove(container: Any) -> None:
    """Remove the container, running or not; one that is gone already is fine. Blocks."""
    if container is not None:
        with suppress(*_engine_errors()):
            container.remove(force=True)


def _engine_errors() -> tuple[type[Exception], ...]:
    import requests
    from docker import errors

    return (errors.DockerException, requests.exceptions.RequestException)


def _knock(host: str) -> None:
    """Connect to a local engine's socket once; the SDK leaves its own open when nobody listens.

    Raises:
        OSError: Nobody listens.
    """
    path = host.removeprefix("unix://")
    if path != host:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
            knocking.connect(path)
