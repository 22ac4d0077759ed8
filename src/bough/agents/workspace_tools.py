"""Tools for working in a folder: read, write, edit, list, search, and run a command in the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from pydantic_ai import RunContext
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import FunctionToolset

from bough.agents.context import ToolContext
from bough.agents.workspace_files import WorkspaceFiles
from bough.errors import Unavailable
from bough.execution.base import CodeExecutionInput
from bough.skills.run.scripts import guarded_mounts
from bough.types import JsonObject

WorkspaceAccess: TypeAlias = Literal["none", "read", "write", "run"]
"""How much of the workspace an agent's own tools may use; each includes the ones before it."""

Run = RunContext[ToolContext]


async def read_file(ctx: Run, path: str, start_line: int = 1, max_lines: int = 2000, start_byte: int = 0) -> str:
    """Read lines of a text file of the workspace; start_byte reads on in a line that is too long for one answer."""
    return await _off_loop(_files(ctx).read, path, start_line=start_line, max_lines=max_lines, start_byte=start_byte)


async def list_files(ctx: Run, path: str = ".", pattern: str = "*") -> list[str]:
    """List files below a folder of the workspace; pattern is a glob for path or name."""
    return await _off_loop(_files(ctx).list, path, pattern=pattern)


async def search_files(ctx: Run, expression: str, path: str = ".", pattern: str = "*") -> list[str]:
    """Search files of the workspace for a regular expression; returns file:line: text."""
    return await _off_loop(_files(ctx).search, expression, path, pattern=pattern)


async def write_file(ctx: Run, path: str, content: str) -> str:
    """Write a text file of the workspace, replacing what was there."""
    return await _off_loop(_files(ctx).write, path, content)


async def edit_file(ctx: Run, path: str, old: str, new: str) -> str:
    """Replace a piece of a text file of the workspace; old must stand there exactly once."""
    return await _off_loop(_files(ctx).edit, path, old, new)


async def run_command(ctx: Run, command: str, timeout_seconds: float | None = None) -> JsonObject:
    """Run a shell command in the workspace, in the sandbox, without a network."""
    if ctx.deps.executor is None or ctx.deps.workspace is None:
        raise Unavailable("no command can be run here", hint="the conversation has no executor or no workspace")
    ran = await ctx.deps.executor.execute(
        CodeExecutionInput(
            code=command,
            language="bash",
            workspace=str(ctx.deps.workspace),
            mounts=tuple(guarded_mounts(ctx.deps.workspace)),
            timeout_seconds=ctx.deps.timeout_seconds if timeout_seconds is None else timeout_seconds,
        )
    )
    result: JsonObject = {
        "exit_code": ran.exit_code,
        "stdout": ran.stdout.decode("utf-8", "replace"),
        "stderr": ran.stderr.decode("utf-8", "replace"),
    }
    if ran.killed_by:
        result["killed_by"] = ran.killed_by
    return result


READ = (read_file, list_files, search_files)
WRITE = (write_file, edit_file)
RUN = (run_command,)
_BY_ACCESS: dict[WorkspaceAccess, tuple[Callable[..., Any], ...]] = {
    "none": (),
    "read": READ,
    "write": READ + WRITE,
    "run": READ + WRITE + RUN,
}


def workspace_toolset(access: WorkspaceAccess) -> FunctionToolset[ToolContext]:
    """Return the tools of that access; those that only read may simply run again after a crash."""
    return FunctionToolset(
        [Tool(function, metadata={"idempotent": function in READ}) for function in _BY_ACCESS[access]]
    )


def _files(ctx: Run) -> WorkspaceFiles:
    if ctx.deps.workspace is None:
        raise Unavailable("there is no workspace here", hint="start the conversation with one")
    return WorkspaceFiles(ctx.deps.workspace)


async def _off_loop(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(function, *args, **kwargs)
