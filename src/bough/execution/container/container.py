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
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from typing import Any, Final, Self

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
_INVITATION: Final = (f"{_LETTERBOX}/socket", f"{_LETTERBOX}/token")
_START_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.2
"""How often a container that has not answered is looked after."""

_TOKEN_SECONDS: Final = 5.0


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
            with Invitation(workspace) as invitation:
                container = await finished(asyncio.to_thread(self._start, checked, workspace))
                connection = await self._await_answer(invitation, container)
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
            # What the engine refuses is the fault of this one request; the next may be fine.
            if not _is_refusal(error):
                self._failure = str(error)
            raise ExecutorError(f"The container could not be started: {error}", hint="Look at the engine.") from error
        return container

    async def _await_answer(self, invitation: Invitation, container: Any) -> socket.socket:
        """Return the connection to the container's first process.

        Raises:
            ExecutorError: The container ended before, or it did not come up in time.
        """
        answering = asyncio.ensure_future(invitation.accept(lambda: asyncio.to_thread(_first_process, container)))
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        try:
            while asyncio.get_running_loop().time() < deadline:
                if (await asyncio.wait([answering], timeout=_LOOK_SECONDS))[0]:
                    return answering.result()
                if await asyncio.to_thread(_has_ended, container):
                    break
        finally:
            answering.cancel()
            await asyncio.wait([answering])
        raise ExecutorError("The container did not come up.", hint=f"Does {self._image} have python3?")

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


class Invitation:
    """A socket in the letterbox on which the container's first process, and nobody else, fetches its descriptors.

    The folder and the socket belong to the run's user, who may be a person of this machine. So a peer has to show the
    token, which lies in a file of the letterbox until it was used, and has to be the process that the engine started.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._token = secrets.token_bytes(32)
        self._token_path = os.path.join(workspace.letterbox, "token")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        owner = workspace.identity.owner or (os.geteuid(), os.getegid())
        with opened(workspace.letterbox) as folder:
            self._listener.bind(f"/proc/self/fd/{folder}/socket")  # the name of a socket has at most 107 bytes
            os.chmod("socket", 0o600, dir_fd=folder)
            os.chown("socket", *owner, dir_fd=folder, follow_symlinks=False)
            fd = os.open("token", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400, dir_fd=folder)
        with open(fd, "wb") as target:
            os.fchown(fd, *owner)
            target.write(self._token)
        self._listener.listen(8)
        self._listener.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    async def accept(self, expected: Callable[[], Awaitable[int]]) -> socket.socket:
        """Return the first connection of the right process; others are closed.

        Args:
            expected: Returns the process that the engine started, as this machine numbers it.
        """
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            connection.setblocking(False)
            try:
                async with asyncio.timeout(_TOKEN_SECONDS):
                    token = await loop.sock_recv(connection, 64)
            except (OSError, TimeoutError):
                token = b""
            if secrets.compare_digest(token, self._token) and _peer(connection) == await expected():
                # Before the program is there, which could read it.
                os.unlink(self._token_path)
                return connection
            connection.close()


def _first_process(container: Any) -> int:
    """Return the first process of a container as this machine numbers it; 0 when it has ended. Blocks."""
    try:
        container.reload()
        return int(container.attrs["State"]["Pid"])
    except _engine_errors():
        return 0


def _has_ended(container: Any) -> bool:
    """Whether a container has ended, or is gone. Blocks."""
    try:
        container.reload()
    except _engine_errors() as error:
        return _is_refusal(error)
    return str(container.status) in ("exited", "dead", "removing")


def _is_refusal(error: Exception) -> bool:
    """Whether the engine is well and has refused a request."""
    from docker import errors

    return isinstance(error, errors.APIError) and bool(error.is_client_error())


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
        "entrypoint": ["python3", "-I", "-S", "-X", "utf8", f"{_INSIDE}/contained.py", *_INVITATION],
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
