"""Running code in containers of a local engine (Docker, or Podman by its socket): one container a run, without network.

The container gets a read-only root, no capability, no new privileges, bounds on memory, processes and files, an
unprivileged user, and the same system-call filter as every other sandbox. Its first process is bough's own; it holds
the run's descriptors, which the host hands over by a socket, so the engine never sees what a program prints.
Source: seed 003 (`ContainerCodeExecutor`).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
from __future__ import annotations

import asyncio
import os
import socket
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar, Final

from bough.cancellation import finish
from bough.errors import ExecutorError, InvalidInput, SandboxUnavailable, Unavailable
from bough.execution.base import NO_GUARDS, CodeExecutionInput, CodeExecutionResult, Isolation
from bough.execution.container.child import ContainedRun, ContainerChild, Invitation, NoGroup, OwnContainer, peer
from bough.execution.container.engine import connect, engine_errors, is_refusal, socket_path_of
from bough.execution.container.janitor import ContainerJanitor
from bough.execution.mixin import CodeExecutorMixin
from bough.execution.process.cgroup import memory_group_of
from bough.execution.process.child import ChildProcess, Launch
from bough.execution.process.disk_use import max_names
from bough.execution.process.identity import Identity, identity_for
from bough.execution.process.process import prepare
from bough.execution.process.result import make_timed_out, result_of
from bough.execution.process.run_directory import RunDirectory
from bough.execution.process.watch import watch
from bough.execution.process.workspace import Workspace
from bough.execution.request import CODE_FOLDER, WORK, Plan, plan, refuse_state
from bough.execution.sandbox.bubblewrap import configuration
from bough.execution.sandbox.rung import INSIDE
from bough.execution.sandbox.seccomp import SECCOMP_INSTALL, filter_program

INSIDE_AT: Final = "/run/bough/inside"
"""Where bough's own first process is seen in a container."""

OWNER_LABEL: Final = "bough.owner"
"""The label by which the containers of an executor are found when it is gone."""

_EXCHANGE: Final = "/run/bough/exchange"
_INVITATION: Final = (f"{_EXCHANGE}/socket", f"{_EXCHANGE}/token")
_START_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.2
"""How often a container that has not answered is looked after."""


