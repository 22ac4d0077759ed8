"""What a request shares with the one before it: a provider's prompt cache serves the beginning that is byte-identical.

What breaks it is told to Python's logging, never to the log: it is about cost, and changes nothing that happened.
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
    """What a request begins with, in the order in which providers read it."""

    model: str
    tools: tuple[Any, ...]
    instructions: tuple[Any, ...]
    version: int
    messages: tuple[Any, ...]

    def find_break(self, later: RequestPrefix) -> str:
        """Return the first thing by which `later` does not begin like this one; empty where it does. O(messages)."""
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
    """Compares each request of one conversation with the one before it, where debug records are collected."""

    def __init__(self, cid: UUID) -> None:
        self._cid = cid
        self._latest: RequestPrefix | None = None

    def compare(self, request: ModelRequestContext, version: int) -> None:
        """Log what breaks the prefix, if something does. Costs nothing where nobody collects.

        Args:
            version: Of the view: it is raised whenever messages are shown differently.
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
        before, self._latest = self._latest, prefix
        if before is not None and (broken := before.find_break(prefix)):
            fields = {"conversation": str(self._cid), "broken": broken, "messages": len(request.messages)}
            _LOGGER.debug("prompt prefix broken: %s", broken, extra=fields)
