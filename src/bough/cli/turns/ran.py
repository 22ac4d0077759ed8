"""What came of code that was run by hand: its output as it is, its exit code, and all of it for programs."""

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
"""The exit code of what a bound ended, as shells know it from SIGKILL."""


def choose_exit_code(ran: CodeExecutionResult) -> int:
    """Return the code's own exit code; 124 after a timeout, 128 and more after a signal."""
    if ran.timed_out:
        return OUTCOMES["timeout"].exit_code
    if ran.exit_code is not None:
        return ran.exit_code
    return 128 + ran.signal if ran.signal else KILLED


def write_streams(ran: CodeExecutionResult) -> None:
    """Write stdout and stderr where they belong, byte for byte; on a terminal without control characters."""
    for stream, data in ((sys.stdout, ran.stdout), (sys.stderr, ran.stderr)):
        _write(stream, data)


def ran_notes(ran: CodeExecutionResult) -> Iterator[Line]:
    """Yield what the streams do not say: how it was ended, what is cut, which files are not kept."""
    if ran.timed_out:
        yield line(("timed out", "bad"), f" after {ran.wall_seconds:.1f} s")
    elif ran.killed_by:
        yield line(("ended", "bad"), f" by the bound {ran.killed_by}")
    for name, cut, whole in (
        ("stdout", ran.stdout_truncated, ran.stdout_bytes),
        ("stderr", ran.stderr_truncated, ran.stderr_bytes),
    ):
        if cut:
            yield line((f"{name} is cut: it had {whole} bytes", "warn"))
    if ran.output_files:
        names = ", ".join(file.path for file in ran.output_files[:5]) + (" …" if len(ran.output_files) > 5 else "")
        yield line((f"files made and not kept: {names}; -C DIR works in a folder that stays", "dim"), hang=2)


def ran_json(ran: CodeExecutionResult) -> JsonObject:
    """Return the whole result; files by path and size."""
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
