"""Starting one process tree, watching it until it ends, and ending it in time.

The tree has a first process of bough (`inside/init.py` or `inside/keeper.py`) that reports on a socket how the program
ended. Time, and the reason why the tree was ended, are never taken from these reports.
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
"""How long a killed tree may take to exit before its first process is killed and its pipes are closed."""

CONF: Final = "{conf}"
"""Placeholder in an argument list for the descriptor of the configuration."""

STATUS: Final = "{status}"
"""Placeholder in an argument list for the status socket."""

CONTROL: Final = "{control}"
"""Placeholder in an argument list for the control socket."""

_MAX_REPORT_BYTES = 4096


def make_sealed(data: bytes, name: str) -> int:
    """Return a read-only descriptor of `data` in sealed memory, positioned at its start."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(os.dup(fd), "wb") as target:
        target.write(data)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def readable(data: bytes, name: str) -> int:
    """Return a descriptor to read `data` from: sealed memory, or an unnamed file if that is unavailable."""
    if hasattr(os, "memfd_create"):
        return make_sealed(data, name)
    with tempfile.TemporaryFile() as target:
        target.write(data)
        target.flush()
        os.lseek(target.fileno(), 0, os.SEEK_SET)
        return os.dup(target.fileno())


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What to start, and how to end it.

    Attributes:
        argv: The command; its occurrences of `CONF` and `STATUS` become descriptor numbers.
        configuration: The configuration that the first process reads, as plain values.
        kill_after_seconds: The first process ends its tree when the status socket is closed; this much later what was
            started is killed as well.
        on_listener: Called with the socket that listens inside the sandbox, when the first process hands one over.
        reports_last: Whether the first process reports the program's end only after all other processes have ended.
        pass_fds: Descriptors that the first process inherits; `ChildProcess` owns and closes them.
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
class Ended:
    """How a tree ended: its output, the reports, and why it was ended.

    Attributes:
        wait_status: The program's wait status as reported by the first process; None if that died before.
        start_errno: The error that kept the program from starting; None if it started.
        stood: Whether the first process was ready.
    """

    stdout: Pipe
    stderr: Pipe
    stood: bool
    wait_status: int | None
    start_errno: int | None
    killed_by: str | None
    wall_seconds: float
    cpu_seconds: float
    max_rss_bytes: int


