"""Reading on in a result that the model was shown only the two ends of: by place, or by pattern."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import FunctionToolset

from bough.agents.context import ToolContext
from bough.errors import InvalidInput

READ_RESULT = "read_result"
"""The tool's name, as the line in a cut result has it."""

MAX_MATCHES = 200
_AROUND_CHARS = 60
_HEAD_CHARS = 80


async def read_result(
    ctx: RunContext[ToolContext], result: str, offset: int = 0, limit: int | None = None, pattern: str | None = None
) -> str:
    """Read a part of an earlier result that was too long to be shown whole.

    Args:
        ctx: The run.
        result: The id in the line that stands for what was left out.
        offset: The first character to read, from 0.
        limit: How many characters to read; as many as can be shown if left out.
        pattern: Only the places that match this regular expression (RE2), from offset on.
    """
    text = await ctx.deps.read_result(result)
    bound = max(1, ctx.deps.result_chars - _HEAD_CHARS)
    if not 0 <= offset <= len(text):
        raise InvalidInput(f"offset {offset} is outside of the result", hint=f"it has {len(text)} characters")
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit is {limit}", hint="1 or more, or leave it out")
    if pattern is not None:
        return await asyncio.to_thread(find_matches, text, pattern, offset=offset, max_chars=min(limit or bound, bound))
    stop = min(len(text), offset + min(limit or bound, bound))
    return f"[characters {offset} to {stop} of {len(text)}]\n{text[offset:stop]}"


def find_matches(text: str, pattern: str, *, offset: int, max_chars: int) -> str:
    """Return the places of `text` that match, one a line with its offset and what stands around it; linear time.

    Args:
        offset: Where the search begins, in characters.
        max_chars: Of the answer, at most.

    Raises:
        InvalidInput: The pattern is none of RE2, which has no back-references and no look-around.
    """
    import re2  # pyright: ignore[reportMissingTypeStubs]

    engine = cast("Any", re2)
    options = engine.Options()
    options.log_errors = False
    try:
        compiled = engine.compile(pattern, options)
    except engine.error as error:
        raise InvalidInput(f"the pattern {pattern[:60]!r} is not valid: {error}", hint="RE2 syntax") from error
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
    """Return the tool; reading again after a crash does no harm."""
    return FunctionToolset([Tool(read_result, name=READ_RESULT, metadata={"idempotent": True})])
