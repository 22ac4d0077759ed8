"""The tool that reads a result which was truncated for the model, by position or by pattern."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import FunctionToolset

from bough.agents.context import ToolContext
from bough.errors import InvalidInput

READ_RESULT = "read_result"
"""The tool's name, which a truncated result mentions."""

MAX_MATCHES = 200
_AROUND_CHARS = 60
_HEAD_CHARS = 80


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
    # Room for the first line: an answer above `result_chars` would be truncated again, with a new id to read.
    bound = max(1, ctx.deps.result_chars - _HEAD_CHARS)
    if not 0 <= offset <= len(text):
        raise InvalidInput(f"invalid offset {offset}", hint=f"the result has {len(text)} characters")
    if limit is not None and limit < 1:
        raise InvalidInput(f"invalid limit {limit}", hint="pass 1 or more, or omit it")
    if pattern is not None:
        # In a thread: a search in megabytes of text would block the event loop.
        return await asyncio.to_thread(find_matches, text, pattern, offset=offset, max_chars=min(limit or bound, bound))
    stop = min(len(text), offset + min(limit or bound, bound))
    return f"[characters {offset} to {stop} of {len(text)}]\n{text[offset:stop]}"


def find_matches(text: str, pattern: str, *, offset: int, max_chars: int) -> str:
    """Return the matches in `text`, one per line with offset and context, in linear time.

    Args:
        offset: Where to start, in characters.
        max_chars: Maximum length of the answer.

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
    size = 0
    for match in compiled.finditer(text, offset):
        start, stop = match.span()
        around = text[max(0, start - _AROUND_CHARS) : min(len(text), max(stop, start + 1) + _AROUND_CHARS)]
        line = f"{start}: {' '.join(around[: 4 * _AROUND_CHARS].split())}"
        size += len(line) + 1
        if len(lines) == MAX_MATCHES or size > max_chars:
            return "\n".join([f"[the first {len(lines)} matches; more from offset={start}]", *lines])
        lines.append(line)
    return "\n".join([f"[{len(lines)} matches]", *lines])


def result_toolset() -> FunctionToolset[ToolContext]:
    """Return the toolset with `read_result`, which is idempotent."""
    return FunctionToolset([Tool(read_result, name=READ_RESULT, metadata={"idempotent": True})])
