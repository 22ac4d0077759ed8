"""One command in a container that stays, by the engine's own means: no program of bough's is needed inside.

Source: ADK (every exec of a task is bounded; one that runs for ever once hung a whole evaluation).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bough.execution.process.capture import HeadTail

LOOK_SECONDS: Final = 0.1
"""How often a command is looked after that writes nothing."""

_HEADER_BYTES: Final = 8
_CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ContainerCommand:
    """A command to run in a container.

    Attributes:
        user: None: the container's.
        cwd: None: the container's.
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
    """What a command in a container did.

    Attributes:
        exit_code: None where a bound ended it, or the container ended below it.
        timed_out: By the host's clock, never guessed from an exit code.
        is_full: Whether it was ended because the container's files took more than their bound.
        truncated: Whether the middle of a stream was left out.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    is_full: bool = False
    truncated: bool = False


class FrameReader:
    """Takes the engine's multiplexed stream apart: eight bytes of header, then that many bytes of one stream."""

    def __init__(self, stdout: HeadTail, stderr: HeadTail) -> None:
        self._streams = {1: stdout, 2: stderr}
        self._header = bytearray()
        self._left = 0
        self._kind = 1

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of the stream."""
        view = memoryview(data)
        while view:
            if self._left:
                part, view = view[: self._left], view[self._left :]
                self._left -= len(part)
                if stream := self._streams.get(self._kind):
                    stream.add(bytes(part))
                continue
            missing_bytes = _HEADER_BYTES - len(self._header)
            self._header += view[:missing_bytes]
            view = view[missing_bytes:]
            if len(self._header) == _HEADER_BYTES:
                self._kind = self._header[0]
                self._left = int.from_bytes(self._header[4:], "big")
                self._header.clear()


def run_in_container(
    engine: Any,
    container: str,
    command: ContainerCommand,
    *,
    stop: threading.Event,
    end: Callable[[], None],
    is_full: Callable[[], bool] = lambda: False,
) -> CommandOutcome:
    """Run a command to its end or to a bound. Blocks.

    It is over when its first process is, though something that it left behind still holds the streams.

    Args:
        stop: Set to end it before its time.
        end: Called at a bound: ends every process of the container.
        is_full: Asked again and again whether the container's files take too much.
    """
    stdout, stderr = HeadTail(command.stdout_bytes), HeadTail(command.stderr_bytes)
    created = engine.api.exec_create(
        container,
        list(command.argv),
        user=command.user or "",
        workdir=command.cwd,
        environment=dict(command.env),
    )
    deadline = time.monotonic() + command.timeout_seconds
    with engine.api.exec_start(created["Id"], socket=True) as stream:
        try:
            reader = FrameReader(stdout, stderr)
            bound = _read(engine, created["Id"], stream, reader, deadline, stop=stop, is_full=is_full)
            if bound is not None or stop.is_set():
                end()
        finally:
            stream._response.close()
    exit_code = engine.api.exec_inspect(created["Id"])["ExitCode"]
    return CommandOutcome(
        exit_code=exit_code if bound is None and not stop.is_set() else None,
        stdout=stdout.value(),
        stderr=stderr.value(),
        timed_out=bound == "time",
        is_full=bound == "disk",
        truncated=stdout.truncated or stderr.truncated,
    )


def _read(
    engine: Any,
    id: str,
    stream: Any,
    reader: FrameReader,
    deadline: float,
    *,
    stop: threading.Event,
    is_full: Callable[[], bool],
) -> Literal["time", "disk"] | None:
    """Read until the command is over or must be ended; return the bound that it met, if it met one."""
    connection = stream._sock
    connection.settimeout(LOOK_SECONDS)
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
