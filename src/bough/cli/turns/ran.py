"""Show the result of code that a person ran: its output unchanged, its exit code, and the whole result as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from bough.cli.text import Line, harmless, line
from bough.errors import OUTCOMES
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.execution.base import CodeExecutionResult

KILLED = 137
"""The exit code after a limit has ended the code: 128 + SIGKILL, as shells report it."""


def choose_exit_code(ran: CodeExecutionResult) -> int:
    """Return the code's own exit code; 124 after a timeout, 128 plus the number after a signal."""
    if ran.timed_out:
        return OUTCOMES["timeout"].exit_code
    if ran.exit_code is not None:
        return ran.exit_code
    return 128 + ran.signal if ran.signal else KILLED


def write_streams(ran: CodeExecutionResult) -> None:
    """Copy the code's output to stdout and stderr, unchanged; on a terminal without control characters."""
    for stream, data in ((sys.stdout, ran.stdout), (sys.stderr, ran.stderr)):
        _write(stream, data)


def ran_notes(ran: CodeExecutionResult) -> Iterator[Line]:
    """Yield notes beside the output: why the code was ended, which streams are truncated, which files are discarded."""
    if ran.timed_out:
        yield line(("timed out", "bad"), f" after {ran.wall_seconds:.1f} s")
    elif ran.killed_by:
        yield line(("ended", "bad"), f" by the limit {ran.killed_by}")
    for name, is_truncated, size_bytes in (
        ("stdout", ran.stdout_truncated, ran.stdout_bytes),
        ("stderr", ran.stderr_truncated, ran.stderr_bytes),
    ):
        if is_truncated:
            yield line((f"{name} is truncated: it had {size_bytes} bytes", "warn"))
    if ran.output_files:
        names = ", ".join(file.path for file in ran.output_files[:5]) + (" …" if len(ran.output_files) > 5 else "")
        yield line((f"files that were not kept: {names}; -C DIR runs in a folder that is kept", "dim"), hang=2)


def ran_json(ran: CodeExecutionResult) -> JsonObject:
    """Return the whole result as JSON, with the path and size of each file instead of its content."""
    return {
        "stdout": ran.stdout.decode("utf-8", "replace"),
        "stderr": ran.stderr.decode("utf-8", "replace"),
        "exit_code": ran.exit_code,
        "signal": ran.signal,
        "timed_out": ran.timed_out,
        "killed_by": ran.killed_by,
        "stdout_truncated": ran.stdout_truncated,
        "stderr_truncated": ran.stderr_truncated,
        "stdout_bytes": ran.stdout_bytes,
        "stderr_bytes": ran.stderr_bytes,
        "output_files": [{"path": file.path, "size_bytes": len(file.content)} for file in ran.output_files],
        "output_skipped": [{"path": path, "reason": reason} for path, reason in ran.output_skipped],
        "wall_seconds": ran.wall_seconds,
        "cpu_seconds": ran.cpu_seconds,
        "max_rss_bytes": ran.max_rss_bytes,
        "isolation": ran.isolation.name.lower(),
    }


def _write(stream: TextIO, data: bytes) -> None:
    stream.flush()
    if stream.isatty():
        stream.write(harmless(data.decode("utf-8", "replace")))
    else:
        stream.buffer.write(data)
    stream.flush()
