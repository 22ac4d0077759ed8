"""What happens in a conversation, in the terms that clients of every protocol have: text, thinking, calls, results.

A conversation sends durable events and pieces of streamed text. `StepReader` turns both into steps. A text that was
streamed is not sent again with its event, and pieces that were dropped are sent with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from bough.conversation.log.listeners import Delta, Update
from bough.events.model import (
    ModelResponded,
    StateChanged,
    ToolCalled,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
    Usage,
    UserMessage,
)
from bough.events.record import StoredEvent
from bough.types import Json, JsonObject


@dataclass(frozen=True)
class MessageStep:
    """A person, a program or another agent sent a message. `id` is the id of its event."""

    id: str
    message: UserMessage


@dataclass(frozen=True)
class StartedStep:
    """A run began."""


@dataclass(frozen=True)
class TextStep:
    """A piece of an answer. `response` is the id of the event that has, or will have, the whole response."""

    response: str
    text: str


@dataclass(frozen=True)
class ThinkingStep:
    """A piece of a model's thinking. `response` is as in `TextStep`."""

    response: str
    text: str


@dataclass(frozen=True)
class CallStep:
    """The model called a tool, or the call begins to run.

    Attributes:
        arguments: The arguments that it runs with. Values other than a JSON object are under the key `_`.
        is_running: Whether it runs, and does not wait for its review any more.
    """

    id: str
    tool: str
    arguments: JsonObject
    is_running: bool = False


@dataclass(frozen=True)
class ResultStep:
    """A call ended.

    Attributes:
        outcome: `refused` if the call was not allowed to run.
        value: The result; the error or the reason if there is no result.
    """

    call: str
    tool: str
    outcome: Literal["returned", "failed", "refused", "interrupted"]
    value: Json


@dataclass(frozen=True)
class UsageStep:
    """A response was paid for. The size of a request is the number of its input tokens."""

    usage: Usage


@dataclass(frozen=True)
class AskedStep:
    """Calls wait for a person: their descriptions by id, as in `State.waiting`."""

    calls: Mapping[str, JsonObject]


@dataclass(frozen=True)
class EndedStep:
    """A run ended with a status, or waits."""

    status: str


Step: TypeAlias = (
    MessageStep | StartedStep | TextStep | ThinkingStep | CallStep | ResultStep | UsageStep | AskedStep | EndedStep
)


class StepReader:
    """Turns the updates of one conversation, in order, into steps. Holds the streamed text of one response."""

    def __init__(self) -> None:
        self._response = ""
        self._streamed: dict[str, str] = {}
        self._is_incomplete = False

    def read(self, update: Update) -> Iterator[Step]:
        """Yield the steps of an event or of a piece of text; none for an update that clients are not told about."""
        if isinstance(update, Delta):
            yield from self._read_piece(update)
        else:
            yield from self._read_event(update)

    def _read_piece(self, piece: Delta) -> Iterator[Step]:
        response = str(piece.response)
        if response != self._response:
            self._response, self._streamed, self._is_incomplete = response, {}, piece.order > 0
        self._is_incomplete = self._is_incomplete or piece.lost > 0
        # After a gap nothing more is streamed, because a client can only add to what it has.
        if self._is_incomplete or piece.kind == "tool_arguments":
            return
        self._streamed[piece.kind] = self._streamed.get(piece.kind, "") + piece.text
        yield TextStep(response, piece.text) if piece.kind == "text" else ThinkingStep(response, piece.text)

    def _read_event(self, stored: StoredEvent) -> Iterator[Step]:
        match stored.event:
            case UserMessage() as message:
                yield MessageStep(stored.id_text, message)
            case ModelResponded() as responded:
                yield from self._read_response(stored.id_text, responded)
            case ToolCalled() as called:
                yield CallStep(called.tool_call_id, called.tool, called.arguments, is_running=True)
            case ToolReturned() as returned:
                yield ResultStep(returned.tool_call_id, returned.tool, "returned", returned.result)
            case ToolFailed() as failed:
                yield ResultStep(failed.tool_call_id, failed.tool, "failed", failed.error)
            case ToolRejected() as rejected:
                reason = f"refused by {rejected.by}" + (f": {rejected.reason}" if rejected.reason else "")
                yield ResultStep(rejected.tool_call_id, rejected.tool, "refused", reason)
            case ToolInterrupted() as interrupted:
                yield ResultStep(interrupted.tool_call_id, interrupted.tool, "interrupted", interrupted.reason)
            case StateChanged(changes=changes):
                yield from _read_state(changes)
            case _:
                return

    def _read_response(self, id: str, responded: ModelResponded) -> Iterator[Step]:
        streamed = self._streamed if id == self._response else {}
        parts = [cast("JsonObject", part) for part in responded.response.get("parts", ())]
        for kind, step in (("thinking", ThinkingStep), ("text", TextStep)):
            text = "".join(str(part.get("content") or "") for part in parts if part.get("part_kind") == kind)
            remaining = text.removeprefix(streamed.get(kind, ""))
            if remaining:
                yield step(id, remaining)
        for part in parts:
            if part.get("part_kind") == "tool-call":
                yield CallStep(str(part.get("tool_call_id")), str(part.get("tool_name")), _as_object(part.get("args")))
        yield UsageStep(responded.usage)


def _read_state(changes: JsonObject) -> Iterator[Step]:
    if changes.get("waiting"):
        yield AskedStep(changes["waiting"])
    status = changes.get("status")
    if status == "running":
        yield StartedStep()
    elif isinstance(status, str):
        yield EndedStep(status)


def _as_object(arguments: Any) -> JsonObject:
    """Return the arguments of a call as an object."""
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except ValueError:
            value = arguments
    return cast("JsonObject", value) if isinstance(value, dict) else {"_": value}
