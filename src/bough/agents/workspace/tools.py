"""Tools that work in a folder: read, write, edit, list, search, and run commands in the sandbox."""

from __future__ import annotations

import ast
import asyncio
import io
import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from pydantic_ai import RunContext
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import FunctionToolset

from bough.agents.context import ToolContext
from bough.agents.workspace.files import WorkspaceFiles
from bough.agents.writes import WRITES, report_execution
from bough.errors import NotSupported, Unavailable
from bough.execution.base import CodeExecutionInput
from bough.execution.process.guarded import GUARDED_NAME
from bough.types import JsonObject

WorkspaceAccess: TypeAlias = Literal["none", "read", "write", "run"]
"""The access of the built-in tools to the workspace; each value includes the ones before it."""

Run = RunContext[ToolContext]

_VARIABLE = re.compile(r"\$\{?[#!]?([A-Za-z_][A-Za-z0-9_]*)")


async def read_file(ctx: Run, path: str, start_line: int = 1, max_lines: int = 2000, start_byte: int = 0) -> str:
    """Read lines of a text file of the workspace; start_byte reads on in a line that is too long for one answer."""
    return await _run_in_thread(
        _open_files(ctx).read, path, start_line=start_line, max_lines=max_lines, start_byte=start_byte
    )


async def list_files(ctx: Run, path: str = ".", pattern: str = "*") -> list[str]:
    """List files below a folder of the workspace; pattern is a glob for path or name."""
    return await _run_in_thread(_open_files(ctx).list, path, pattern=pattern)


async def search_files(ctx: Run, expression: str, path: str = ".", pattern: str = "*") -> list[str]:
    """Search files of the workspace for a regular expression; returns file:line: text."""
    return await _run_in_thread(_open_files(ctx).search, expression, path, pattern=pattern)


async def write_file(ctx: Run, path: str, content: str) -> str:
    """Write a text file of the workspace; an existing file is replaced."""
    return await _run_in_thread(_write, ctx, _open_files(ctx).write, path, content)


async def edit_file(ctx: Run, path: str, old: str, new: str) -> str:
    """Replace a piece of a text file of the workspace; old must occur in it exactly once."""
    return await _run_in_thread(_write, ctx, _open_files(ctx).edit, path, old, new)


def _write(ctx: Run, write: Callable[..., str], path: str, *texts: str) -> str:
    """Write a file and report its path, also if writing fails. Blocks."""
    try:
        return write(path, *texts)
    finally:
        for written_path in _open_files(ctx).list_written(path):
            ctx.deps.wrote(written_path)


async def run_command(ctx: Run, command: str, timeout_seconds: float | None = None) -> JsonObject:
    """Run a shell command in the workspace, in the sandbox, without a network."""
    # Only the secrets that the command names, so that no other secret can get into its output or its processes.
    names = find_variables(command) & set(ctx.deps.secret_names())
    env = dict(await asyncio.to_thread(ctx.deps.secrets, sorted(names))) if names else {}
    return await _execute(ctx, timeout_seconds, code=command, language="bash", env=env)


async def python(ctx: Run, code: str, timeout_seconds: float | None = None) -> JsonObject:
    """Run Python code in the workspace, in the sandbox; prints the value of a last expression.

    Variables and imports remain for the next call; `state_lost` in an answer says that those of earlier calls are
    gone. If the sandbox keeps no interpreter between calls, each call must define everything that it needs.
    """
    code_showing_value = await asyncio.to_thread(show_last_value, code)
    try:
        return await _execute(ctx, timeout_seconds, code=code_showing_value, language="python", stateful=True)
    except NotSupported:  # raised before anything ran, so the code is not run twice
        return await _execute(ctx, timeout_seconds, code=code_showing_value, language="python")


async def _execute(ctx: Run, timeout_seconds: float | None, **request: Any) -> JsonObject:
    """Run code in the workspace and return its result for the model."""
    deps = ctx.deps
    if deps.executor is None or deps.workspace is None:
        raise Unavailable("cannot run commands here", hint="the conversation has no executor or no workspace")
    execution = await deps.executor.execute(
        CodeExecutionInput(
            workspace=deps.workspace,
            guards=deps.guards,
            timeout_seconds=deps.timeout_seconds if timeout_seconds is None else timeout_seconds,
            execution_id=None if deps.conversation is None else str(deps.conversation),
            **request,
        )
    )
    report_execution(execution.changed)
    result: JsonObject = {
        "exit_code": execution.exit_code,
        "stdout": execution.text,
        "stderr": execution.error_text,
    }
    if execution.killed_by:
        result["killed_by"] = execution.killed_by
    if execution.state_lost:
        result["state_lost"] = f"variables of earlier calls are gone: {execution.state_lost_reason}"
    # The executor has renamed new files with guarded names.
    set_aside = [f"{path}: {reason}" for path, reason in execution.output_skipped if reason.startswith(GUARDED_NAME)]
    if set_aside:
        result["set_aside"] = set_aside
    return result


def find_variables(command: str) -> frozenset[str]:
    """Return the names of the variables in a shell command: `$NAME` and `${NAME…}`, also in quoted code."""
    return frozenset(_VARIABLE.findall(command))


def show_last_value(code: str) -> str:
    """Return code that prints the value of its last expression, as a notebook does; line numbers do not change."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code  # the interpreter in the sandbox reports the error, or knows a newer syntax
    statement = tree.body[-1] if tree.body else None
    if not isinstance(statement, ast.Expr) or statement.end_lineno is None or statement.end_col_offset is None:
        return code
    # The offsets of the syntax tree count bytes. The end is inserted first, because the start would shift its offset.
    lines = [line.encode() for line in io.StringIO(code, newline="")]
    lines[statement.end_lineno - 1] = _insert(lines[statement.end_lineno - 1], statement.end_col_offset, b"))")
    lines[statement.lineno - 1] = _insert(
        lines[statement.lineno - 1], statement.col_offset, b"__import__('sys').displayhook(("
    )
    return b"".join(lines).decode()


def _insert(line: bytes, offset: int, text: bytes) -> bytes:
    return line[:offset] + text + line[offset:]


READ = (read_file, list_files, search_files)
WRITE = (write_file, edit_file)
RUN = (run_command, python)
_BY_ACCESS: dict[WorkspaceAccess, tuple[Callable[..., Any], ...]] = {
    "none": (),
    "read": READ,
    "write": READ + WRITE,
    "run": READ + WRITE + RUN,
}


def workspace_toolset(access: WorkspaceAccess) -> FunctionToolset[ToolContext]:
    """Return the tools of an access level. Tools that only read may be run again after a crash."""
    return FunctionToolset([Tool(function, metadata=_make_metadata(function)) for function in _BY_ACCESS[access]])


def _make_metadata(function: Callable[..., Any]) -> JsonObject:
    """Return the metadata of a tool."""
    if function in READ:
        return {"idempotent": True, WRITES: False}
    return {"idempotent": False} | ({WRITES: "told"} if function in WRITE else {})


def _open_files(ctx: Run) -> WorkspaceFiles:
    if ctx.deps.workspace is None:
        raise Unavailable("the conversation has no workspace", hint="start it with one")
    return WorkspaceFiles(ctx.deps.workspace, ctx.deps.guards)


async def _run_in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(function, *args, **kwargs)
