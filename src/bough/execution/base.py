"""The contract of executors, which run code: requests, results, and the protocol of an executor.

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


def _set_fields(instance: object, /, **values: object) -> None:
    """Set the fields of a frozen object in its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def _convert_path(value: Any) -> Any:
    """Return a path object as a string. Any other value is returned unchanged; `check_types` checks it later."""
    return os.fspath(value) if isinstance(value, PurePath) else value


def _encode_text(value: Any) -> Any:
    """Return a string encoded as UTF-8. Any other value is returned unchanged; `check_types` checks it later.

    Raises:
        InvalidInput: The string contains half a surrogate pair.
    """
    try:
        return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise InvalidInput("A text contains half a surrogate pair.", hint="Send valid Unicode, or bytes.") from error


@dataclass(frozen=True, kw_only=True, init=False)
class File:
    """An input or output file.

    Attributes:
        path: A relative path with forward slashes and without `..`.
        content: The bytes of the file; a string is encoded as UTF-8.
        mode: The permission bits.
    """

    path: str
    content: bytes
    mode: int

    def __init__(self, *, path: str | os.PathLike[str], content: bytes | str, mode: int = 0o644) -> None:
        _set_fields(self, path=_convert_path(path), content=_encode_text(content), mode=mode)


@dataclass(frozen=True, kw_only=True, init=False)
class Mount:
    """A host folder that is mounted at `target`, read-only by default."""

    source: str
    target: str
    writable: bool

    def __init__(self, *, source: str | os.PathLike[str], target: str, writable: bool = False) -> None:
        _set_fields(self, source=_convert_path(source), target=target, writable=writable)


@dataclass(frozen=True, kw_only=True)
class ExecutionLimits:
    """The limits of one run, in bytes and counts."""

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
    """The names that no run may change or create in a person's workspace, because they configure git and later runs.

    Names are compared without case, as some file systems and git do. In a new workspace, such files may be created, but
    they are not returned.

    Attributes:
        names: Names that are guarded in every folder.
        top: Names that are guarded in the workspace's root folder only.
        paths: Further guarded files and folders, relative to the workspace, for example folders of skills.
    """

    names: frozenset[str] = frozenset({".git"})
    top: frozenset[str] = frozenset(
        {".bough", ".agents", ".claude", ".openhands", ".gitattributes", "bough.yaml", "config.yaml", ".mcp.json"}
    )
    paths: tuple[str, ...] = ()

    def extend(self, workspace: str | os.PathLike[str], folders: Iterable[str | os.PathLike[str]]) -> Guards:
        """Return these guards with all `folders` below `workspace` added. Folders elsewhere need no guard."""
        root = os.path.realpath(workspace)
        relative_paths = [os.path.relpath(os.path.realpath(folder), root) for folder in folders]
        inside = [path for path in relative_paths if path != os.curdir and path.split(os.sep)[0] != os.pardir]
        return replace(self, paths=tuple(dict.fromkeys((*self.paths, *inside))))

    def is_guarded(self, parts: Sequence[str]) -> bool:
        """Whether the path with these parts is a guarded file or folder."""
        lower_parts = [part.casefold() for part in parts]
        if lower_parts[-1] in self.names or (len(parts) == 1 and lower_parts[0] in self.top):
            return True
        return any(path.casefold().split("/") == lower_parts for path in self.paths)

    def covers(self, parts: Sequence[str]) -> bool:
        """Whether the path with these parts is a guarded file or folder, or lies in a guarded folder."""
        return any(self.is_guarded(parts[:length]) for length in range(1, len(parts) + 1))


USUAL_GUARDS = Guards()
NO_GUARDS = Guards(names=frozenset(), top=frozenset())