class ChildProcess:
    """One running process tree. Create it, `await run(…)` once."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._loop = asyncio.get_running_loop()
        self.killed_by: str | None = None
        self._report = bytearray()
        self._has_listener = False
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._hung_up: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        for sign in (self._exited, self._hung_up):
            sign.add_done_callback(lambda _: self._check_over())
        self._usage: resource.struct_rusage | None = None

    async def run(
        self,
        *,
        timeout_seconds: float,
        watch: Callable[[ChildProcess], Any],
        harvest: Callable[[], Awaitable[_T]],
    ) -> tuple[Ended, _T]:
        """Run the process tree, stop it at `timeout_seconds`, and return how it ended and the result of `harvest`.

        Cancelling kills the tree and waits until it has exited.

        Args:
            watch: A coroutine function that runs concurrently and may call `stop`.
            harvest: A coroutine function that is called once every process of the program has exited; the sandbox may
                still be shutting down then.
        """
        stdout = Pipe(self._launch.limits.stdout_bytes)
        stderr = Pipe(self._launch.limits.stderr_bytes)
        try:
            started_at = time.monotonic()
            self._start(stdout, stderr)
            await self._until_over(timeout_seconds, watch)
            harvested = await _both(harvest(), self._until_gone((stdout, stderr)))
            return self._make_ended(stdout, stderr, time.monotonic() - started_at), harvested
        finally:
            stdout.close()
            stderr.close()

    @property
    def pid(self) -> int:
        """The process that was started; the program runs somewhere below it."""
        return self._process.pid

    @property
    def stands(self) -> bool:
        """Whether the first process has reported that it is ready."""
        return ExitReport.parse(bytes(self._report)).stood

    @property
    def own_sockets(self) -> frozenset[int]:
        """Inodes of the sockets by which this process sends descriptors into the sandbox."""
        return frozenset()

    def stop(self, reason: str) -> None:
        """Stop the whole tree. Only the reason of the first call is recorded."""
        if self._exited.done():
            return
        if self.killed_by is None:
            self.killed_by = reason
        if self._status.fileno() >= 0:
            self._status.shutdown(socket.SHUT_WR)
        # Later: the first process, when it sees the closed socket, kills and reaps its tree in order.
        self._loop.call_later(self._launch.kill_after_seconds, self._kill)

    def _start(self, stdout: Pipe, stderr: Pipe) -> None:
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        conf = readable(marshal.dumps(dict(self._launch.configuration), 4), "bough-configuration")
        stdin = readable(self._launch.stdin, "bough-stdin") if self._launch.stdin else None
        try:
            self._spawn((conf, stdin, stdout.write_fd, stderr.write_fd, theirs.fileno()))
        except OSError as error:
            self._status.close()
            raise ExecutorError(
                f"{(*self._launch.argv, 'The sandbox')[0]} could not be started: {error.strerror}.",
                hint="Run `bough doctor`.",
            ) from error
        finally:
            # Our copies of the child's ends: with one open, the end of the child would never be seen as end of file.
            theirs.close()
            for fd in (conf, *([] if stdin is None else [stdin]), *self._launch.pass_fds):
                os.close(fd)
            stdout.close_writing_end()
            stderr.close_writing_end()
        self._status.setblocking(False)
        self._loop.add_reader(self._status, self._read_report)

    def _spawn(self, fds: tuple[int, int | None, int, int, int]) -> None:
        """Start the process; `fds` are configuration, input, output, errors and its end of the status socket."""
        conf, stdin, stdout, stderr, status = fds
        names = {CONF: str(conf), STATUS: str(status)}
        self._process = subprocess.Popen(  # noqa: S603 - the command is bough's own
            [names.get(arg, arg) for arg in self._launch.argv],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout,
            stderr=stderr,
            env=self._launch.env,
            pass_fds=(*self._launch.pass_fds, conf, status),
            start_new_session=True,
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    async def _until_over(self, timeout_seconds: float, watch: Callable[[ChildProcess], Any]) -> None:
        """Wait until the program has exited; when cancelled, until the whole sandbox has exited."""
        timer = self._loop.call_later(timeout_seconds, self.stop, "timeout")
        watcher = self._loop.create_task(watch(self))
        try:
            await asyncio.wait([self._over])  # a cancellation of this task does not cancel the future
        except asyncio.CancelledError:
            self.stop("cancelled")
            await finish(self._watch_end())
            raise
        finally:
            timer.cancel()
            watcher.cancel()
            await asyncio.wait([watcher])
        await self._settle()

    async def _until_gone(self, pipes: tuple[Pipe, Pipe]) -> None:
        timer = self._loop.call_later(GRACE_SECONDS, self._kill)
        await self._watch_end()
        timer.cancel()
        if open_pipes := [pipe.ended for pipe in pipes if not pipe.ended.done()]:
            await asyncio.wait(open_pipes, timeout=GRACE_SECONDS)

    def _watch_end(self) -> asyncio.Future[Any]:
        return asyncio.gather(self._exited, self._hung_up)

    def _check_over(self) -> None:
        """Mark the program as ended, either from the first process's report or because that has exited itself."""
        reported = self._launch.reports_last and ExitReport.parse(bytes(self._report)).wait_status is not None
        if not self._over.done() and (reported or (self._exited.done() and self._hung_up.done())):
            self._over.set_result(None)

    async def _settle(self) -> None:
        """Kill processes that outlive the program, in sandboxes where its end does not kill them."""

    def _kill(self) -> None:
        if not self._exited.done():
            # Not `Popen.send_signal`, which takes the exit status of a process that has just ended away from `_reap`.
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _read_report(self) -> None:
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._report) > _MAX_REPORT_BYTES:
            self._hang_up()
        else:
            self._report += data
            self._check_over()

    def _receive(self) -> bytes:
        """Return the next message of the first process; a descriptor in it is passed on."""
        if self._launch.on_listener is None or self._has_listener:
            return self._status.recv(4096)  # without room for descriptors: the kernel drops those that are sent
        data, fds, _, _ = socket.recv_fds(self._status, 4096, 1)
        for fd in fds:
            self._has_listener = True
            self._launch.on_listener(socket.socket(fileno=fd))
        return data

    def _hang_up(self) -> None:
        if self._status.fileno() >= 0:
            self._loop.remove_reader(self._status)
            self._status.close()
        if not self._hung_up.done():
            self._hung_up.set_result(None)

    def _reap(self) -> None:
        """Read the first process's exit status and resource usage; its descendants have exited, or will soon."""
        try:
            pid, status, self._usage = os.wait4(self._process.pid, os.WNOHANG)
        except ChildProcessError:  # the calling program reaps all of its children, and was first
            pid, status, self._usage = self._process.pid, 0, None
        if not pid:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._exited.set_result(None)
        self._loop.call_later(GRACE_SECONDS, self._hang_up)

    def _final_report(self) -> ExitReport:
        return ExitReport.parse(bytes(self._report))

    def _make_ended(self, stdout: Pipe, stderr: Pipe, wall_seconds: float) -> Ended:
        report = self._final_report()
        usage = self._usage
        return Ended(
            stdout=stdout,
            stderr=stderr,
            stood=report.stood,
            wait_status=report.wait_status,
            start_errno=report.start_errno,
            killed_by=self.killed_by,
            wall_seconds=wall_seconds,
            cpu_seconds=usage.ru_utime + usage.ru_stime if usage else report.cpu_seconds,
            max_rss_bytes=max(report.max_rss_bytes, usage.ru_maxrss * 1024 if usage and not report.stood else 0),
        )


