"""The pieces of a response while it is being written, from PydanticAI's stream of events."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from pydantic_ai.messages import (
    AgentStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from bough.conversation.log.listeners import Delta, DeltaKind
from bough.types import new_id


class ResponsePieces:
    """Numbers the pieces of each response, and tells which call a piece of arguments belongs to."""

    def __init__(self) -> None:
        self._response = new_id()
        self._order = 0
        self._calls: dict[int, tuple[str, str]] = {}

    def begin(self, response: UUID) -> None:
        """Begin a response, whose event will have this id."""
        self._response, self._order, self._calls = response, 0, {}

    def read(self, event: AgentStreamEvent) -> Delta | None:
        """Return the piece that an event brings; None where it brings none."""
        match event:
            case PartStartEvent(index=index, part=ToolCallPart() as call):
                self._calls[index] = (call.tool_call_id, call.tool_name)
                return self._piece("tool_arguments", _text(call.args), index)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta() as delta):
                id, name = self._calls.get(index, ("", ""))
                self._calls[index] = (delta.tool_call_id or id, name + (delta.tool_name_delta or ""))
                return self._piece("tool_arguments", _text(delta.args_delta), index)
            case PartStartEvent(part=TextPart(content=text)):
                return self._piece("text", text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                return self._piece("text", text)
            case PartStartEvent(part=ThinkingPart(content=text)):
                return self._piece("thinking", text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)):
                return self._piece("thinking", text or "")
            case _:
                return None

    def _piece(self, kind: DeltaKind, text: str, index: int | None = None) -> Delta | None:
        if not text:
            return None
        call, tool = (None, None) if index is None else self._calls[index]
        piece = Delta(
            text=text,
            kind=kind,
            response=self._response,
            order=self._order,
            tool_call_id=call or None,
            tool=tool or None,
        )
        self._order += 1
        return piece


def _text(args: Any) -> str:
    if isinstance(args, str):
        return args
    return json.dumps(args, ensure_ascii=False) if args else ""
