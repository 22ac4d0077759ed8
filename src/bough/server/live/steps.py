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
    ErrorRaised,
    LimitReached,
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
from bough.server.live.broadcast import Fragment, StreamItem
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
        response: As in `TextStep`; empty if the call runs.
    """

    id: str
    tool: str
    arguments: JsonObject
    is_running: bool = False
    response: str = ""


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
class RespondedStep:
    """A response is complete: its text, thinking and calls precede this step.

    Attributes:
        response: As in `TextStep`.
        model: The model that responded.
        usage: What it was paid for. The size of its request is the number of input tokens.
        finish_reason: Why the model stopped, for example `length`; None if it did not say.
    """

    response: str
    model: str
    usage: Usage
    finish_reason: str | None = None


@dataclass(frozen=True)
class AskedStep:
    """Calls wait for a person: their descriptions by id, as in `State.waiting`."""

    calls: Mapping[str, JsonObject]


@dataclass(frozen=True)
class LimitStep:
    """A limit of the run was reached. The run ends soon."""

    limit: str


@dataclass(frozen=True)
class FailedStep:
    """An attempt of a run failed. A later attempt may succeed, so only `EndedStep` tells whether the run failed."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True)
class EndedStep:
    """A run ended with a status, or waits."""

    status: str


Step: TypeAlias = (
    MessageStep
    | StartedStep
    | TextStep
    | ThinkingStep
    | CallStep
    | ResultStep
    | RespondedStep
    | AskedStep
    | LimitStep
    | FailedStep
    | EndedStep
)


class StepReader:
    """Turns the updates of one conversation, in order, into steps. Holds the streamed text of one response."""

    def __init__(self) -> None:
        self._response = ""
        self._streamed: dict[str, str] = {}

    def read(self, update: Update | StreamItem) -> Iterator[Step]:
        """Yield the steps of an event or of a piece of text; none for an update that clients are not told about."""
        match update:
            case Delta() as piece:
                yield from self._read_piece(piece)
            case Fragment(piece=piece):
                yield from self._read_piece(piece)
            case StoredEvent() as stored:
                yield from self._read_event(stored)
            case _:
                return

    def _read_piece(self, piece: Delta) -> Iterator[Step]:
        response = str(piece.response)
        if response != self._response:
            self._response, self._streamed = response, {}
        if piece.kind == "tool_arguments":
            return
        streamed = self._streamed.get(piece.kind, "")
        # After a gap nothing more is streamed, because a client can only add to what it has.
        if piece.offset != len(streamed):
            return
        self._streamed[piece.kind] = streamed + piece.text
        yield TextStep(response, piece.text) if piece.kind == "text" else ThinkingStep(response, piece.text)

    def _read_event(self, stored: StoredEvent) -> Iterator[Step]:
        match stored.event:
            case UserMessage() as message:
                yield MessageStep(stored.id_text, message)
            case ModelResponded() as responded:
                yield from self._read_response(stored.id_text, responded)
            case ToolCalled() as called:
                yield CallStep(called.tool_call_id, called.tool, called.arguments, is_running=True)
            case ToolReturned() | ToolFailed() | ToolRejected() | ToolInterrupted() as ended:
                yield _read_result(ended)
            case LimitReached() as reached:
                yield LimitStep(reached.limit)
            case ErrorRaised() as error:
                yield FailedStep(error.code, error.message, error.hint)
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
                call, tool = str(part.get("tool_call_id")), str(part.get("tool_name"))
                yield CallStep(call, tool, _as_object(part.get("args")), response=id)
        yield RespondedStep(id, responded.model or "", responded.usage, responded.finish_reason)


def _read_result(ended: ToolReturned | ToolFailed | ToolRejected | ToolInterrupted) -> ResultStep:
    match ended:
        case ToolReturned():
            return ResultStep(ended.tool_call_id, ended.tool, "returned", ended.result)
        case ToolFailed():
            return ResultStep(ended.tool_call_id, ended.tool, "failed", ended.error)
        case ToolRejected():
            reason = f"refused by {ended.by}" + (f": {ended.reason}" if ended.reason else "")
            return ResultStep(ended.tool_call_id, ended.tool, "refused", reason)
        case ToolInterrupted():
            return ResultStep(ended.tool_call_id, ended.tool, "interrupted", ended.reason)


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
