"""Runs the command of a hook outside the sandbox: JSON input, few variables, limited output, no remaining processes.

Only the user's own hooks run like this, and hooks of a project for which a person allowed it. They have the user's
rights. Other hooks of projects run in the sandbox (see `hook_programs.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from asyncio.subprocess import Process
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bough.cancellation import finish
from bough.execution.process.capture import Pipe
from bough.guard.hook_verdict import MAX_TEXT, HookAnswer, read_answer
from bough.types import JsonObject

OUTPUT_BYTES = 64 << 10
"""Maximum size of the captured output of each stream. Further output is discarded and does not block the hook."""

_DRAIN_SECONDS = 1.0
_PASSED_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TERM")


@dataclass(frozen=True)
class HookExit:
    """How a hook's command ended.

    Attributes:
        exit_code: Negative for a signal; None if the command did not run or was killed after its timeout.
        failure: Why there is no exit code; empty if there is one.
    """

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    failure: str = ""


async def run_command(
    command: str,
    payload: JsonObject,
    *,
    workspace: Path,
    timeout_seconds: float,
    extra_env: Mapping[str, str] | None = None,
) -> HookExit:
    """Run a command line in `workspace`, and return how it ended. Its process group is killed in any case.

    Args:
        payload: The standard input, which is one line of JSON.
        extra_env: Variables in addition to those that every hook gets.
    """
    stdout, stderr = Pipe(OUTPUT_BYTES), Pipe(OUTPUT_BYTES)
    try:
        process = await _start(command, payload, workspace, (stdout, stderr), extra_env or {})
    except (OSError, ValueError) as error:
        return HookExit(None, failure=f"it could not be started: {error}")
    else:
        ended_in_time = await _wait_and_kill_group(process, timeout_seconds)
        # With a timeout, because a process that left the group may keep the pipe open forever.
        await asyncio.wait([stdout.ended, stderr.ended], timeout=_DRAIN_SECONDS)
        return HookExit(
            process.returncode if ended_in_time else None,
            _decode(stdout),
            _decode(stderr),
            "" if ended_in_time else f"it timed out after {timeout_seconds:g} s and was killed",
        )
    finally:
        stdout.close()
        stderr.close()


async def _start(
    command: str, payload: JsonObject, workspace: Path, pipes: tuple[Pipe, Pipe], extra_env: Mapping[str, str]
) -> Process:
    """Start the command with its output connected to the pipes."""
    line = json.dumps(payload, ensure_ascii=True).encode() + b"\n"
    # A file, not a pipe, so that a hook that never reads its input cannot block this process.
    with tempfile.TemporaryFile() as stdin:
        stdin.write(line)
        stdin.seek(0)
        try:
            return await asyncio.create_subprocess_exec(
                "/bin/sh",
                "-c",
                command,
                stdin=stdin,
                stdout=pipes[0].write_fd,
                stderr=pipes[1].write_fd,
                cwd=workspace,
                env=make_environment(payload, workspace, os.environ) | dict(extra_env),
                start_new_session=True,  # makes the process group that `_kill_group` ends
            )
        finally:
            # A stream ends only when every process has closed the writing end, this process included.
            pipes[0].close_writing_end()
            pipes[1].close_writing_end()


def make_environment(payload: JsonObject, workspace: Path, outer_env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a hook. Only `_PASSED_VARIABLES` are passed, because others may contain API keys."""
    passed = {name: outer_env[name] for name in _PASSED_VARIABLES if name in outer_env}
    return passed | describe_event(payload, str(workspace))


def describe_event(payload: JsonObject, project: str) -> dict[str, str]:
    """Return the variables that describe the event and the project to a hook."""
    return {
        "BOUGH_PROJECT_DIR": project,
        "CLAUDE_PROJECT_DIR": project,
        "OPENHANDS_PROJECT_DIR": project,
        "OPENHANDS_EVENT_TYPE": str(payload["hook_event_name"]),
        "OPENHANDS_SESSION_ID": str(payload["session_id"]),
        "OPENHANDS_TOOL_NAME": str(payload.get("tool_name", "")),
    }


async def _wait_and_kill_group(process: Process, timeout_seconds: float) -> bool:
    """Wait for the command, then kill its process group. Returns whether it ended in time."""
    exit_future = asyncio.ensure_future(process.wait())
    try:
        finished, _ = await asyncio.wait([exit_future], timeout=timeout_seconds)
        return bool(finished)
    finally:
        # In every case, because the command may have left processes in the background.
        _kill_group(process.pid)
        await finish(exit_future)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # the group is empty; macOS raises `PermissionError` then
        return


def _decode(pipe: Pipe) -> str:
    return pipe.captured.value().decode("utf-8", "replace")


_NOT_STARTED = (126, 127)
"""Exit codes of a shell for a program that is missing or cannot be executed."""


def read_exit(hook_exit: HookExit, *, plain_is_context: bool) -> HookAnswer:
    """Return the answer of a command. Exit code 0: the answer is in the output. 2: a deny. Others: an error."""
    output = (hook_exit.stdout + hook_exit.stderr).strip()
    if hook_exit.failure:
        return HookAnswer(failed=True, reason=hook_exit.failure, output=output)
    if hook_exit.exit_code == 0:
        return replace(read_answer(hook_exit.stdout, plain_is_context=plain_is_context), output=output)
    if hook_exit.exit_code == 2:
        stdout = hook_exit.stdout.strip()
        reason = hook_exit.stderr.strip() or read_answer(stdout, plain_is_context=False).reason or stdout
        return HookAnswer(decision="deny", reason=reason[:MAX_TEXT] or "a hook denied it", output=output)
    if hook_exit.exit_code is None or hook_exit.exit_code < 0 or hook_exit.exit_code in _NOT_STARTED:
        return HookAnswer(failed=True, reason=f"it could not run (exit code {hook_exit.exit_code})", output=output)
    return HookAnswer(error=True, reason=f"it failed with exit code {hook_exit.exit_code}", output=output)