@dataclass(frozen=True, kw_only=True)
class CodeExecutionInput:
    """A request to run code or a script. Exactly one of `code` and `script` must be set.

    Attributes:
        code: Source text in `language`.
        script: The path of a script inside the sandbox, absolute or relative to `/work`; for example
            `/skill/scripts/count.py`.
        argv: The arguments, passed unchanged and never through a shell.
        stdin: The program's input; a string is encoded as UTF-8.
        command: The interpreter, for example `("python3",)`. None chooses it by `language` for code and by the file
            extension for a script.
        mounts: Host folders to mount; a skill's folder is mounted read-only at `/skill`.
        workspace: The host folder to use as `/work`; None for a new one, which is removed after the run.
        working_dir: The working folder, relative to `/work`.
        timeout_seconds: None for the executor's default; with 0, nothing is started and the result is a timeout.
        output_globs: Patterns, relative to `/work`, of the new and changed files to return; None for all.
        execution_id: Runs with the same id may share a warm sandbox.
        stateful: Whether Python `code` runs in the persistent interpreter of `execution_id`. The result reports if
            earlier variables are lost. An executor without such interpreters raises `NotSupported` and runs nothing.
            None for the executor's default.
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
        _set_fields(
            self,
            script=_convert_path(self.script),
            workspace=_convert_path(self.workspace),
            stdin=_encode_text(self.stdin),
        )


@dataclass(frozen=True, kw_only=True)
class CodeExecutionResult:
    """The result of a run. `exit_code` is None if and only if a signal, a limit or the caller ended the run.

    Attributes:
        stdout: The output; only its head and tail if it exceeded the limit. `stdout_bytes` is its full length.
        signal: The signal that ended the program, or None.
        timed_out: Whether the timeout ended the run; a script's exit code of 124 is not a timeout.
        killed_by: Why the run was killed: `timeout`, `cancelled`, `memory`, `work_bytes`, …; None if it was not.
        output_skipped: (path, reason) of files that are not returned, and of guarded files that were renamed.
        state_lost: Whether earlier variables of a stateful run are lost.
        state_lost_reason: The reason in a few words; None if nothing was lost.
        changed: Whether the run changed, created or removed a file of its `workspace`; None if that is not known.
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
    changed: bool | None = None
    isolation: Isolation = Isolation.NONE

    @property
    def text(self) -> str:
        """`stdout` decoded as UTF-8, with replacement characters for invalid bytes."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """`stderr`, decoded in the same way as `text`."""
        return self.stderr.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        """Whether the program exited with 0 and was not killed."""
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
        """The isolation of runs; before the first run, the minimum that the executor accepts."""
        ...

    async def execute(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Run `request` and return the result; a failing script is a result, not an error.

        Raises:
            InvalidInput: A path, name or number in the request is invalid; nothing was run.
            SandboxUnavailable: The required isolation is not available on this machine; nothing was run.
            ExecutorError: The program could not be started.
        """
        ...

    async def healthy(self) -> bool:
        """Whether the next `execute` is expected to work."""
        ...

    async def reinitialize(self) -> None:
        """Close interpreters and containers, and let the next run start new ones."""
        ...

    async def aclose(self) -> None:
        """End interpreters and containers. Idempotent."""
        ...

    async def __aenter__(self) -> Self:
        """Return the executor itself, which is closed at the end of the `async with` block."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the executor."""
        ...

    def execute_sync(self, request: CodeExecutionInput) -> CodeExecutionResult:
        """Call `execute` from code without an event loop, and wait for the result. Raises the same errors."""
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
        """Run `request` on the library's event loop and wait for the result. Blocks.

        All calls use the same loop, so warm sandboxes are reused. An executor that is still open when the calling
        program ends is closed automatically. Ctrl-C, or an interrupt of the tool call that waits for this result,
        kills the executed program and all of its processes.

        Raises:
            asyncio.CancelledError: The tool call that waits for this result was interrupted.
            BoughError: `execute` raised it, or the caller runs on the library's event loop, which must not block.
        """
        from bough.portal import portal  # not at the top: the data classes need no event loop

        loop = portal()
        loop.hold_weakly(self)
        return loop.call(self.execute, request)
