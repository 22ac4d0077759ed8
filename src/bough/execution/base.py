"""The contract of everything that runs code: what goes in, what comes out, what is promised.

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
    """How well code is kept away from the machine; a higher one is stronger."""

    NONE = 0
    """A child process with the caller's rights."""
    LANDLOCK = 1
    """Landlock and seccomp: files, network and system calls are confined; processes of the user are visible."""
    NAMESPACES = 2
    """Own user, process, network, mount and IPC namespaces, plus seccomp."""
    CONTAINER = 3
    """A container of an engine, without network and capabilities."""


def _set(instance: object, /, **values: object) -> None:
    """Set the fields of a frozen object that is being made."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def _path_text(value: Any) -> Any:
    """Return a path as text; what is not a path stays, and is refused where the request is checked."""
    return os.fspath(value) if isinstance(value, PurePath) else value


def _as_bytes(value: Any) -> Any:
    """Return text in UTF-8; anything else stays, and is refused where the request is checked.

    Raises:
        InvalidInput: The text has half a surrogate pair.
    """
    try:
        return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise InvalidInput("A text has half a surrogate pair.", hint="Send valid Unicode, or bytes.") from error


@dataclass(frozen=True, kw_only=True, init=False)
class File:
    """A file that goes in or comes out.

    Attributes:
        path: Relative, forward slashes; never absolute, never with `..`.
        content: Text that is given is encoded as UTF-8.
        mode: Permission bits.
    """

    path: str
    content: bytes
    mode: int

    def __init__(self, *, path: str | os.PathLike[str], content: bytes | str, mode: int = 0o644) -> None:
        _set(self, path=_path_text(path), content=_as_bytes(content), mode=mode)


@dataclass(frozen=True, kw_only=True, init=False)
class Mount:
    """A host folder shown inside at `target`; read-only unless said otherwise."""

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
    """What may be reached: nothing, unless domains are named (through a proxy on the host)."""

    domains: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Guards:
    """What no run may change or make in a person's workspace, because it decides what happens later.

    Case is ignored in names, as some file systems and git itself ignore it. In a fresh workspace nothing is guarded;
    such files only do not come back.

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
        """Return these guards and the folders that lie below `workspace`; others need none, nobody can write there."""
        top = os.path.realpath(workspace)
        below = [os.path.relpath(os.path.realpath(folder), top) for folder in folders]
        inside = [path for path in below if path != os.curdir and path.split(os.sep)[0] != os.pardir]
        return replace(self, paths=tuple(dict.fromkeys((*self.paths, *inside))))

    def is_root(self, parts: Sequence[str]) -> bool:
        """Whether `parts` lead to a guarded file or folder itself."""
        folded = [part.casefold() for part in parts]
        if folded[-1] in self.names or (len(parts) == 1 and folded[0] in self.top):
            return True
        return any(path.casefold().split("/") == folded for path in self.paths)

    def covers(self, parts: Sequence[str]) -> bool:
        """Whether `parts` lead to something guarded, or into it."""
        return any(self.is_root(parts[: end + 1]) for end in range(len(parts)))


USUAL_GUARDS = Guards()
NO_GUARDS = Guards(names=frozenset(), top=frozenset())


@dataclass(frozen=True, kw_only=True)
class CodeExecutionInput:
    """One thing to run.

    Exactly one of `code` (source text in `language`) and `script` (a path, relative to `/work` or absolute inside the
    sandbox, for example `/skill/scripts/count.py`) is set. `script` runs by its own means: `argv` is what comes after
    it, verbatim and never through a shell.

    Attributes:
        script: Text, or a path object; so are `workspace` and the sources of mounts.
        stdin: Text that is given is encoded as UTF-8.
        command: The interpreter that runs `script`, for example `("python3",)`; None: by `language`, or itself.
        mounts: Host folders to show inside; a skill's folder goes read-only to `/skill`.
        workspace: A host folder to use as `/work` itself; None: a fresh one, removed afterwards.
        working_dir: Relative to `/work`.
        timeout_seconds: None means the executor's default; 0 is legal and means at once.
        output_globs: Which new or changed files come back (patterns relative to `/work`); None means all.
        execution_id: Whose run it is; the next one of the same may find a sandbox that is warm.
        stateful: Whether Python `code` runs in the interpreter that is kept for `execution_id`; its result says when
            earlier variables are gone. An executor that keeps none refuses True with `NotSupported`, before anything
            runs. None: as the executor does by itself.
        guards: What of `workspace` stays as it is; an executor without isolation guards nothing.
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
        """Turn text into bytes, and path objects into text."""
        _set(
            self,
            script=_path_text(self.script),
            workspace=_path_text(self.workspace),
            stdin=_as_bytes(self.stdin),
        )


@dataclass(frozen=True, kw_only=True)
class CodeExecutionResult:
    """What happened. `exit_code` is None exactly when the run was ended by a signal or a bound.

    Attributes:
        stdout: Head and tail where it was longer than the bound; `stdout_bytes` counts all of it.
        signal: The signal that ended it, where one did.
        timed_out: Whether the timeout ended it; a script's own exit code 124 is not a timeout.
        killed_by: `timeout`, `cancelled`, `memory`, `work_bytes`, … when bough ended it.
        output_skipped: (path, reason) of what did not come back, and of guarded names that were set aside.
        state_lost: A stateful executor had to start afresh.
        state_lost_reason: Why, in a few words; None while nothing was lost.
        isolation: What was really reached in this run.
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
        """`stdout` as text: UTF-8, what is not becomes replacement characters."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """`stderr` as text, as `text` is."""
        return self.stderr.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.exit_code == 0


class CodeExecutor(Protocol):
    """Something that runs code. Safe for concurrent use. Cancelling `execute` kills the whole process tree."""

    @property
    def name(self) -> str:
        """What kind of executor it is, for people and logs."""
        ...

    @property
    def default_timeout_seconds(self) -> float:
        """The timeout of requests that name none."""
        ...

    @property
    def stateful(self) -> bool:
        """Whether variables live on between runs of one `execution_id`."""
        ...

    @property
    def isolation(self) -> Isolation:
        """How well it keeps code away; what it demands until it knows what it reaches."""
        ...

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run and return what happened; a script that fails is a result, not an error.

        Raises:
            InvalidInput: A path, name or number in the request is refused; nothing was run.
            SandboxUnavailable: The wanted isolation does not work here; nothing was run.
            ExecutorError: It could not be started.
        """
        ...

    async def healthy(self) -> bool:
        """Whether the next `execute` can be expected to work."""
        ...

    async def reinitialize(self) -> None:
        """Throw away what is held (interpreters, containers) and start afresh."""
        ...

    async def aclose(self) -> None:
        """End everything it holds; closing twice is fine."""
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
        """Do what `execute` does, and wait for it; for code without an event loop. It raises the same."""
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

        An executor that is still open at the end of the program is closed then.

        Raises:
            BoughError: `execute` raised it, or this is the library's own event loop, which cannot wait for itself.
        """
        from bough.portal import portal  # not at the top: data of a request need no event loop

        loop = portal()
        loop.hold_weakly(self)
        return loop.call(self.execute, request)