class ConnectedChild(ChildProcess):
    """A process tree whose input and output are descriptors of this process; its output is not captured."""

    def __init__(self, launch: Launch, *, stdin: int, stdout: int) -> None:
        super().__init__(launch)
        self._streams = (stdin, stdout)

    def _spawn(self, fds: tuple[int, int | None, int, int, int]) -> None:
        conf, _, _, stderr, status = fds
        super()._spawn((conf, *self._streams, stderr, status))


async def _both(first: Awaitable[_T], second: Awaitable[None]) -> _T:
    """Await two things to their ends, even if the caller is cancelled; return what the first returned."""
    tasks = (asyncio.ensure_future(first), asyncio.ensure_future(second))
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        await asyncio.wait(tasks)
        raise
    tasks[1].result()
    return tasks[0].result()


def processes_below(pid: int) -> list[int]:
    """Return the processes that descend from `pid`. Blocks."""
    descendants: list[int] = []
    todo = [pid]
    while todo:
        children = [child for task in _tasks(todo.pop()) for child in read_numbers(f"{task}/children")]
        descendants += children
        todo += children
    return descendants


def _tasks(pid: int) -> list[str]:
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
    """The reports of the first process; malformed lines are ignored."""

    stood: bool = False
    wait_status: int | None = None
    start_errno: int | None = None
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0

    @classmethod
    def parse(cls, data: bytes) -> ExitReport:
        """Read the lines `r`, `e ERRNO` and `s STATUS CPU RSS`; anything else counts for nothing."""
        numbers_by_kind: dict[bytes, list[int]] = {}
        for line in data.split(b"\n"):
            kind, *numbers = line.split(b" ")
            if all(number.isdigit() and len(number) < 19 for number in numbers):
                numbers_by_kind.setdefault(kind, [int(number) for number in numbers])
        ended = numbers_by_kind.get(b"s", [])
        failed = numbers_by_kind.get(b"e", [])
        return cls(
            stood=b"r" in numbers_by_kind,
            wait_status=ended[0] & 0xFFFF if len(ended) == 3 else None,
            start_errno=failed[0] if len(failed) == 1 else None,
            cpu_seconds=ended[1] / 1e6 if len(ended) == 3 else 0.0,
            max_rss_bytes=ended[2] * 1024 if len(ended) == 3 else 0,
        )
