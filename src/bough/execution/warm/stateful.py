"""Persistent interpreters: one per `execution_id`, in a separate sandbox. Variables and files remain between runs.

The state is lost if a run is killed or crashes its interpreter, or if the interpreter is closed. The result of that run
or of the next one reports the loss. Earlier code is never run again.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import secrets
import socket
import subprocess
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from bough.cancellation import finish
from bough.errors import Conflict, ExecutorError
from bough.execution.base import CodeExecutionResult, Isolation
from bough.execution.process.cgroup import DelayedGroup
from bough.execution.process.child import (
    CONF,
    STATUS,
    ChildProcess,
    Descriptors,
    ExitReport,
    Launch,
    list_descendants,
    open_in_memory,
)
from bough.execution.process.process import prepare_workspace
from bough.execution.process.result import build_result
from bough.execution.process.run_directory import RunDirectory
from bough.execution.process.watch import watch
from bough.execution.process.workspace import Workspace, make_stale_workspace_error
from bough.execution.request import Plan
from bough.execution.sandbox.bubblewrap import BubblewrapRung, configuration
from bough.execution.warm.zygote import Key, make_key

MAX_KEPT: Final = 8
IDLE_SECONDS: Final = 600.0
_START_SECONDS: Final = 20.0
_MAX_WAIT_SECONDS: Final = 60.0
"""How long a run waits for a free session if all of them are busy."""

_MAX_REMEMBERED_KEYS: Final = 10_000
"""How many reasons for lost states are stored, by key."""


class Session:
    """One persistent interpreter and its workspace.

    Attributes:
        reports: What the sandbox's first process has reported.
        exited: Done when the sandbox has exited.
        call_socket_inode: The inode of the socket on which the interpreter receives its runs.
        has_run: Whether it has run anything yet.
    """

    def __init__(self, run_directory: RunDirectory, workspace: Workspace, plan: Plan) -> None:
        self.workspace = workspace
        self.group = DelayedGroup(lambda: run_directory.new_group(plan.request.limits))
        self.reports = bytearray()
        self.exited = asyncio.get_running_loop().create_future()
        self._report_received = asyncio.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self.call_socket_inode = 0
        self.has_run = False

    async def start(self, launch: Launch) -> None:
        """Start the interpreter and wait until it is ready.

        Raises:
            OSError: The interpreter could not be started, or exited at once.
            TimeoutError: The interpreter was not ready in time.
        """
        self.status, inner_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.calls, inner_calls = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.call_socket_inode = os.fstat(inner_calls.fileno()).st_ino
        conf = open_in_memory(_marshal_configuration(launch), "bough-configuration")
        numbers = {CONF: str(conf), STATUS: str(inner_status.fileno())}
        try:
            self.process = subprocess.Popen(  # noqa: S603, ASYNC220 - bough's own command; starting one takes 2 ms
                [numbers.get(word, word) for word in launch.argv],
                stdin=inner_calls.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=launch.env,
                pass_fds=(*launch.pass_fds, conf, inner_status.fileno()),
                start_new_session=True,
            )
        finally:
            inner_status.close()
            inner_calls.close()
            for fd in (conf, *launch.pass_fds):
                os.close(fd)
        self.status.setblocking(False)
        asyncio.get_running_loop().add_reader(self.status, self._read)
        await self._wait_until(lambda: b"r\n" in self.reports)
        if not self.alive:
            raise OSError("the interpreter exited at its start")
        await asyncio.to_thread(self.group.enter, lambda: list_descendants(self.pid))

    @property
    def pid(self) -> int:
        """The pid of the process that started the sandbox; 0 before `start` was called."""
        return 0 if self.process is None else self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the interpreter is still running."""
        return not self.exited.done()

    async def kill_leftovers(self) -> None:
        """Kill every process of the sandbox except the interpreter, and stop the interpreter until the next run."""
        if self.alive:
            earlier_reports = self.reports.count(b"k\n")
            with suppress(OSError):
                self.status.send(b"k")
            # The first process reports `k` when it has killed them.
            await self._wait_until(lambda: self.reports.count(b"k\n") > earlier_reports)

    def send(self, fds: Sequence[int], token: bytes) -> None:
        """Resume the interpreter and send it one run.

        Args:
            fds: The descriptors of configuration, stdin, stdout, stderr and the answer.
            token: The end of a valid answer. The interpreter reads it from the socket when the code has ended.

        Raises:
            OSError: The interpreter has exited.
        """
        self.status.send(b"c")
        self.calls.sendmsg([b"c"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        with suppress(OSError):  # short code may already have ended the interpreter, which the first process reports
            self.calls.send(token)

    def kill(self) -> None:
        """Kill the interpreter and every process in its sandbox. Does not wait."""
        # The first process ends the sandbox when the socket is closed. It is killed in case it no longer reads it.
        if self.alive:
            self.status.shutdown(socket.SHUT_WR)
        asyncio.get_running_loop().call_later(0.05, self._kill_process)

    async def close(self) -> None:
        """Stop the interpreter, wait until it has exited, and remove its workspace."""
        if self.process is not None:
            self.calls.close()
            self.kill()
            await self.exited
            await asyncio.to_thread(self.process.wait)
        await asyncio.to_thread(self.group.close)
        await asyncio.to_thread(self.workspace.remove)

    def _kill_process(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true after a report, or the sandbox has exited.

        Raises:
            TimeoutError: Neither happened in time.
        """
        async with asyncio.timeout(_START_SECONDS):
            while not condition():
                if not self.alive:
                    return
                self._report_received.clear()
                await self._report_received.wait()

    def _read(self) -> None:
        """Read reports from the status socket; at its end, the sandbox has exited."""
        try:
            data = self.status.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.reports += data
        if not data:
            asyncio.get_running_loop().remove_reader(self.status)
            self.status.close()
            self.exited.set_result(None)
        self._report_received.set()


class SessionCall(ChildProcess):
    """One run in a session. It ends when the interpreter answers or exits. Stopping the run ends the session."""

    def __init__(self, launch: Launch, session: Session) -> None:
        super().__init__(launch)
        self._session = session
        self._token = b"%018d" % secrets.randbelow(10**18)

    @property
    def pid(self) -> int:
        """The pid of the process that started the session's sandbox."""
        return self._session.pid

    @property
    def sending_sockets(self) -> frozenset[int]:
        """The inode of the socket on which the session receives its runs."""
        return frozenset((self._session.call_socket_inode,))

    def stop(self, reason: str) -> None:
        """End the session, which also ends this run."""
        if not self._first_process_exited.done() and self.killed_by is None:
            self.killed_by = reason
            self._session.kill()

    def _spawn(self, fds: Descriptors) -> None:
        conf, stdin, stdout, stderr, status = fds
        input_fd = os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)
        try:
            self._session.send([conf, input_fd, stdout, stderr, status], self._token)
        finally:
            os.close(input_fd)

    def _read_report(self) -> None:
        """End the run when the answer arrives: leftover processes may keep the socket open forever."""
        super()._read_report()
        if self._read_answer().wait_status is not None:
            self._close_status()

    def _read_answer(self) -> ExitReport:
        """Return the report of the interpreter. A wait status without the token is ignored: the code wrote it."""
        suffix = b" " + self._token
        lines = bytes(self._report).split(b"\n")[:-1]
        valid_lines = [
            line.removesuffix(suffix) for line in lines if not line.startswith(b"s ") or line.endswith(suffix)
        ]
        return ExitReport.parse(b"\n".join(valid_lines))

    def _close_status(self) -> None:
        """Close the socket, and end the run if its answer has arrived.

        The code may close the socket and continue. Without an answer, the run ends when the session exits or the
        timeout stops it.
        """
        super()._close_status()
        if self._read_answer().wait_status is not None:
            self._mark_ended()
        else:
            self._session.exited.add_done_callback(lambda _: self._mark_ended())

    def _mark_ended(self) -> None:
        """End the run. The session's first process continues; for this run it counts as exited."""
        if not self._first_process_exited.done():
            self._first_process_exited.set_result(None)

    async def _kill_leftovers(self) -> None:
        """Kill the remaining processes, or wait for the session's end if the run or the interpreter was killed."""
        if self.killed_by is None and self._read_answer().wait_status is not None:
            await self._session.kill_leftovers()
        else:
            await self._session.exited

    def _get_final_report(self) -> ExitReport:
        answer = self._read_answer()
        if answer.wait_status is not None or answer.start_errno is not None:
            return answer
        return ExitReport.parse(bytes(self._session.reports))


class _InterpreterExitedError(Exception):
    """The interpreter exited before it started this run, because of an earlier run."""


class Sessions:
    """The sessions of an executor, started when they are needed.

    At most `max_kept` exist at a time; the least recently used one that is idle is closed first. A session is also
    closed after it was idle for `idle_seconds`.

    Args:
        lost_reasons: The reasons for lost states, by key. The caller passes the same dict to the next `Sessions`.
        counts: Counts `stateful` runs and started `sessions`.
    """

    def __init__(
        self,
        rung: BubblewrapRung,
        run_directory: RunDirectory,
        *,
        isolation: Isolation,
        lost_reasons: OrderedDict[Key, str],
        counts: Counter[str],
        max_kept: int = MAX_KEPT,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._rung = rung
        self._run_directory = run_directory
        self._isolation = isolation
        self._counts = counts
        self._max_kept = max_kept
        self._idle_seconds = idle_seconds
        self._sessions: OrderedDict[Key, Session] = OrderedDict()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._locks: dict[Key, asyncio.Lock] = {}
        self._lost_reasons = lost_reasons
        self._key_by_id: dict[str, Key] = {}
        self._starting = 0
        self._slot_freed = asyncio.Event()
        self._closing: set[asyncio.Task[None]] = set()

    async def run(self, plan: Plan) -> CodeExecutionResult:
        """Run `plan` in the session of its `execution_id`, which is started if missing. Runs of a session take turns.

        Raises:
            Conflict: All sessions stayed busy until the timeout, or for a minute; nothing was run.
            ExecutorError: The interpreter could not be started.
        """
        try:
            return await self._run(plan)
        finally:
            self._slot_freed.set()

    async def _run(self, plan: Plan) -> CodeExecutionResult:
        """Run `plan` after the earlier runs of its session; again if the interpreter exited before it started."""
        key = make_key(plan)
        if plan.request.stateful:
            await self._replace_if_changed(plan.request.execution_id or "", key)
        async with self._locks.setdefault(key, asyncio.Lock()):
            self._counts["stateful"] += 1
            try:
                return await self._run_once(key, plan)
            except _InterpreterExitedError:  # before this run started, so it can run in a new interpreter
                return await self._run_once(key, plan)

    async def _run_once(self, key: Key, plan: Plan) -> CodeExecutionResult:
        """Run `plan` in its session; the result reports whether the state was lost before or during the run.

        Raises:
            _InterpreterExitedError: The interpreter exited before it started this run.
        """
        session, workspace = await self._get_session(key, plan)
        lost_reason = self._lost_reasons.pop(key, None)
        self._mark_used(key)
        end_reason = "cancelled"
        try:
            result = await self._run_in_session(plan, session, workspace)
            end_reason = result.killed_by or "crashed"
        except _InterpreterExitedError:
            end_reason = "crashed"
            raise
        finally:
            if not session.alive:
                await finish(self._end_session(key, end_reason))
        lost_reason = self._lost_reasons.get(key, lost_reason)
        return replace(result, state_lost=lost_reason is not None, state_lost_reason=lost_reason)

    async def _get_session(self, key: Key, plan: Plan) -> tuple[Session, Workspace]:
        """Return the session of a key, started if missing, after writing code and input files into its workspace."""
        session = self._sessions.get(key)
        if session is not None and not session.alive:
            await self._end_session(key, "crashed")
            session = None
        if session is not None:
            workspace = await finish(asyncio.to_thread(session.workspace.prepare_next, plan))
            if session.workspace.guarded.covers(workspace.guarded):
                return session, workspace
            # A guarded name is new, for example a repository: only a new sandbox can mount it read-only.
            await finish(self._end_session(key, "new guarded names in the workspace"))
        session = await self._start_when_free(key, plan)
        return session, await finish(asyncio.to_thread(session.workspace.prepare_next, plan))

    async def _replace_if_changed(self, execution_id: str, key: Key) -> None:
        """Close the session of an id if its mounts, workspace or limits changed, and note that its state is lost."""
        old_key = self._key_by_id.get(execution_id, key)
        self._key_by_id[execution_id] = key
        if old_key == key:
            return
        async with self._locks.setdefault(old_key, asyncio.Lock()):
            await finish(self._end_session(old_key, ""))
        self._lost_reasons.pop(old_key, None)
        self._note_lost(key, "other mounts, workspace or limits")

    async def close(self) -> None:
        """End all sessions. Calling it twice is allowed."""
        for key in list(self._sessions):
            self._note_lost(key, "executor restarted")
            self._close_in_background(key)
        await asyncio.gather(*self._closing)
        self._key_by_id.clear()

    async def _start_when_free(self, key: Key, plan: Plan) -> Session:
        """Start a session as soon as there are fewer than `max_kept`. An idle one is closed for it.

        Raises:
            Conflict: All sessions stayed busy until the timeout, or for a minute.
        """
        try:
            async with asyncio.timeout(min(plan.timeout_seconds, _MAX_WAIT_SECONDS)):
                while len(self._sessions) + self._starting >= self._max_kept and not self._evict():
                    self._slot_freed.clear()
                    await self._slot_freed.wait()
        except TimeoutError:
            raise Conflict(f"{self._max_kept} interpreters are busy", hint="wait, or close a conversation") from None
        self._starting += 1
        try:
            self._sessions[key] = session = await self._start(plan)
        finally:
            self._starting -= 1
        return session

    def _evict(self) -> bool:
        """Close the least recently used idle session. Returns whether there was one."""
        for key in self._sessions:
            if not self._locks[key].locked():
                self._note_lost(key, "evicted")
                self._close_in_background(key)
                return True
        return False

    async def _start(self, plan: Plan) -> Session:
        """Start a session for plans like `plan`.

        Raises:
            Conflict: A mounted file was replaced after the request was checked.
            ExecutorError: The interpreter could not be started.
        """
        workspace = await prepare_workspace(plan, self._run_directory, self._rung.identity(plan))
        session = Session(self._run_directory, workspace, plan)
        try:
            await finish(session.start(self._rung.session(plan, workspace)))
            self._counts["sessions"] += 1
        except BaseException as error:
            # Also when cancelled: the started processes must have ended before the cancellation continues.
            await finish(session.close())
            if f"e {errno.ESTALE}\n".encode() in session.reports:
                raise make_stale_workspace_error() from error
            if isinstance(error, OSError | TimeoutError):
                raise ExecutorError("The interpreter did not start.", hint="Run `bough doctor`.") from error
            raise
        return session

    async def _run_in_session(self, plan: Plan, session: Session, workspace: Workspace) -> CodeExecutionResult:
        """Run `plan` in a session and return its result.

        Raises:
            _InterpreterExitedError: The interpreter exited before it started this run.
        """
        earlier_kills = session.group.memory_kills
        conf = configuration(plan, workspace.identity)
        conf["in_session"] = plan.python is not None and plan.request.code is not None
        if plan.python is not None and not conf["in_session"]:
            conf["argv"] = self._rung.python_command(plan)
        launch = Launch(argv=(), configuration=conf, stdin=plan.stdin, limits=plan.request.limits, env={})
        call = SessionCall(launch, session)
        process_end, collected = await call.run(
            timeout_seconds=plan.timeout_seconds,
            watch=lambda child: watch(child, plan, workspace, group=session.group),
            collect_output=lambda: finish(asyncio.to_thread(workspace.collect, plan)),
        )
        # A new interpreter that exits before its first run is an error, which `build_result` raises.
        if not call.is_ready and call.killed_by is None and not session.alive and session.has_run:
            raise _InterpreterExitedError
        session.has_run = True
        memory_ran_out = session.group.memory_kills > earlier_kills
        return build_result(plan, process_end, collected, isolation=self._isolation, memory_ran_out=memory_ran_out)

    def _mark_used(self, key: Key) -> None:
        """Record a use of a session: it becomes the last one to be evicted, and its idle time starts again."""
        self._sessions.move_to_end(key)
        if key in self._timers:
            self._timers.pop(key).cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_idle, key)

    def _end_idle(self, key: Key) -> None:
        """Close an idle session; if it is busy, its idle time starts again."""
        if self._locks[key].locked():
            self._mark_used(key)
        else:
            self._note_lost(key, f"idle {self._idle_seconds:g} s")
            self._close_in_background(key)

    def _note_lost(self, key: Key, reason: str) -> None:
        """Store why the state of a key was lost, for the result of its next run."""
        self._lost_reasons[key] = reason
        if len(self._lost_reasons) > _MAX_REMEMBERED_KEYS:
            self._lost_reasons.popitem(last=False)

    async def _end_session(self, key: Key, reason: str) -> None:
        """Note that the state of a key is lost, and close its session if there is one."""
        self._note_lost(key, reason)
        session = self._sessions.pop(key, None)
        if session is not None:
            await session.close()

    def _close_in_background(self, key: Key) -> None:
        """Remove the session of a key and close it in a background task."""
        session = self._sessions.pop(key, None)
        if key in self._timers:
            self._timers.pop(key).cancel()
        if session is not None:
            task = asyncio.get_running_loop().create_task(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _marshal_configuration(launch: Launch) -> bytes:
    import marshal

    return marshal.dumps(dict(launch.configuration), 4)
