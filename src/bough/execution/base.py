"""The contract of executors, which run code: requests, results, and what an executor promises.

Source: ADK (`CodeExecutionInput`, `CodeExecutionResult`, per-call timeouts, `healthy`, `reinitialize`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import PurePath
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from bough.errors import InvalidInput


class Isolation(IntEnum):
    """How strongly code is isolated from the machine; a higher value is stronger."""

    NONE = 0
    """A child process with the caller's rights."""
    LANDLOCK = 1
    """Landlock and seccomp: files, network and system calls are confined; processes of the user are visible."""
    NAMESPACES = 2
    """Own user, process, network, mount and IPC namespaces, plus seccomp."""
    CONTAINER = 3
    """A container of an engine, without network and capabilities."""


def _set(instance: object, /, **values: object) -> None:
    """Set the fields of a frozen object in its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def _path_text(value: Any) -> Any:
    """Return a path as text; other values are unchanged, and refused when the request is checked."""
    return os.fspath(value) if isinstance(value, PurePath) else value


def _as_bytes(value: Any) -> Any:
    """Return text in UTF-8; other values are unchanged, and refused when the request is checked.

    Raises:
        InvalidInput: The text has half a surrogate pair.
    """
    try:
        return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise InvalidInput("A text has half a surrogate pair.", hint="Send valid Unicode, or bytes.") from error


@dataclass(frozen=True, kw_only=True, init=False)
class File:
    """An input or output file.

    Attributes:
        path: Relative, forward slashes; never absolute, never with `..`.
        content: A text is encoded as UTF-8.
        mode: Permission bits.
    """

    path: str
    content: bytes
    mode: int

    def __init__(self, *, path: str | os.PathLike[str], content: bytes | str, mode: int = 0o644) -> None:
        _set(self, path=_path_text(path), content=_as_bytes(content), mode=mode)


@dataclass(frozen=True, kw_only=True, init=False)
class Mount:
    """A host folder that is mounted at `target`, read-only by default."""

    source: str
    target: str
    writable: bool

    def __init__(self, *, source: str | os.PathLike[str], target: str, writable: bool = False) -> None:
        _set(self, source=_path_text(source), target=target, writable=writable)


@dataclass(frozen=True, kw_only=True)
class ExecutionLimits:
    """Bounds of one run, in bytes, seconds and counts."""

    memory_bytes: int = 512 << 20
    processes: int = 64
    open_files: int = 256
    file_size_bytes: int = 64 << 20
    work_bytes: int = 128 << 20
    tmp_bytes: int = 64 << 20
    stdout_bytes: int = 256 << 10
    stderr_bytes: int = 256 << 10
    output_files: int = 256
    output_bytes: int = 32 << 20
    output_depth: int = 16


@dataclass(frozen=True, kw_only=True)
class Network:
    """The network access of a run: none, or the listed domains through a proxy on the host."""

    domains: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Guards:
    """The names that no run may change or create in a person's workspace, because they decide about later runs.

    Names ignore case, as some file systems and git do. In a new workspace nothing is guarded;
    such files are only not returned.

    Attributes:
        names: Guarded in every folder.
        top: Guarded in the workspace itself.
        paths: Guarded files and folders further down, relative to the workspace; folders of skills, for example.
    """

    names: frozenset[str] = frozenset({".git"})
    top: frozenset[str] = frozenset(
        {".bough", ".agents", ".claude", ".openhands", ".gitattributes", "bough.yaml", "config.yaml", ".mcp.json"}
    )
    paths: tuple[str, ...] = ()

    def extend(self, workspace: str | os.PathLike[str], folders: Iterable[str | os.PathLike[str]]) -> Guards:
        """Return these guards with those of the folders that lie below `workspace`; runs cannot write to others."""
        top = os.path.realpath(workspace)
        below = [os.path.relpath(os.path.realpath(folder), top) for folder in folders]
        inside = [path for path in below if path != os.curdir and path.split(os.sep)[0] != os.pardir]
        return replace(self, paths=tuple(dict.fromkeys((*self.paths, *inside))))

    def is_root(self, parts: Sequence[str]) -> bool:
        """Whether `parts` is the path of a guarded file or folder."""
        folded = [part.casefold() for part in parts]
        if folded[-1] in self.names or (len(parts) == 1 and folded[0] in self.top):
            return True
        return any(path.casefold().split("/") == folded for path in self.paths)

    def covers(self, parts: Sequence[str]) -> bool:
        """Whether `parts` is the path of a guarded file or folder, or leads into one."""
        return any(self.is_root(parts[: end + 1]) for end in range(len(parts)))


USUAL_GUARDS = Guards()
NO_GUARDS = Guards(names=frozenset(), top=frozenset())


@dataclass(frozen=True, kw_only=True)
class CodeExecutionInput:
    """A request to run code or a script.

    Exactly one of `code` (source text in `language`) and `script` (a path, relative to `/work` or absolute inside the
    sandbox, for example `/skill/scripts/count.py`) is set. `argv` are the arguments, passed
    verbatim and never through a shell.

    Attributes:
        script: A text or a path object, as for `workspace` and the sources of mounts.
        stdin: A text is encoded as UTF-8.
        command: The interpreter that runs `script`, for example `("python3",)`; None chooses it by `language`.
        mounts: Host folders to mount; a skill's folder is mounted read-only at `/skill`.
        workspace: A host folder to use as `/work`; None for a new one, removed afterwards.
        working_dir: Relative to `/work`.
        timeout_seconds: None for the executor's default; 0 is legal and ends the run at once.
        output_globs: Patterns, relative to `/work`, of the new and changed files to return; None for all.
        execution_id: Runs with the same id may share a warm sandbox.
        stateful: Whether Python `code` runs in the interpreter that is kept for `execution_id`; its result reports if
            earlier variables are lost. An executor without such interpreters raises `NotSupported` before anything
            runs. None for the executor's default.
        guards: The names in `workspace` that must not change; an executor without isolation ignores them.
    """

    code: str | None = None
    script: str | os.PathLike[str] | None = None
    argv: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None
    language: Literal["python", "bash", "sh", "node"] = "python"
    input_files: tuple[File, ...] = ()
    mounts: tuple[Mount, ...] = ()
    workspace: str | os.PathLike[str] | None = None
    working_dir: str = "."
    timeout_seconds: float | None = None
    env: dict[str, str] = field(default_factory=dict[str, str])
    stdin: bytes | str = b""
    execution_id: str | None = None
    output_globs: tuple[str, ...] | None = None
    limits: ExecutionLimits = ExecutionLimits()
    network: Network = Network()
    stateful: bool | None = None
    guards: Guards = USUAL_GUARDS

    def __post_init__(self) -> None:
        """Convert text to bytes, and path objects to text."""
        _set(
            self,
            script=_path_text(self.script),
            workspace=_path_text(self.workspace),
            stdin=_as_bytes(self.stdin),
        )


@dataclass(frozen=True, kw_only=True)
class CodeExecutionResult:
    """The result of a run. `exit_code` is None exactly if a signal or a bound ended the run.

    Attributes:
        stdout: Head and tail if it exceeded the bound; `stdout_bytes` counts all of it.
        signal: The signal that ended it, or None.
        timed_out: Whether the timeout ended it; a script's own exit code 124 is not a timeout.
        killed_by: `timeout`, `cancelled`, `memory`, `work_bytes`, … if bough ended it.
        output_skipped: (path, reason) of files that are not returned, and of guarded names that were set aside.
        state_lost: Whether earlier variables of a stateful run are lost.
        state_lost_reason: The reason in a few words; None if nothing was lost.
        isolation: The isolation of this run.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    killed_by: str | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    output_files: tuple[File, ...] = ()
    output_skipped: tuple[tuple[str, str], ...] = ()
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0
    execution_id: str | None = None
    state_lost: bool = False
    state_lost_reason: str | None = None
    isolation: Isolation = Isolation.NONE

    @property
    def text(self) -> str:
        """`stdout` decoded as UTF-8, with replacement characters for invalid bytes."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """`stderr`, decoded as `text`."""
        return self.stderr.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether it ended with exit code 0 and was not killed."""
        return self.exit_code == 0

    def _repr_markdown_(self) -> str:
        from bough.markdown import fence, join, table

        return join(
            fence(self.text) if self.stdout else "",
            fence(self.error_text) if self.stderr else "",
            table(
                [
                    ("exit code", "" if self.exit_code is None else str(self.exit_code)),
                    ("killed by", self.killed_by or ("" if self.signal is None else f"signal {self.signal}")),
                    ("seconds", f"{self.wall_seconds:.2f}"),
                    ("isolation", self.isolation.name.lower()),
                    ("files", ", ".join(f"{file.path} ({len(file.content)} bytes)" for file in self.output_files)),
                    ("not returned", ", ".join(f"{path}: {reason}" for path, reason in self.output_skipped)),
                    ("variables", f"lost: {self.state_lost_reason}" if self.state_lost else ""),
                ]
            ),
        )


