"""Start a process tree, wait until it ends, and stop it at its timeout.

The first process of the tree is bough's (`inside/init.py` or `inside/keeper.py`). It reports on a socket, the status
socket, how the program ended. The run time, and the reason why a tree was stopped, are never taken from its reports.
"""

from __future__ import annotations

import asyncio
import fcntl
import marshal
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from bough.cancellation import finish
from bough.errors import ExecutorError
from bough.execution.base import ExecutionLimits
from bough.execution.process.capture import Pipe

_T = TypeVar("_T")

GRACE_SECONDS = 2.0
"""How long a stopped tree may take to exit, before its first process is killed and its pipes are closed."""

CONF: Final = "{conf}"
"""Placeholder in an argument list for the descriptor of the configuration."""

STATUS: Final = "{status}"
"""Placeholder in an argument list for the status socket."""

CONTROL: Final = "{control}"
"""Placeholder in an argument list for the control socket."""

Descriptors = tuple[int, int | None, int, int, int]
"""The descriptors of configuration, stdin (None if it is empty), stdout, stderr and status socket."""

_MAX_REPORT_BYTES = 4096


def make_sealed_file(data: bytes, name: str) -> int:
    """Return a read-only descriptor of `data` in sealed memory, positioned at its start."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(os.dup(fd), "wb") as target:
        target.write(data)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def open_in_memory(data: bytes, name: str) -> int:
    """Return a descriptor from which `data` can be read: sealed memory, or an unnamed file if that is unavailable."""
    if hasattr(os, "memfd_create"):
        return make_sealed_file(data, name)
    with tempfile.TemporaryFile() as target:
        target.write(data)
        target.flush()
        os.lseek(target.fileno(), 0, os.SEEK_SET)
        return os.dup(target.fileno())


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start and stop a process tree.

    Attributes:
        argv: The command; its occurrences of `CONF` and `STATUS` are replaced by descriptor numbers.
        configuration: The configuration that the first process reads, as plain values.
        pass_fds: Descriptors that the first process inherits; `ChildProcess` owns and closes them.
        kill_after_seconds: How long the first process may take to end its tree after the status socket is closed,
            before it is killed.
        on_listener: Called with the socket that listens inside the sandbox, when the first process sends one.
        reports_last: Whether the first process reports the program's end only after all other processes have ended.
    """

    argv: Sequence[str]
    configuration: Mapping[str, Any]
    stdin: bytes
    limits: ExecutionLimits
    env: Mapping[str, str]
    pass_fds: tuple[int, ...] = ()
    kill_after_seconds: float = GRACE_SECONDS
    on_listener: Callable[[socket.socket], None] | None = None
    reports_last: bool = False


@dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How a process tree ended: its output, its resource usage, and why it was stopped.

    Attributes:
        was_ready: Whether the first process reported that it was ready.
        wait_status: The program's wait status, reported by the first process; None if it exited without a report.
        start_errno: The error because of which the program could not be started; None if it started.
        killed_by: The reason of the first call of `stop`; None if the tree was not stopped.
    """

    stdout: Pipe
    stderr: Pipe
    was_ready: bool
    wait_status: int | None
    start_errno: int | None
    killed_by: str | None
    wall_seconds: float
    cpu_seconds: float
    max_rss_bytes: int


class ChildProcess:
    """One process tree. Await `run(…)` exactly once."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._loop = asyncio.get_running_loop()
        self.killed_by: str | None = None
        self._report = bytearray()
        self._has_listener = False
        self._first_process_exited: asyncio.Future[None] = self._loop.create_future()
        self._status_socket_closed: asyncio.Future[None] = self._loop.create_future()
        self._program_ended: asyncio.Future[None] = self._loop.create_future()
        for future in (self._first_process_exited, self._status_socket_closed):
            future.add_done_callback(lambda _: self._check_program_ended())
        self._usage: resource.struct_rusage | None = None

    async def run(
        self,
        *,
        timeout_seconds: float,
        watch: Callable[[ChildProcess], Any],
        collect_output: Callable[[], Awaitable[_T]],
    ) -> tuple[ProcessEnd, _T]:
        """Run the process tree, and return how it ended and the result of `collect_output`.

        Cancelling kills the tree and waits until it has exited.

        Args:
            timeout_seconds: When to stop the tree, after its start.
            watch: A coroutine function that runs concurrently and may call `stop`.
            collect_output: A coroutine function that is called when every process of the program has exited; the
                sandbox may still be shutting down.
        """
        stdout = Pipe(self._launch.limits.stdout_bytes)
        stderr = Pipe(self._launch.limits.stderr_bytes)
        try:
            started_at = time.monotonic()
            self._start(stdout, stderr)
            await self._wait_for_program(timeout_seconds, watch)
            collected = await _await_both(collect_output(), self._wait_for_exit((stdout, stderr)))
            return self._make_end(stdout, stderr, time.monotonic() - started_at), collected
        finally:
            stdout.close()
            stderr.close()

    @property
    def pid(self) -> int:
        """The pid of the process that was started; the program is one of its descendants."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether the first process has reported that it is ready."""
        return ExitReport.parse(bytes(self._report)).was_ready

    @property
    def sending_sockets(self) -> frozenset[int]:
        """Inodes of the sockets over which this process sends descriptors into the sandbox."""
        return frozenset()

    def stop(self, reason: str) -> None:
        """Stop the whole tree. Only the reason of the first call is recorded."""
        if self._first_process_exited.done():
            return
        if self.killed_by is None:
            self.killed_by = reason
        if self._status.fileno() >= 0:
            self._status.shutdown(socket.SHUT_WR)
        # Later, because the first process kills and reaps its tree in order when the socket is closed.
        self._loop.call_later(self._launch.kill_after_seconds, self._kill)

    def _start(self, stdout: Pipe, stderr: Pipe) -> None:
        """Create the descriptors of the first process, start it, and begin to read its reports.

        Raises:
            ExecutorError: The command could not be started.
        """
        self._status, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        conf = open_in_memory(marshal.dumps(dict(self._launch.configuration), 4), "bough-configuration")
        stdin = open_in_memory(self._launch.stdin, "bough-stdin") if self._launch.stdin else None
        try:
            self._spawn((conf, stdin, stdout.write_fd, stderr.write_fd, other_end.fileno()))
        except OSError as error:
            self._status.close()
            program = self._launch.argv[0] if self._launch.argv else "The sandbox"
            raise ExecutorError(
                f"{program} could not be started: {error.strerror}.", hint="Run `bough doctor`."
            ) from error
        finally:
            # While this process has a copy of the child's end of a pipe, reading the pipe never reaches its end.
            other_end.close()
            for fd in (conf, *([] if stdin is None else [stdin]), *self._launch.pass_fds):
                os.close(fd)
            stdout.close_writing_end()
            stderr.close_writing_end()
        self._status.setblocking(False)
        self._loop.add_reader(self._status, self._read_report)

    def _spawn(self, fds: Descriptors) -> None:
        """Start the process with the given descriptors."""
        conf, stdin, stdout, stderr, status = fds
        numbers = {CONF: str(conf), STATUS: str(status)}
        self._process = subprocess.Popen(  # noqa: S603 - the command is bough's own
            [numbers.get(arg, arg) for arg in self._launch.argv],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout,
            stderr=stderr,
            env=self._launch.env,
            pass_fds=(*self._launch.pass_fds, conf, status),
            start_new_session=True,
        )
        # A pidfd, because the pid may belong to another process once this one has been reaped.
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    async def _wait_for_program(self, timeout_seconds: float, watch: Callable[[ChildProcess], Any]) -> None:
        """Wait until the program has exited. When cancelled, wait until the whole sandbox has exited."""
        timer = self._loop.call_later(timeout_seconds, self.stop, "timeout")
        watcher = self._loop.create_task(watch(self))
        try:
            await asyncio.wait([self._program_ended])  # a cancellation of this task does not cancel the future
        except asyncio.CancelledError:
            self.stop("cancelled")
            await finish(self._wait_for_first_process())
            raise
        finally:
            timer.cancel()
            watcher.cancel()
            await asyncio.wait([watcher])
        await self._kill_leftovers()

    async def _wait_for_exit(self, pipes: tuple[Pipe, Pipe]) -> None:
        """Wait for the first process, which is killed after `GRACE_SECONDS`; then as long again for unread output."""
        timer = self._loop.call_later(GRACE_SECONDS, self._kill)
        await self._wait_for_first_process()
        timer.cancel()
        open_pipes = [pipe.ended for pipe in pipes if not pipe.ended.done()]
        if open_pipes:
            await asyncio.wait(open_pipes, timeout=GRACE_SECONDS)

    def _wait_for_first_process(self) -> asyncio.Future[Any]:
        """Wait until the first process has exited and the status socket is closed."""
        return asyncio.gather(self._first_process_exited, self._status_socket_closed)

    def _check_program_ended(self) -> None:
        """Mark the program as ended if the first process has reported the program's end or has exited itself."""
        reported = self._launch.reports_last and ExitReport.parse(bytes(self._report)).wait_status is not None
        if not self._program_ended.done() and (
            reported or (self._first_process_exited.done() and self._status_socket_closed.done())
        ):
            self._program_ended.set_result(None)

    async def _kill_leftovers(self) -> None:
        """Kill processes that outlive the program, in sandboxes whose first process does not kill them."""

    def _kill(self) -> None:
        if not self._first_process_exited.done():
            # Not `Popen.send_signal`: it may reap a process that has just exited, and `_reap` would miss its usage.
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _read_report(self) -> None:
        """Read from the status socket; close it at its end, or if the reports are too long."""
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._report) > _MAX_REPORT_BYTES:
            self._close_status()
        else:
            self._report += data
            self._check_program_ended()

    def _receive(self) -> bytes:
        """Return the next data of the first process; pass the first descriptor that it sends to `on_listener`."""
        if self._launch.on_listener is None or self._has_listener:
            return self._status.recv(4096)  # no ancillary data: the kernel drops any descriptor in it
        data, fds, _, _ = socket.recv_fds(self._status, 4096, 1)
        for fd in fds:
            self._has_listener = True
            self._launch.on_listener(socket.socket(fileno=fd))
        return data

    def _close_status(self) -> None:
        if self._status.fileno() >= 0:
            self._loop.remove_reader(self._status)
            self._status.close()
        if not self._status_socket_closed.done():
            self._status_socket_closed.set_result(None)

    def _reap(self) -> None:
        """Collect the exit status and resource usage of the first process, when it has exited."""
        try:
            pid, status, self._usage = os.wait4(self._process.pid, os.WNOHANG)
        except ChildProcessError:  # the calling program reaps all of its children, and has reaped this one
            pid, status, self._usage = self._process.pid, 0, None
        if not pid:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._first_process_exited.set_result(None)
        self._loop.call_later(GRACE_SECONDS, self._close_status)

    def _get_final_report(self) -> ExitReport:
        return ExitReport.parse(bytes(self._report))

    def _make_end(self, stdout: Pipe, stderr: Pipe, wall_seconds: float) -> ProcessEnd:
        """Return how the tree ended; the usage of the first process, if known, includes that of its descendants."""
        report = self._get_final_report()
        usage = self._usage
        return ProcessEnd(
            stdout=stdout,
            stderr=stderr,
            was_ready=report.was_ready,
            wait_status=report.wait_status,
            start_errno=report.start_errno,
            killed_by=self.killed_by,
            wall_seconds=wall_seconds,
            cpu_seconds=usage.ru_utime + usage.ru_stime if usage else report.cpu_seconds,
            max_rss_bytes=max(report.max_rss_bytes, usage.ru_maxrss * 1024 if usage and not report.was_ready else 0),
        )


