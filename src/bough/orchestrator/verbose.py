"""What a run does, node by node, for the logger `bough.run`.

Source: seed 004 (`verbose=True`, the built-in node hook).
"""

from __future__ import annotations

import logging
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import TextPart, ThinkingPart, ToolCallPart, ToolReturnPart

LOG = logging.getLogger("bough.run")
MAX_CHARS = 500


def log_node(node: Any) -> None:
    """Log what a node shows: the model's reasoning, its text, its calls and their results."""
    if Agent.is_call_tools_node(node):
        for part in node.model_response.parts:
            match part:
                case ThinkingPart() | TextPart():
                    LOG.info("model: %s", _shorten(part.content))
                case ToolCallPart():
                    LOG.info("call %s: %s", part.tool_name, _shorten(part.args_as_json_str()))
                case _:
                    pass
    elif Agent.is_model_request_node(node):
        for part in node.request.parts:
            if isinstance(part, ToolReturnPart):
                LOG.info("result of %s: %s", part.tool_name, _shorten(str(part.content)))


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"
