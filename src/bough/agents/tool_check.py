"""Whether the tools of an agent can be offered to a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai import Tool

from bough.errors import InvalidInput

_TOOL_NAME = r"[A-Za-z0-9_.:-]{1,128}"


def check_tool(tool: object) -> None:
    """Raise `InvalidInput` for what is neither a named function nor a `Tool`."""
    if isinstance(tool, Tool):
        return
    if not callable(tool):
        raise InvalidInput(f"not a tool: {tool!r}", hint="pass functions, or PydanticAI's Tool(function)")
    if not hasattr(tool, "__qualname__") or not hasattr(tool, "__name__"):
        raise InvalidInput(
            f"a tool of type {type(tool).__name__} has no name",
            hint='name it with Tool(f, name="…"), or pass a function',
        )


def check_tool_names(tools: Sequence[Callable[..., Any] | Tool[Any]]) -> None:
    """Raise `InvalidInput` for names that models do not take, and for two tools with one name."""
    names = [tool.name if isinstance(tool, Tool) else tool.__name__ for tool in tools]
    for name in names:
        if not re.fullmatch(_TOOL_NAME, name):
            raise InvalidInput(
                f"{name!r} is not a name that models take for a tool", hint='name it with Tool(f, name="…")'
            )
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise InvalidInput(f"two tools are named {twice!r}", hint='name one of them otherwise: Tool(f, name="…")')
