"""The tool that reads a tool result that was truncated for the model, by position or by pattern."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import FunctionToolset

from bough.agents.context import ToolContext
from bough.agents.writes import WRITES
from bough.errors import InvalidInput

READ_RESULT = "read_result"
"""The name of the tool; the note in a truncated result contains it."""

MAX_MATCHES = 200
_CONTEXT_CHARS = 60
_FIRST_LINE_CHARS = 80


async def read_result(
    ctx: RunContext[ToolContext], result: str, offset: int = 0, limit: int | None = None, pattern: str | None = None
) -> str:
    """Read a part of an earlier result that was too long to be shown completely.

    Args:
        ctx: The run.
        result: The id in the line that marks the omitted part.
        offset: The first character to read, from 0.
        limit: How many characters to read; as many as can be shown if omitted.
        pattern: Return only matches of this regular expression (RE2), from offset on.
    """
    text = await ctx.deps.read_result(result)
    # Without space for the first line, the answer would exceed `result_chars` and be truncated again, with a new id.
    max_chars = max(1, ctx.deps.result_chars - _FIRST_LINE_CHARS)
    if not 0 <= offset <= len(text):
        raise InvalidInput(f"invalid offset {offset}", hint=f"the result has {len(text)} characters")
    if limit is not None and limit < 1:
        raise InvalidInput(f"invalid limit {limit}", hint="pass 1 or more, or omit it")
    if pattern is not None:
        # In a thread: a search in megabytes of text would block the event loop.
        return await asyncio.to_thread(
            find_matches, text, pattern, offset=offset, max_chars=min(limit or max_chars, max_chars)
        )
    stop = min(len(text), offset + min(limit or max_chars, max_chars))
    return f"[characters {offset} to {stop} of {len(text)}]\n{text[offset:stop]}"


def find_matches(text: str, pattern: str, *, offset: int, max_chars: int) -> str:
    """Return the matches in `text`, one per line with offset and context. O(length).

    Args:
        offset: The first character to search.
        max_chars: Maximum length of the returned text.

    Raises:
        InvalidInput: The pattern is not valid RE2 syntax, which has no backreferences and no lookaround.
    """
    import re2  # pyright: ignore[reportMissingTypeStubs]

    engine = cast("Any", re2)
    options = engine.Options()
    options.log_errors = False
    try:
        compiled = engine.compile(pattern, options)
    except engine.error as error:
        raise InvalidInput(f"invalid pattern {pattern[:60]!r}: {error}", hint="use RE2 syntax") from error
    lines: list[str] = []
    total_chars = 0
    for match in compiled.finditer(text, offset):
        start, stop = match.span()
        context = text[max(0, start - _CONTEXT_CHARS) : min(len(text), max(stop, start + 1) + _CONTEXT_CHARS)]
        line = f"{start}: {' '.join(context[: 4 * _CONTEXT_CHARS].split())}"
        total_chars += len(line) + 1
        if len(lines) == MAX_MATCHES or total_chars > max_chars:
            return "\n".join([f"[the first {len(lines)} matches; more from offset={start}]", *lines])
        lines.append(line)
    return "\n".join([f"[{len(lines)} matches]", *lines])


def result_toolset() -> FunctionToolset[ToolContext]:
    """Return the toolset with `read_result`."""
    return FunctionToolset([Tool(read_result, name=READ_RESULT, metadata={"idempotent": True, WRITES: False})])
