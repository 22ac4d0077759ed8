"""Convert the end of a process tree to the result of a run, for all executors on this machine."""

from __future__ import annotations

import errno
import os
from typing import Final

from bough.errors import ExecutorError
from bough.execution.base import CodeExecutionResult, Isolation
from bough.execution.process.child import ProcessEnd
from bough.execution.process.files import Collected
from bough.execution.process.workspace import make_stale_workspace_error
from bough.execution.request import Plan

_SIGKILL: Final = 9


def build_result(
    plan: Plan, process_end: ProcessEnd, collected: Collected, *, isolation: Isolation, memory_ran_out: bool = False
) -> CodeExecutionResult:
    """Return the result of a run.

    Its status is derived from the host's actions and the kernel's reports, never from the program's output.

    Args:
        memory_ran_out: Whether the kernel killed a process of the run for lack of memory.

    Raises:
        ExecutorError: The program could not be started.
        Conflict: The workspace changed while it was mounted; nothing was run.
    """
    if process_end.killed_by is None:
        _check_started(plan, process_end)
    exit_code, signal = _parse_status(process_end)
    return CodeExecutionResult(
        stdout=process_end.stdout.captured.value(),
        stderr=process_end.stderr.captured.value(),
        exit_code=exit_code,
        signal=signal,
        timed_out=process_end.killed_by == "timeout",
        killed_by=process_end.killed_by or ("memory" if memory_ran_out and signal == _SIGKILL else None),
        stdout_truncated=process_end.stdout.captured.truncated,
        stderr_truncated=process_end.stderr.captured.truncated,
        stdout_bytes=process_end.stdout.captured.total_bytes,
        stderr_bytes=process_end.stderr.captured.total_bytes,
        output_files=collected.files,
        output_skipped=collected.skipped,
        wall_seconds=process_end.wall_seconds,
        cpu_seconds=process_end.cpu_seconds,
        max_rss_bytes=process_end.max_rss_bytes,
        execution_id=plan.request.execution_id,
        changed=_find_changed(plan, collected, isolation),
        isolation=isolation,
    )


def _find_changed(plan: Plan, collected: Collected, isolation: Isolation) -> bool | None:
    """Return whether the run changed its workspace; None if the walk after it could not see every change."""
    if any(mount.writable for mount in plan.mounts):
        return True if plan.workspace is not None and collected.changed else None
    # The run had a new folder, which was removed: it changed no workspace of a person.
    if plan.workspace is None:
        return False
    # Without a sandbox, guarded files, which the walk omits, may have changed.
    return None if isolation is Isolation.NONE and not collected.changed else collected.changed


def make_timeout_result(plan: Plan, *, isolation: Isolation) -> CodeExecutionResult:
    """Return the result for a timeout of 0: nothing was started."""
    return CodeExecutionResult(
        timed_out=True,
        killed_by="timeout",
        execution_id=plan.request.execution_id,
        changed=False,
        isolation=isolation,
    )


def _parse_status(process_end: ProcessEnd) -> tuple[int | None, int | None]:
    """Return (exit code, signal), of which exactly one is set."""
    if process_end.killed_by is not None or process_end.wait_status is None:
        return None, _SIGKILL
    code = os.waitstatus_to_exitcode(process_end.wait_status)
    return (code, None) if code >= 0 else (None, -code)


def _check_started(plan: Plan, process_end: ProcessEnd) -> None:
    """Raise if the program was never started, because the exit code alone cannot tell this from the program's own.

    Raises:
        Conflict: A mounted file was replaced before the start.
        ExecutorError: The program could not be started, or its sandbox could not be created.
    """
    if process_end.start_errno == errno.ESTALE:
        raise make_stale_workspace_error()
    if process_end.start_errno is not None:
        # For a Python file the interpreter runs already, so only entering the working folder can fail.
        subject = plan.argv[0] if plan.python is None else plan.cwd
        raise ExecutorError(
            f"{subject} could not be started: {os.strerror(process_end.start_errno).lower()}.",
            hint="Check that the interpreter or script exists and is executable, and that the working folder exists.",
            details={"errno": process_end.start_errno, "argv": list(plan.argv)},
        )
    if not process_end.was_ready:
        message = process_end.stderr.captured.value().decode(errors="replace").strip()[-500:]
        raise ExecutorError(
            f"The sandbox could not be created: {message or 'it exited without an error message'}.",
            hint="Run `bough doctor`.",
        )
