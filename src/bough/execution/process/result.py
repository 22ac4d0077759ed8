"""Convert the end of a process tree to the result of a run, for all executors on this machine."""

from __future__ import annotations

import errno
import os
from typing import Final

from bough.errors import ExecutorError
from bough.execution.base import CodeExecutionResult, Isolation
from bough.execution.process.child import ProcessEnd
from bough.execution.process.files import Collected
from bough.execution.process.workspace import stale_workspace_error
from bough.execution.request import Plan

_SIGKILL: Final = 9


def build_result(
    plan: Plan, ended: ProcessEnd, collected: Collected, *, isolation: Isolation, memory_ran_out: bool = False
) -> CodeExecutionResult:
    """Return the result of a run.

    Its status is derived from the host's actions and the kernel's reports, never from the program's output.

    Args:
        memory_ran_out: Whether the kernel killed a process of the run for lack of memory.

    Raises:
        ExecutorError: The program could not be started.
        Conflict: The workspace changed while it was mounted; nothing was run.
    """
    if ended.killed_by is None:
        _check_started(plan, ended)
    exit_code, signal = _parse_status(ended)
    return CodeExecutionResult(
        stdout=ended.stdout.captured.value(),
        stderr=ended.stderr.captured.value(),
        exit_code=exit_code,
        signal=signal,
        timed_out=ended.killed_by == "timeout",
        killed_by=ended.killed_by or ("memory" if memory_ran_out and signal == _SIGKILL else None),
        stdout_truncated=ended.stdout.captured.truncated,
        stderr_truncated=ended.stderr.captured.truncated,
        stdout_bytes=ended.stdout.captured.total_bytes,
        stderr_bytes=ended.stderr.captured.total_bytes,
        output_files=collected.files,
        output_skipped=collected.skipped,
        wall_seconds=ended.wall_seconds,
        cpu_seconds=ended.cpu_seconds,
        max_rss_bytes=ended.max_rss_bytes,
        execution_id=plan.request.execution_id,
        changed=_read_changed(plan, collected, isolation),
        isolation=isolation,
    )


def _read_changed(plan: Plan, collected: Collected, isolation: Isolation) -> bool | None:
    """Return whether the run changed its workspace; None if the walk after it could not see every change."""
    if any(mount.writable for mount in plan.mounts):
        return True if plan.workspace is not None and collected.changed else None
    # Its own new folder was removed after the run.
    if plan.workspace is None:
        return False
    # Without a sandbox, guarded files, which the walk omits, may have changed.
    return None if isolation is Isolation.NONE and not collected.changed else collected.changed


def make_timed_out(plan: Plan, *, isolation: Isolation) -> CodeExecutionResult:
    """Return the result for a timeout of 0: nothing was started."""
    return CodeExecutionResult(
        timed_out=True,
        killed_by="timeout",
        execution_id=plan.request.execution_id,
        changed=False,
        isolation=isolation,
    )


def _parse_status(ended: ProcessEnd) -> tuple[int | None, int | None]:
    """Return (exit code, signal), of which exactly one is set."""
    if ended.killed_by is not None or ended.wait_status is None:
        return None, _SIGKILL
    code = os.waitstatus_to_exitcode(ended.wait_status)
    return (code, None) if code >= 0 else (None, -code)


def _check_started(plan: Plan, ended: ProcessEnd) -> None:
    """Raise if the program was never started, because the exit code alone cannot tell this from the program's own.

    Raises:
        Conflict: A mounted file was replaced before the start.
        ExecutorError: The program could not be started, or its sandbox could not be created.
    """
    if ended.start_errno == errno.ESTALE:
        raise stale_workspace_error()
    if ended.start_errno is not None:
        # For a Python file the interpreter runs already, so only entering the working folder can fail.
        subject = plan.argv[0] if plan.python is None else plan.cwd
        raise ExecutorError(
            f"{subject} could not be started: {os.strerror(ended.start_errno).lower()}.",
            hint="Check that the interpreter or script exists and is executable, and that the working folder exists.",
            details={"errno": ended.start_errno, "argv": list(plan.argv)},
        )
    if not ended.was_ready:
        message = ended.stderr.captured.value().decode(errors="replace").strip()[-500:]
        raise ExecutorError(
            f"The sandbox could not be created: {message or 'it exited without an error message'}.",
            hint="Run `bough doctor`.",
        )
