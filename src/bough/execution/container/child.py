"""Runs in a container: controlling them through the engine, and connecting to their first process."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import array
import asyncio
import os
import secrets
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Self

from bough.cancellation import finish
from bough.execution.container.engine import engine_errors, is_refusal
from bough.execution.process.cgroup import DelayedGroup, Group
from bough.execution.process.child import ChildProcess, Descriptors, Launch
from bough.execution.process.files import Collected
from bough.execution.process.workspace import Workspace
from bough.execution.request import Plan
from bough.tree import open_descriptor

_TOKEN_SECONDS: Final = 5.0


class ContainerRun:
    """A run in a separate container. All methods block."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def get_first_pid(self) -> int:
        """Return the pid of the run's first process on this machine; 0 if it has ended."""
        try:
            self._container.reload()
            return int(self._container.attrs["State"]["Pid"])
        except engine_errors():
            return 0

    def has_ended(self) -> bool:
        """Whether the run has ended or was removed."""
        try:
            self._container.reload()
        except engine_errors() as error:
            return is_refusal(error)
        return str(self._container.status) in ("exited", "dead", "removing")

    def kill_leftovers(self) -> None:
        """Kill processes that outlive the program. Must be called before files are collected."""
        # Nothing to do: the first process of a fresh container kills every other process before it reports.

    def end(self) -> None:
        """Remove the container, running or not. Calling it twice is allowed."""
        remove_container(self._container)


class ExecRun(ContainerRun):
    """A run whose first process was started in a kept container.

    Args:
        id: The engine's id of the process.
        earlier_pids: The processes that were running before the run; they continue after it.
        restart: Ends every process of the container, and starts the container again.
    """

    def __init__(
        self, engine: Any, container: Any, id: str, earlier_pids: set[int], *, restart: Callable[[], None]
    ) -> None:
        super().__init__(container)
        self._api, self._id = engine.api, id
        self._earlier_pids, self._restart = earlier_pids, restart
        self._lock = threading.Lock()
        self._is_clean = False

    def get_first_pid(self) -> int:
        """Return the pid on this machine of the process that the engine started; 0 if it is unknown."""
        try:
            return int(self._api.exec_inspect(self._id)["Pid"])
        except engine_errors():
            return 0

    def has_ended(self) -> bool:
        """Whether the run's first process has exited."""
        try:
            return not self._api.exec_inspect(self._id)["Running"]
        except engine_errors() as error:
            return is_refusal(error)

    def kill_leftovers(self) -> None:
        """Restart the container if processes of the run outlived its program."""
        with self._lock:
            leftover_pids = list_processes(self._container) - self._earlier_pids - {self.get_first_pid()}
            if leftover_pids and not self._is_clean:
                self._restart()
            self._is_clean = True

    def end(self) -> None:
        """End every process of the container, unless the processes of this run have already ended."""
        # Locked: a kill at a limit is called in another thread, and a second restart would end the next run.
        with self._lock:
            if not self._is_clean:
                self._restart()
            self._is_clean = True


def list_processes(container: Any) -> set[int]:
    """Return the pids on this machine of the processes in a container. Blocks."""
    return {int(row[0]) for row in container.top(ps_args="-eo pid")["Processes"]}


def remove_container(container: Any) -> None:
    """Remove a container and its volumes, running or not. Idempotent. Blocks."""
    with suppress(*engine_errors()):
        container.remove(force=True, v=True)


class ContainerChild(ChildProcess):
    """A run whose first process waits in a container; it ends when the first process has exited."""

    def __init__(self, launch: Launch, connection: socket.socket, run: ContainerRun, group: Group | None) -> None:
        super().__init__(launch)
        self._connection = connection
        self._run = run
        self._group = group
        self._peer_pid = peer_pid(connection)
        self._kills_before = self._memory_kills

    @property
    def pid(self) -> int:
        """The pid of the run's first process on this machine."""
        return self._peer_pid

    @property
    def _memory_kills(self) -> int:
        return 0 if self._group is None else self._group.memory_kills

    async def collect_output(self, workspace: Workspace, plan: Plan) -> tuple[Collected, bool]:
        """Return the output files and whether memory ran out, then let the first process exit.

        The first process waits until the host closes the socket, because the engine removes the control group and its
        counters when that process exits.
        """
        try:
            # Read before `kill_leftovers`, which may restart the container and so create a new control group.
            memory_ran_out = self._memory_kills > self._kills_before
            await finish(asyncio.to_thread(self._run.kill_leftovers))
            return await finish(asyncio.to_thread(workspace.collect, plan)), memory_ran_out
        finally:
            if self._status.fileno() >= 0:
                self._status.shutdown(socket.SHUT_WR)

    def _spawn(self, fds: Descriptors) -> None:
        conf, stdin, stdout, stderr, status = fds
        input_fd = os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)
        try:
            rights = array.array("i", [conf, input_fd, stdout, stderr, status])
            self._connection.sendmsg([b"g"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        finally:
            os.close(input_fd)

    def _kill(self) -> None:
        if not self._first_process_exited.done():
            self._loop.run_in_executor(None, self._run.end)

    def _close_status(self) -> None:
        super()._close_status()
        # In a container, the closed socket is the only sign on this machine that the first process has exited.
        if not self._first_process_exited.done():
            self._first_process_exited.set_result(None)


class NoGroup(DelayedGroup):
    """No control group of bough: the engine has already created one for the run."""

    @property
    def entered(self) -> bool:
        """Return True always: the engine created the group."""
        return True


class Invitation:
    """A listening socket in the exchange folder that accepts only the container's first process.

    The folder and the socket belong to the run's user, who may have a login on this machine. So the peer must send the
    token, which is stored in a file of the exchange until it is used, and must be the process that the engine started.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._token = secrets.token_bytes(32)
        self._token_path = os.path.join(workspace.exchange, "token")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        owner = workspace.identity.owner or (os.geteuid(), os.getegid())
        with open_descriptor(workspace.exchange) as folder:
            self._listener.bind(f"/proc/self/fd/{folder}/socket")  # a short path: the kernel allows only 107 bytes
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

    async def accept(self, get_expected_pid: Callable[[], Awaitable[int]]) -> socket.socket:
        """Return the first connection from the expected process; close all others.

        Args:
            get_expected_pid: Returns the pid on this machine of the process that the engine started.
        """
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            connection.setblocking(False)
            is_expected = False
            try:
                try:
                    async with asyncio.timeout(_TOKEN_SECONDS):
                        token = await loop.sock_recv(connection, 64)
                except (OSError, TimeoutError):
                    token = b""
                if secrets.compare_digest(token, self._token) and peer_pid(connection) == await get_expected_pid():
                    # Before the program starts, because the program could read the token and connect.
                    os.unlink(self._token_path)
                    is_expected = True
                    return connection
            finally:
                if not is_expected:  # also when the run is cancelled
                    connection.close()


def peer_pid(connection: socket.socket) -> int:
    """Return the pid of a connection's peer, as seen in the process namespace of this process."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])
