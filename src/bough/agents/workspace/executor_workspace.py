"""An executor as a PydanticAI workspace: commands run in its sandbox, file operations use the same folder.

Source: the workspace protocol of PydanticAI (`pydantic_ai.workspaces`).
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    SupportsCommands,
    SupportsFilesystem,
    SupportsRealpath,
    WorkspaceBackend,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from bough.agents.workspace.tree import WorkspaceTree
from bough.errors import ExecutorError, InvalidInput, Unavailable
from bough.execution.base import CodeExecutionInput, CodeExecutionResult, CodeExecutor, ExecutionLimits, Isolation
from bough.execution.request import WORK

_T = TypeVar("_T")
_PREVIEW_BYTES = 64 << 10
LIMITS = ExecutionLimits(stdout_bytes=4 << 20, stderr_bytes=4 << 20)


class ExecutorWorkspaceBackend(WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """A folder for file operations, and for commands that run in the sandbox of an executor.

    Paths are those in the sandbox (`/work/…`). Files that affect later runs (`.git`, `.agents`, …) are read-only for
    commands and file operations. Background processes of a command are ended with the command. Without a timeout, the
    executor's default applies.

    Args:
        folder: An existing folder; it is neither created nor removed here.
        limits: Limits of each command; more output raises `WorkspaceOutputLimitError`.
        execution_id: Identifies the workspace, so that the executor can reuse a sandbox for its commands.
    """

    def __init__(
        self,
        executor: CodeExecutor,
        folder: str | os.PathLike[str],
        *,
        limits: ExecutionLimits = LIMITS,
        execution_id: str | None = None,
    ) -> None:
        self._executor = executor
        self._folder = os.path.abspath(folder)
        self._limits = limits
        self._execution_id = execution_id
        self._ref = WorkspaceRef(provider="bough", id=self._folder)

    @property
    def ref(self) -> WorkspaceRef:
        """The reference to the workspace: the absolute path of the folder on the host."""
        return self._ref

    async def working_dir(self) -> str:
        """Return the folder's path in the sandbox: `/work`. Without a sandbox, it is the path on the host."""
        return (await asyncio.to_thread(self._open_tree)).sandbox_path

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command in the sandbox and return its result. After a signal, the exit code is 128 plus its number.

        Raises:
            WorkspaceTimeoutError: The command took longer than `timeout` seconds, or than the executor's default.
            WorkspaceOutputLimitError: The command printed more than the limits allow.
            WorkspaceUnavailableError: The folder is missing, or the executor cannot run commands.
            ValueError: The command, a variable or the timeout is invalid.
        """
        _check_command(command, shell=shell)
        if timeout is not None and not timeout > 0:
            raise ValueError("timeout must be a positive finite number or None")
        await asyncio.to_thread(self._open_tree)
        result = await self._execute(command, dict(env or {}), timeout)
        await asyncio.to_thread(self._open_tree)  # raises if the folder was removed, because the result would be empty
        return _make_command_result(result, self._limits)

    async def _execute(
        self, command: WorkspaceCommand, env: dict[str, str], timeout: float | None
    ) -> CodeExecutionResult:
        """Run a command in the executor, and convert its errors to those of the protocol."""
        if isinstance(command, str):
            code, argv = command, ()
        else:
            code, argv = 'exec "$@"\n', tuple(command)
        try:
            return await self._executor.execute(
                CodeExecutionInput(
                    code=code,
                    argv=argv,
                    language="sh",
                    workspace=self._folder,
                    env=env,
                    timeout_seconds=timeout,
                    limits=self._limits,
                    execution_id=self._execution_id,
                    output_globs=(),
                )
            )
        except InvalidInput as error:
            await asyncio.to_thread(self._open_tree)  # raises for a missing folder, which is not the command's fault
            raise ValueError(f"{error.message} {error.hint}".rstrip()) from error
        except ExecutorError:
            await asyncio.to_thread(self._open_tree)  # raises for a missing folder instead of the executor's failure
            raise
        except Unavailable as error:
            raise WorkspaceUnavailableError(f"{error.message} {error.hint}".rstrip()) from error

    async def read_bytes(self, path: str) -> bytes:
        """Return the content of a file."""
        return await self._run_on_tree(lambda tree: tree.read(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file and create its folders."""
        await self._run_on_tree(lambda tree: tree.write(path, data))

    async def stat(self, path: str) -> FileEntry:
        """Return the entry of a path, with links resolved."""
        return await self._run_on_tree(lambda tree: _describe_entry(path, tree.stat(path)))

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """Return the entries of a folder, sorted by name."""
        return await self._run_on_tree(
            lambda tree: [_make_entry(tree, f"{path.rstrip('/')}/{name}") for name in tree.list_names(path)]
        )

    async def make_dir(self, path: str) -> None:
        """Create a folder and its parents."""
        await self._run_on_tree(lambda tree: tree.make_folder(path))

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder with its contents; the workspace itself cannot be removed."""
        await self._run_on_tree(lambda tree: tree.remove(path))

    async def exists(self, path: str) -> bool:
        """Whether a path exists inside the workspace."""
        return await self._run_on_tree(lambda tree: _exists(tree, path))

    async def realpath(self, path: str) -> str:
        """Return the path in the sandbox with links resolved."""
        return await self._run_on_tree(lambda tree: "/".join((tree.sandbox_path, *tree.resolve(path))))

    async def _run_on_tree(self, operation: Callable[[WorkspaceTree], _T]) -> _T:
        return await asyncio.to_thread(lambda: operation(self._open_tree()))

    def _open_tree(self) -> WorkspaceTree:
        """Return access to the folder; raise `WorkspaceUnavailableError` if it does not exist. Blocks."""
        real_path = os.path.realpath(self._folder)
        if not os.path.isdir(real_path):
            raise WorkspaceUnavailableError(f"the workspace folder {self._folder} does not exist")
        # Without a sandbox, commands see the host's paths.
        sandbox_path = WORK if self._executor.isolation > Isolation.NONE else real_path
        return WorkspaceTree(real_path, sandbox_path, max_file_bytes=self._limits.file_size_bytes)


def _check_command(command: WorkspaceCommand, *, shell: bool) -> None:
    if isinstance(command, str) != shell:
        raise TypeError("a string needs shell=True, a sequence of arguments shell=False")
    if not command:
        raise ValueError("the command is empty")


def _make_command_result(result: CodeExecutionResult, limits: ExecutionLimits) -> CommandResult:
    """Return the result of a command; raise an error if it timed out or printed too much."""
    stdout, stderr = (stream.decode("utf-8", "replace") for stream in (result.stdout, result.stderr))
    if result.timed_out:
        raise WorkspaceTimeoutError(f"timed out after {result.wall_seconds:.1f} s", stdout=stdout, stderr=stderr)
    if result.stdout_truncated or result.stderr_truncated:
        limit = limits.stdout_bytes if result.stdout_truncated else limits.stderr_bytes
        raise WorkspaceOutputLimitError(
            f"more than {limit} bytes of output; write it to a file and read parts of that",
            limit=limit,
            stdout=stdout[:_PREVIEW_BYTES],
            stderr=stderr[:_PREVIEW_BYTES],
        )
    if result.killed_by is not None:
        stderr += f"[ended by the sandbox: {result.killed_by}]\n"
    exit_code = 128 + (result.signal or 9) if result.exit_code is None else result.exit_code
    return CommandResult(exit_code=exit_code, stdout=stdout, stderr=stderr)


def _describe_entry(path: str, stat_result: os.stat_result) -> FileEntry:
    is_folder = stat.S_ISDIR(stat_result.st_mode)
    size = stat_result.st_size if stat.S_ISREG(stat_result.st_mode) else None
    return FileEntry(name=os.path.basename(path.rstrip("/")), path=path, is_dir=is_folder, size=size)


def _make_entry(tree: WorkspaceTree, path: str) -> FileEntry:
    """Return an entry of a folder; for a link that dangles or leaves the workspace, one without a size."""
    try:
        return _describe_entry(path, tree.stat(path))
    except OSError:
        return FileEntry(name=os.path.basename(path), path=path, is_dir=False, size=None)


def _exists(tree: WorkspaceTree, path: str) -> bool:
    try:
        tree.stat(path)
    except OSError:
        return False
    return True
