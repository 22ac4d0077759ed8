"""Run one command in a kept container through the engine's `exec`, which needs no program of bough inside.

Source: ADK (every exec of a task has a timeout; one without hung a whole evaluation).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bough.execution.process.capture import HeadTail

POLL_SECONDS: Final = 0.1
"""How often to check whether a command that writes nothing has ended."""

_HEADER_BYTES: Final = 8
_CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ContainerCommand:
    """A command to run in a container.

    Attributes:
        user: None for the container's user.
        cwd: None for the container's working folder.
    """

    argv: Sequence[str]
    user: str | None = None
    cwd: str | None = None
    env: Mapping[str, str]
    timeout_seconds: float
    stdout_bytes: int = 64 << 10
    stderr_bytes: int = 64 << 10


@dataclass(frozen=True, kw_only=True)
class CommandOutcome:
    """The result of a command in a container.

    Attributes:
        exit_code: None if the command exceeded a limit, or the container stopped.
        timed_out: Whether the timeout ended the command, by the host's clock; never inferred from an exit code.
        is_full: Whether the command was ended because the container's files exceeded their limit.
        truncated: Whether the middle of stdout or stderr was dropped.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    is_full: bool = False
    truncated: bool = False


class FrameReader:
    """Splits the engine's multiplexed stream into stdout and stderr.

    Each frame is a header of eight bytes (stream number, length), followed by bytes of that stream.
    """

    def __init__(self, stdout: HeadTail, stderr: HeadTail) -> None:
        self._streams = {1: stdout, 2: stderr}
        self._header = bytearray()
        self._remaining_bytes = 0
        self._stream_number = 1

    def feed(self, data: bytes) -> None:
        """Process the next bytes of the stream."""
        view = memoryview(data)
        while view:
            if self._remaining_bytes:
                part, view = view[: self._remaining_bytes], view[self._remaining_bytes :]
                self._remaining_bytes -= len(part)
                stream = self._streams.get(self._stream_number)
                if stream is not None:
                    stream.add(bytes(part))
                continue
            missing_bytes = _HEADER_BYTES - len(self._header)
            self._header += view[:missing_bytes]
            view = view[missing_bytes:]
            if len(self._header) == _HEADER_BYTES:
                self._stream_number = self._header[0]
                self._remaining_bytes = int.from_bytes(self._header[4:], "big")
                self._header.clear()


def run_in_container(
    engine: Any,
    container: str,
    command: ContainerCommand,
    *,
    stop: threading.Event,
    end_processes: Callable[[], None],
    is_full: Callable[[], bool] = lambda: False,
) -> CommandOutcome:
    """Run a command until it ends or exceeds a limit. Blocks.

    It ends when its first process exits, even if a background process still has the streams open.

    Args:
        stop: An event that another thread sets to end the command early.
        end_processes: Ends every process of the container; called when a limit is exceeded or `stop` is set.
        is_full: Returns whether the container's files exceed their limit; called repeatedly.
    """
    stdout, stderr = HeadTail(command.stdout_bytes), HeadTail(command.stderr_bytes)
    exec_instance = engine.api.exec_create(
        container,
        list(command.argv),
        user=command.user or "",
        workdir=command.cwd,
        environment=dict(command.env),
    )
    deadline = time.monotonic() + command.timeout_seconds
    with engine.api.exec_start(exec_instance["Id"], socket=True) as stream:
        try:
            reader = FrameReader(stdout, stderr)
            exceeded_limit = _read_output(
                engine, exec_instance["Id"], stream, reader, deadline, stop=stop, is_full=is_full
            )
            if exceeded_limit is not None or stop.is_set():
                end_processes()
        finally:
            stream._response.close()
    inspected_code = engine.api.exec_inspect(exec_instance["Id"])["ExitCode"]
    return CommandOutcome(
        exit_code=inspected_code if exceeded_limit is None and not stop.is_set() else None,
        stdout=stdout.value(),
        stderr=stderr.value(),
        timed_out=exceeded_limit == "time",
        is_full=exceeded_limit == "disk",
        truncated=stdout.truncated or stderr.truncated,
    )


def _read_output(
    engine: Any,
    id: str,
    stream: Any,
    reader: FrameReader,
    deadline: float,
    *,
    stop: threading.Event,
    is_full: Callable[[], bool],
) -> Literal["time", "disk"] | None:
    """Read output until the command ends, exceeds a limit, or `stop` is set; return the exceeded limit, if any."""
    connection = stream._sock
    connection.settimeout(POLL_SECONDS)
    while not stop.is_set():
        if time.monotonic() > deadline:
            return "time"
        if is_full():
            return "disk"
        try:
            data = connection.recv(_CHUNK_BYTES)
        except TimeoutError:
            if not engine.api.exec_inspect(id)["Running"]:
                return None
            continue
        if not data:
            return None
        reader.feed(data)
    return None