class ContainerCodeExecutor(CodeExecutorMixin):
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
    guards_workspaces: ClassVar[bool] = True
    """Whether a workspace is a person's: what decides over later runs stays as it is."""

    def __init__(self, image: str, *, docker_host: str | None = None, default_timeout_seconds: float = 30.0) -> None:
        self.name = f"container:{image}"
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

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` in a container of its own. Safe for concurrent use; cancelling ends the container.

        Raises:
            InvalidInput: Something in the request is refused; nothing was run.
            NotSupported: It asks for an interpreter that stays; nothing was run.
            SandboxUnavailable: The engine, the image or libseccomp is missing; nothing was run.
            Unavailable: It is closed, or the engine failed before.
            ExecutorError: The program, or the container, could not be started.
        """
        if self._closed:
            raise Unavailable("The executor is closed.", hint="Make a new one, or call reinitialize().")
        if not self.guards_workspaces:
            request = replace(request, guards=NO_GUARDS)
        checked = plan(request, default_timeout_seconds=self.default_timeout_seconds)
        refuse_state(checked.request)
        if self._failure is not None:
            raise Unavailable(f"The container engine failed: {self._failure}", hint="Fix it, then call reinitialize().")
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
        """Forget what failed and connect anew at the next run."""
        await self.aclose()
        self._failure = None
        self._closed = False

    async def aclose(self) -> None:
        """Let go of the engine and remove the executor's folder; closing twice is fine."""
        self._closed = True
        engine, self._engine = self._engine, None
        janitor, self._janitor = self._janitor, None
        if engine is not None:
            await asyncio.to_thread(engine.close)
        if janitor is not None:
            await asyncio.to_thread(janitor.close)
        await asyncio.to_thread(self._run_directory.close)

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
            if path := socket_path_of(self._docker_host):
                self._janitor = ContainerJanitor(path, f"{OWNER_LABEL}={self._owner}")
            unless_it_works.pop_all()
        return engine, image_id, program

    @property
    def _owner(self) -> str:
        """What tells this executor's containers from those of others."""
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

    async def _run(self, checked: Plan) -> CodeExecutionResult:
        workspace = await prepare(checked, self._run_directory, self._identity(checked))
        run: ContainedRun | None = None
        try:
            await finish(asyncio.to_thread(workspace.make_private))
            with Invitation(workspace) as invitation:
                run = await finish(asyncio.to_thread(self._start, checked, workspace))
                connection = await self._await_answer(invitation, run)
            with connection:
                group = memory_group_of(peer(connection))
                child = ContainerChild(self._launch(checked, workspace), connection, run, group)
                ended, (collected, ran_out) = await child.run(
                    timeout_seconds=checked.timeout_seconds,
                    watch=lambda it: self._watch(it, checked, workspace),
                    harvest=lambda: child.harvest(workspace, checked),
                )
        finally:
            if run is not None:
                await finish(asyncio.to_thread(run.end))
            await finish(asyncio.to_thread(workspace.remove))
        return result_of(checked, ended, collected, isolation=self.isolation, memory_ran_out=ran_out)

    async def _watch(self, child: ChildProcess, checked: Plan, workspace: Workspace) -> None:
        """End the run where it uses more than it may; is cancelled at its end."""
        await watch(child, checked, workspace, group=NoGroup(lambda: None))

    def _start(self, checked: Plan, workspace: Workspace) -> ContainedRun:
        """Create and start the container. Blocks."""
        container: Any = None
        try:
            container = self._engine.containers.create(self._image_id, **_options(checked, workspace, self._owner))
            container.start()
        except (OSError, *engine_errors()) as error:
            if container is not None:
                OwnContainer(container).end()  # one that never ran is not removed automatically
            # What the engine refuses is the fault of this one request; the next may be fine.
            # An engine that is well says 500, too: where a folder that is to be mounted is gone, for instance.
            if not is_refusal(error) and not self._answers():
                self._failure = str(error)
            raise ExecutorError(
                f"The container could not be started: {error}", hint="Check that the container engine is running."
            ) from error
        return OwnContainer(container)

    def _answers(self) -> bool:
        """Whether the engine still answers. Blocks."""
        try:
            return bool(self._engine.ping())
        except (OSError, *engine_errors()):
            return False

    async def _await_answer(self, invitation: Invitation, run: ContainedRun) -> socket.socket:
        """Return the connection to the container's first process.

        Raises:
            ExecutorError: The container ended before, or it did not come up in time.
        """
        answering = asyncio.ensure_future(invitation.accept(lambda: asyncio.to_thread(run.first_process)))
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        is_returned = False
        try:
            while asyncio.get_running_loop().time() < deadline:
                if (await asyncio.wait([answering], timeout=_LOOK_SECONDS))[0]:
                    is_returned = True
                    return answering.result()
                if await asyncio.to_thread(run.has_ended):
                    break
        finally:
            if not is_returned:
                answering.cancel()
                await asyncio.wait([answering])
                if not answering.cancelled() and answering.exception() is None:
                    answering.result().close()  # accepted at the moment at which the run was cancelled
        raise ExecutorError("The container did not start.", hint=f"Does {self._image} have python3?")

    def _identity(self, checked: Plan) -> Identity:
        """Return whom the container runs as: the owner of the workspace, or a user that nobody else is."""
        # As root, never uid 0; an ordinary user's own, with whose files the container works.
        return identity_for(checked.workspace) if os.geteuid() == 0 else Identity(os.geteuid(), os.getegid())

    def _list_expected_mounts(self, checked: Plan, workspace: Workspace) -> list[tuple[str, int, int, bool]]:
        """Return what the first process finds in the container, where it can be told; see `Workspace.list_shown`."""
        return workspace.list_shown(checked) if self.guards_workspaces else []

    def _launch(self, checked: Plan, workspace: Workspace) -> Launch:
        conf = configuration(checked, Identity())
        return Launch(
            argv=(),
            configuration={
                **conf,
                "filter": self._filter,
                "stays": True,
                "shown": self._list_expected_mounts(checked, workspace),
            },
            stdin=checked.stdin,
            limits=checked.request.limits,
            env={},
            kill_after_seconds=0.1,
            reports_last=True,
        )


def _options(checked: Plan, workspace: Workspace, owner: str) -> dict[str, Any]:
    limits = checked.request.limits
    identity = workspace.identity
    volumes = [
        f"{INSIDE}:{INSIDE_AT}:ro",
        f"{workspace.exchange}:{_EXCHANGE}:ro",
        f"{workspace.code}:{CODE_FOLDER}:ro",
    ]
    volumes.append(f"{workspace.work}:{WORK}:rw")
    volumes += [f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'}" for mount in checked.mounts]
    private = (
        f"size={limits.tmp_bytes},nr_inodes={max_names(limits)},mode=1777,exec,uid={identity.uid},gid={identity.gid}"
    )
    return {
        "entrypoint": ["python3", "-I", "-S", "-X", "utf8", f"{INSIDE_AT}/contained.py", *_INVITATION],
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
        # The engine gives it the mode that the image's folder has; its owner, the run's user, may write in any case.
        "tmpfs": dict.fromkeys(("/tmp", "/dev/shm"), private),  # noqa: S108
        "volumes": volumes,
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
        "labels": {"bough": "run", OWNER_LABEL: owner},
        "log_config": {"type": "none", "config": {}},
    }
