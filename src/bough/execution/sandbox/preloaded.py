"""A process that has imported sandlock and forks a supervisor for each run.

This import takes most of a supervisor's start. Until the process is ready, and whenever it fails, a
run starts its own supervisor.
"""

from __future__ import annotations

import array
import os
import resource
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bough.execution.process.child import GRACE_SECONDS, ChildProcess, Descriptors, Launch

SUPERVISOR_ENVIRONMENT: Final[Mapping[str, str]] = {"HOME": "/"}
"""sandlock needs a home folder, and the uid of a run may have none."""

_ANSWER_SECONDS: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class ForkedSupervisor:
    """A forked supervisor: its pid, a descriptor of the process, and the socket that reports its resource usage."""

    pid: int
    pidfd: int
    connection: socket.socket


class PreloadedSupervisor:
    """The process that forks supervisors, started at the second run. Safe for any thread and event loop.

    Args:
        find_command: Returns the command line, to which the number of the control socket is appended.

    Attributes:
        process: The process from its start until `close`; it may not be ready yet.
        control: The socket for requests, on which the process first reports that it is ready.
    """

    def __init__(self, find_command: Callable[[], Sequence[str]]) -> None:
        self._find_command = find_command
        self._lock = threading.Lock()
        self._is_requested = False
        self._is_ready = False
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None

    def child(self, launch: Launch) -> ChildProcess:
        """Return a child for `launch`, which is forked if the process is ready. The second call starts the process."""
        with self._lock:
            was_requested, self._is_requested = self._is_requested, True
        if was_requested:
            with suppress(OSError):
                self.start()
        return ForkedChild(launch, self)

    def start(self) -> None:
        """Start the process, unless it is running.

        Raises:
            OSError: The process could not be started.
        """
        with self._lock:
            if self.process is None:
                self._start()

    def fork(self, fds: Sequence[int]) -> ForkedSupervisor:
        """Fork a supervisor with the given descriptors. Blocks for a millisecond.

        Args:
            fds: The descriptors of configuration, stdin, stdout, stderr and status socket.

        Raises:
            BlockingIOError: The process is not running, or not ready yet.
            OSError: The process did not respond. No supervisor was started, and none will be.
        """
        own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with other_end:
                self._send([*fds, other_end.fileno()])
            own_end.settimeout(_ANSWER_SECONDS)
            pid, pidfd = _receive_process(own_end)
            own_end.send(b"g")  # without it the supervisor exits, so that no run is started twice
        except OSError as error:
            own_end.close()
            if not isinstance(error, BlockingIOError):
                self.close()
            raise
        own_end.setblocking(False)
        return ForkedSupervisor(pid=pid, pidfd=pidfd, connection=own_end)

    def __del__(self) -> None:
        """End the process when its executor is garbage-collected without `close`."""
        self.close()

    def close(self) -> None:
        """End the process; its supervisors continue. Later runs may start it again. Blocks for a few milliseconds."""
        with self._lock:
            process, self.process = self.process, None
            control, self.control = self.control, None
            self._is_ready = False
        if control is not None:
            control.close()
        if process is not None:
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> None:
        """Start the process; the caller has the lock."""
        control, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other_end:
            try:
                self.process = subprocess.Popen(  # noqa: S603 - bough's own command
                    [*self._find_command(), str(other_end.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env=SUPERVISOR_ENVIRONMENT,
                    pass_fds=(other_end.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                control.close()
                raise
        self.control = control

    def _send(self, fds: Sequence[int]) -> None:
        """Send the descriptors of a new supervisor to the process.

        Raises:
            BlockingIOError: The process is not running, or not ready yet.
        """
        with self._lock:
            if self.control is None:
                raise BlockingIOError("the process is not running")
            if not self._is_ready:
                self.control.recv(1, socket.MSG_DONTWAIT)  # BlockingIOError while it loads
                self._is_ready = True
            self.control.sendmsg([b"g"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def _receive_process(connection: socket.socket) -> tuple[int, int]:
    """Return the pid of the forked supervisor, and a descriptor of that process.

    Raises:
        OSError: No supervisor was forked.
    """
    data, fds, _, _ = socket.recv_fds(connection, 64, 1)
    if len(fds) != 1 or not data.startswith(b"p "):
        raise OSError("no supervisor was forked")
    return int(data[2:]), fds[0]


class ForkedChild(ChildProcess):
    """A run whose supervisor is forked by a `PreloadedSupervisor`, or started if that fails."""

    def __init__(self, launch: Launch, server: PreloadedSupervisor) -> None:
        super().__init__(launch)
        self._server = server
        self._forked: ForkedSupervisor | None = None
        self._has_exited = False
        self._usage_is_final = False

    @property
    def pid(self) -> int:
        """The pid of the supervisor."""
        return super().pid if self._forked is None else self._forked.pid

    def _spawn(self, fds: Descriptors) -> None:
        conf, stdin, stdout, stderr, status = fds
        null = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
        try:
            self._forked = self._server.fork([conf, null, stdout, stderr, status])
        except OSError:
            super()._spawn(fds)
            return
        finally:
            if stdin is None:
                os.close(null)
        self._loop.add_reader(self._forked.pidfd, self._note_exit)
        self._loop.add_reader(self._forked.connection, self._read_usage)

    def _note_exit(self) -> None:
        """Record that the supervisor has exited."""
        assert self._forked is not None  # noqa: S101 - registered after the fork
        self._loop.remove_reader(self._forked.pidfd)
        self._has_exited = True
        self._finish_if_ended()

    def _read_usage(self) -> None:
        """Read the resource usage of the supervisor. It stays unknown if the socket ends first."""
        assert self._forked is not None  # noqa: S101 - registered after the fork
        try:
            data = self._forked.connection.recv(64)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data.startswith(b"x "):
            _, _, user, system, peak_kib = data.split()
            times = (int(user) / 1e6, int(system) / 1e6)
            self._usage = resource.struct_rusage((*times, int(peak_kib), *[0] * 13))
        self._loop.remove_reader(self._forked.connection)
        self._forked.connection.close()
        self._usage_is_final = True
        self._finish_if_ended()

    def _finish_if_ended(self) -> None:
        """Mark the supervisor as exited when it has exited and its usage is final, in whichever order."""
        if self._has_exited and self._usage_is_final and self._forked is not None:
            os.close(self._forked.pidfd)
            self._first_process_exited.set_result(None)
            self._loop.call_later(GRACE_SECONDS, self._close_status)

    def _kill(self) -> None:
        if self._forked is None:
            super()._kill()
        elif not self._first_process_exited.done():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._forked.pidfd, signal.SIGKILL)