class ConnectedChild(ChildProcess):
    """A process tree with descriptors of this process as its stdin and stdout; only stderr is captured."""

    def __init__(self, launch: Launch, *, stdin: int, stdout: int) -> None:
        super().__init__(launch)
        self._streams = (stdin, stdout)

    def _spawn(self, fds: Descriptors) -> None:
        conf, _, _, stderr, status = fds
        super()._spawn((conf, *self._streams, stderr, status))


async def _await_both(first: Awaitable[_T], second: Awaitable[None]) -> _T:
    """Await two coroutines and return the result of the first; if cancelled, still wait until both have ended."""
    tasks = (asyncio.ensure_future(first), asyncio.ensure_future(second))
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        await asyncio.wait(tasks)
        raise
    tasks[1].result()
    return tasks[0].result()


def list_descendants(pid: int) -> list[int]:
    """Return the pids of all descendants of the process `pid`. Blocks."""
    descendants: list[int] = []
    pending = [pid]
    while pending:
        for thread_folder in _list_threads(pending.pop()):
            children = read_numbers(f"{thread_folder}/children")
            descendants += children
            pending += children
    return descendants


def _list_threads(pid: int) -> list[str]:
    """Return the folders in `/proc` of the threads of a process; empty if it has exited."""
    folder = f"/proc/{pid}/task"
    try:
        return [f"{folder}/{name}" for name in os.listdir(folder)]
    except OSError:
        return []


def read_numbers(path: str) -> list[int]:
    """Return the numbers in a file of `/proc`; empty if it does not exist."""
    try:
        with open(path) as source:
            return [int(word) for word in source.read().split()]
    except OSError:
        return []


@dataclass(frozen=True, kw_only=True)
class ExitReport:
    """What the first process has reported so far."""

    was_ready: bool = False
    wait_status: int | None = None
    start_errno: int | None = None
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0

    @classmethod
    def parse(cls, data: bytes) -> ExitReport:
        """Parse the lines `r`, `e ERRNO` and `s WAIT_STATUS CPU_MICROSECONDS MAX_RSS_KIB`; other lines are ignored."""
        numbers_by_kind: dict[bytes, list[int]] = {}
        for line in data.split(b"\n"):
            kind, *numbers = line.split(b" ")
            if all(number.isdigit() and len(number) < 19 for number in numbers):
                numbers_by_kind.setdefault(kind, [int(number) for number in numbers])
        end_numbers = numbers_by_kind.get(b"s", [])
        error_numbers = numbers_by_kind.get(b"e", [])
        has_ended = len(end_numbers) == 3
        return cls(
            was_ready=b"r" in numbers_by_kind,
            wait_status=end_numbers[0] & 0xFFFF if has_ended else None,
            start_errno=error_numbers[0] if len(error_numbers) == 1 else None,
            cpu_seconds=end_numbers[1] / 1e6 if has_ended else 0.0,
            max_rss_bytes=end_numbers[2] * 1024 if has_ended else 0,
        )