class CodeExecutor(Protocol):
    """Runs code. Safe for concurrent use. Cancelling `execute` kills the whole process tree."""

    @property
    def name(self) -> str:
        """The kind of executor, for people and logs."""
        ...

    @property
    def default_timeout_seconds(self) -> float:
        """The timeout of requests without one."""
        ...

    @property
    def stateful(self) -> bool:
        """Whether variables persist between runs of one `execution_id`."""
        ...

    @property
    def isolation(self) -> Isolation:
        """Its isolation; the required minimum until a run has found out the actual one."""
        ...

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` and return the result; a failing script is a result, not an error.

        Raises:
            InvalidInput: A path, name or number in the request is invalid; nothing was run.
            SandboxUnavailable: The required isolation does not work here; nothing was run.
            ExecutorError: It could not be started.
        """
        ...

    async def healthy(self) -> bool:
        """Whether the next `execute` is expected to work."""
        ...

    async def reinitialize(self) -> None:
        """Discard interpreters and containers, and start anew."""
        ...

    async def aclose(self) -> None:
        """End interpreters and containers. Idempotent."""
        ...

    async def __aenter__(self) -> Self:
        """Return the executor itself; the end of the block closes it."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        ...

    def execute_sync(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Call `execute` and wait for it, in code without an event loop. Raises the same errors."""
        ...


class CodeExecutorMixin:
    """Gives an executor `async with`, and `execute_sync` on the library's own event loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self: CodeExecutor, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def execute_sync(self: CodeExecutor, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` and wait for the result. Blocks. Sandboxes that are kept warm stay on one event loop.

        An executor that is still open at the end of the program is closed then. Ctrl-C, and an interrupt of the tool
        call that waits here, kill the program and all of its processes.

        Raises:
            asyncio.CancelledError: The tool call that waits here was interrupted.
            BoughError: `execute` raised it, or this is the library's own event loop, which cannot wait for itself.
        """
        from bough.portal import portal  # not at the top: data of a request need no event loop

        loop = portal()
        loop.hold_weakly(self)
        return loop.call(self.execute, request)
