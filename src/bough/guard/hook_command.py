"""Runs a hook's command: input as JSON, a small environment, bounded output, and nothing left when it is over.

These are the user's own hooks, and hooks of a project that a person let run on this machine: they run with the user's
rights, outside any sandbox. Other hooks of projects run in the sandbox (`hook_programs.py`).
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
"""How much of each stream is kept; a hook may write more, and is not held up by it."""

_DRAIN_SECONDS = 1.0
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "TERM")


@dataclass(frozen=True)
class Ran:
    """How a command ended: its exit code (negative: the signal), or that it never started or was killed."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    trouble: str = ""


async def run_command(
    command: str,
    payload: JsonObject,
    *,
    workspace: Path,
    timeout_seconds: float,
    extra_env: Mapping[str, str] | None = None,
) -> Ran:
    """Run a command line in `workspace` and return how it ended. Cancelling kills it and all it started.

    Args:
        payload: Written to its standard input as one line of JSON.
        extra_env: Variables besides those of every hook.
    """
    stdout, stderr = Pipe(OUTPUT_BYTES), Pipe(OUTPUT_BYTES)
    try:
        process = await _start(command, payload, workspace, (stdout, stderr), extra_env or {})
    except (OSError, ValueError) as error:
        return Ran(None, trouble=f"it could not be started: {error}")
    else:
        on_time = await _until_ended(process, timeout_seconds)
        await asyncio.wait([stdout.ended, stderr.ended], timeout=_DRAIN_SECONDS)
        return Ran(
            process.returncode if on_time else None,
            _text(stdout),
            _text(stderr),
            "" if on_time else f"it timed out after {timeout_seconds:g} s and was killed",
        )
    finally:
        stdout.close()
        stderr.close()


async def _start(
    command: str, payload: JsonObject, workspace: Path, pipes: tuple[Pipe, Pipe], extra_env: Mapping[str, str]
) -> Process:
    line = json.dumps(payload, ensure_ascii=True).encode() + b"\n"
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
                env=environment(payload, workspace, os.environ) | dict(extra_env),
                start_new_session=True,
            )
        finally:
            pipes[0].close_writing_end()
            pipes[1].close_writing_end()


def environment(payload: JsonObject, workspace: Path, outer: Mapping[str, str]) -> dict[str, str]:
    """Return what a hook sees of the environment: no keys, no secrets, only where it is and what it is asked."""
    return {name: outer[name] for name in _KEPT if name in outer} | describe_event(payload, str(workspace))


def describe_event(payload: JsonObject, project: str) -> dict[str, str]:
    """Return the variables that tell a hook what it is asked about, and where the project is."""
    return {
        "BOUGH_PROJECT_DIR": project,
        "CLAUDE_PROJECT_DIR": project,
        "OPENHANDS_PROJECT_DIR": project,
        "OPENHANDS_EVENT_TYPE": str(payload["hook_event_name"]),
        "OPENHANDS_SESSION_ID": str(payload["session_id"]),
        "OPENHANDS_TOOL_NAME": str(payload.get("tool_name", "")),
    }


async def _until_ended(process: Process, timeout_seconds: float) -> bool:
    """Wait for the command; whether it ended in time. Its whole process group is gone afterwards."""
    ended = asyncio.ensure_future(process.wait())
    try:
        done, _ = await asyncio.wait([ended], timeout=timeout_seconds)
        return bool(done)
    finally:
        _kill_group(process.pid)
        await finish(ended)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # nobody is left in it; macOS says the second
        return


def _text(pipe: Pipe) -> str:
    return pipe.kept.value().decode("utf-8", "replace")


_NOT_STARTED = (126, 127)
"""What a shell answers when the program is not there, or cannot be executed."""


def command_answer(ran: Ran, *, plain_is_context: bool) -> HookAnswer:
    """Return what a command's end means: 0 is its output, 2 is no, another an error that decides nothing."""
    output = (ran.stdout + ran.stderr).strip()
    if ran.trouble:
        return HookAnswer(failed=True, reason=ran.trouble, output=output)
    if ran.exit_code == 0:
        return replace(read_answer(ran.stdout, plain_is_context=plain_is_context), output=output)
    if ran.exit_code == 2:
        reason = ran.stderr.strip() or read_answer(ran.stdout, plain_is_context=False).reason or ran.stdout.strip()
        return HookAnswer(decision="deny", reason=reason[:MAX_TEXT] or "a hook said no", output=output)
    if ran.exit_code is None or ran.exit_code < 0 or ran.exit_code in _NOT_STARTED:
        return HookAnswer(failed=True, reason=f"it could not run (exit code {ran.exit_code})", output=output)
    return HookAnswer(error=True, reason=f"it failed with exit code {ran.exit_code}", output=output)
