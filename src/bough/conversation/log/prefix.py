"""The prefix that a request shares with the request before it. A provider's prompt cache needs identical bytes.

A break of the prefix is reported to Python's logging. It is not recorded in the log, because it affects only the cost.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestContext

_LOGGER = logging.getLogger("bough.run")


@dataclass(frozen=True)
class RequestPrefix:
    """The parts of a request, in the order in which providers read them."""

    model: str
    tools: tuple[Any, ...]
    instructions: tuple[Any, ...]
    version: int
    messages: tuple[Any, ...]

    def find_break(self, later: RequestPrefix) -> str:
        """Return the name of the first part that `later` changes; empty if `later` only adds messages. O(messages)."""
        if later.model != self.model:
            return "model"
        if later.tools != self.tools:
            return "tools"
        if later.instructions != self.instructions:
            return "instructions"
        if later.version != self.version:
            return "condensed"
        return "" if later.messages[: len(self.messages)] == self.messages else "history"


class PrefixWatch:
    """Compares each request of one conversation with the previous one, if debug logging is enabled."""

    def __init__(self, cid: UUID) -> None:
        self._cid = cid
        self._previous: RequestPrefix | None = None

    def compare(self, request: ModelRequestContext, version: int) -> None:
        """Log what breaks the prefix, if anything does. Does nothing if debug logging is disabled.

        Args:
            version: The version of the view, which increases whenever messages are shown differently.
        """
        if not _LOGGER.isEnabledFor(logging.DEBUG):
            return
        parameters = request.model_request_parameters
        prefix = RequestPrefix(
            model=request.model.model_name,
            tools=tuple(
                (tool.name, tool.description, repr(tool.parameters_json_schema)) for tool in parameters.function_tools
            ),
            instructions=tuple(part.content for part in parameters.instruction_parts or ()),
            version=version,
            messages=tuple(part for message in request.messages for part in message.parts),
        )
        previous, self._previous = self._previous, prefix
        broken_part = "" if previous is None else previous.find_break(prefix)
        if broken_part:
            fields = {"conversation": str(self._cid), "broken": broken_part, "messages": len(request.messages)}
            _LOGGER.debug("prompt prefix broken: %s", broken_part, extra=fields)
