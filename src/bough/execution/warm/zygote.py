"""Warm sandboxes: a sandbox in which Python is already started, waiting for the next run of the same `execution_id`.

A zygote is a bubblewrap sandbox whose first process may still create mounts. It runs no program itself, but forks for
every run, one at a time. Its runs share one process namespace, in which every process is killed between them.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol

from bough import tree
from bough.execution.base import ExecutionLimits
from bough.execution.process.cgroup import DelayedGroup
from bough.execution.process.child import CONTROL, ChildProcess, Descriptors, Launch, list_descendants
from bough.execution.process.identity import Identity
from bough.execution.process.run_directory import RunDirectory
from bough.execution.process.workspace import Workspace
from bough.execution.request import Plan

START_SECONDS: Final = 20.0
Key = tuple[Any, ...]
"""Everything of a plan that a warm sandbox or a persistent interpreter cannot change after its start."""


class WarmRung(Protocol):
    """A rung that can keep a sandbox warm."""

    def identity(self, plan: Plan) -> Identity:
        """Return the user that runs `plan` in it."""
        ...

    def warm_command(self, plan: Plan, folder: str, identity: Identity) -> tuple[list[str], tuple[int, ...]]:
        """Return the command of a zygote for plans like `plan`, and the descriptors that it inherits.

        Args:
            folder: The host folder of the zygote's runs.
        """
        ...

    def warm_configuration(self, plan: Plan, workspace: Workspace) -> dict[str, object]:
        """Return the configuration of a run for the process that the zygote forks."""
        ...


def make_key(plan: Plan) -> Key:
    """Return the key of a plan; plans with equal keys can run in the same zygote."""
    request = plan.request
    return (
        request.execution_id,
        plan.workspace,
        plan.mounts,
        tuple(sorted(plan.file_identities.items())),
        request.limits,
        request.network,
        request.guards,
    )


@dataclass
class Zygote:
    """One warm sandbox; created by `start`, ended by `close`.

    Attributes:
        folder: The host folder that contains the folders of its runs.
        control: The socket over which it receives its runs.
        busy: Locked during a run.
        numbers: Counts its runs; the number of a run is the name of its folder.
    """

    rung: WarmRung
    run_directory: RunDirectory
    folder: str
    identity: Identity
    limits: ExecutionLimits
    process: subprocess.Popen[bytes]
    control: socket.socket
    group: DelayedGroup
    busy: asyncio.Lock
    numbers: count[int]

    @classmethod
    async def start(cls, plan: Plan, rung: WarmRung, run_directory: RunDirectory) -> Zygote:
        """Start a warm sandbox for plans like `plan`.

        Raises:
            OSError: The sandbox could not be started, or was not ready in time.
        """
        folder = await asyncio.to_thread(run_directory.new_folder)
        identity = rung.identity(plan)
        control, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command, fds = rung.warm_command(plan, folder, identity)
        try:
            process = subprocess.Popen(  # noqa: S603, ASYNC220 - bough's own command; starting one takes 2 ms
                [str(other_end.fileno()) if word == CONTROL else word for word in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                pass_fds=(*fds, other_end.fileno()),
                start_new_session=True,
            )
        finally:
            other_end.close()
            for fd in fds:
                os.close(fd)
        limits = plan.request.limits
        group = DelayedGroup(lambda: run_directory.new_group(limits))
        zygote = cls(rung, run_directory, folder, identity, limits, process, control, group, asyncio.Lock(), count())
        try:
            await zygote._wait_ready()
        except BaseException:
            await asyncio.to_thread(zygote.close)
            raise
        return zygote

    async def _wait_ready(self) -> None:
        """Wait until the sandbox reports that it is ready, and move it into its control group."""
        self.control.setblocking(False)
        loop = asyncio.get_running_loop()
        if await asyncio.wait_for(loop.sock_recv(self.control, 16), START_SECONDS) != b"r":
            raise OSError("the warm sandbox did not start")
        await asyncio.to_thread(self.group.enter, lambda: list_descendants(self.process.pid))

    @property
    def alive(self) -> bool:
        """Whether the sandbox is still running."""
        return self.control.fileno() >= 0 and self.process.poll() is None

    def prepare(self, plan: Plan) -> Workspace:
        """Create the folders of a run below the zygote's folder. Blocks."""
        folder = os.path.join(self.folder, str(next(self.numbers)))
        os.mkdir(folder)
        os.chmod(folder, 0o711)  # noqa: S103 - the run's user enters it
        return Workspace.prepare(plan, self.run_directory, self.identity, folder=folder)

    def launch(self, plan: Plan, workspace: Workspace) -> Launch:
        """Return the launch with which a `WarmChild` runs `plan`."""
        return Launch(
            argv=(),
            configuration=self.rung.warm_configuration(plan, workspace),
            stdin=plan.stdin,
            limits=plan.request.limits,
            env={},
            kill_after_seconds=0.05,
            reports_last=True,
        )

    def send(self, fds: Sequence[int]) -> None:
        """Start a run with the descriptors of configuration, stdin, stdout, stderr and status socket.

        Raises:
            OSError: The zygote has exited.
        """
        self.control.sendmsg([b"g"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])

    def kill(self) -> None:
        """Kill the sandbox with all of its processes."""
        with suppress(ProcessLookupError):
            self.process.kill()

    def close(self) -> None:
        """End the sandbox and remove its folder. Idempotent. Blocks until the sandbox has exited."""
        self.control.close()  # makes the zygote exit
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.group.close()
        if os.path.isdir(self.folder):
            tree.remove(self.folder)


class WarmChild(ChildProcess):
    """A run in a zygote; it ends when the zygote reports its end or exits.

    Attributes:
        sent: Whether the zygote has received the run.
    """

    def __init__(self, launch: Launch, zygote: Zygote) -> None:
        super().__init__(launch)
        self._zygote = zygote
        self.sent = False

    @property
    def pid(self) -> int:
        """The pid of the zygote's bubblewrap process."""
        return self._zygote.process.pid

    def _spawn(self, fds: Descriptors) -> None:
        conf, stdin, stdout, stderr, status = fds
        input_fd = os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)
        try:
            self._zygote.send([conf, input_fd, stdout, stderr, status])
            self.sent = True
        finally:
            os.close(input_fd)

    def _kill(self) -> None:
        if not self._first_process_exited.done():
            self._zygote.kill()

    def _close_status(self) -> None:
        super()._close_status()
        # The zygote itself continues, so the end of the status socket ends the run.
        if not self._first_process_exited.done():
            self._first_process_exited.set_result(None)
