"""Chat completions, whole and streamed, made from the events and pieces of text of one run."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from sse_starlette import ServerSentEvent

from bough.errors import BoughError, NotFound
from bough.events.model import (
    ErrorRaised,
    LimitReached,
    ModelResponded,
    StateChanged,
    ToolCalled,
    ToolFailed,
    ToolRejected,
)
from bough.events.record import StoredEvent
from bough.server.access import Access, watch_key
from bough.server.live.broadcast import Fragment, StreamEnd
from bough.server.openai.answering import OpenChat, interrupt_if_left, record_answer, refuse_waiting
from bough.server.requests.problems import describe_openai_error
from bough.types import JsonObject

_ENDS: Mapping[str, str] = {
    "finished": "stop",
    "paused": "stop",
    "stuck": "stop",
    "waiting_for_confirmation": "",
    "error": "error",
}
"""The statuses with which a run ends, and the finish reasons that belong to them."""

_MAX_ARGUMENT_CHARS = 200

Kind = Literal["content", "reasoning_content"]


class AnswerText(NamedTuple):
    """A piece of the answer, or of what led to it: thinking and tool calls."""

    kind: Kind
    text: str


@dataclass
class Completion:
    """What a run has said so far.

    Attributes:
        finish_reason: Set when the run has ended.
        usage: Tokens of all requests of the run.
        error: Why the run failed.
    """

    id: str
    agent: str
    created: int
    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("input", "output", "cached"), 0))
    error: BoughError | None = None

    def add(self, piece: AnswerText) -> None:
        """Add a piece."""
        if piece.kind == "content":
            self.content += piece.text
        else:
            self.reasoning += piece.text

    def usage_as_json(self) -> JsonObject:
        """Return the usage in OpenAI's form."""
        prompt, completion = self.usage["input"], self.usage["output"]
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.usage["cached"]},
        }

    def as_completion(self) -> JsonObject:
        """Return the whole completion."""
        message = {"role": "assistant", "content": self.content, "refusal": None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason, "logprobs": None}
        return self._envelope("chat.completion") | {"choices": [choice], "usage": self.usage_as_json()}

    def as_chunk(self, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
        """Return a chunk of a stream."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return self._envelope("chat.completion.chunk") | {"choices": [choice]}

    def as_usage_chunk(self) -> JsonObject:
        """Return the chunk with the usage, which has no choice."""
        return self._envelope("chat.completion.chunk") | {"choices": [], "usage": self.usage_as_json()}

    def _envelope(self, object: str) -> JsonObject:
        return {"id": self.id, "object": object, "created": self.created, "model": self.agent}


class _Speaker:
    """Turns the items of a broadcast into pieces of the answer."""

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        self._streamed = ""

    def take_fragment(self, fragment: Fragment) -> list[AnswerText]:
        """Return the pieces for a fragment of a response."""
        # A fragment does not name its response: all fragments before a `ModelResponded` belong to it.
        if fragment.kind == "text":
            separator = "\n\n" if self._completion.content and not self._streamed else ""
            self._streamed += fragment.text
            return [AnswerText("content", separator + fragment.text)]
        if fragment.kind == "thinking":
            return [AnswerText("reasoning_content", fragment.text)]
        return []

    def take_event(self, stored: StoredEvent) -> list[AnswerText]:
        """Return the pieces of an event, and note usage, errors and limits."""
        match event := stored.event:
            case ModelResponded():
                return self._take_response(event)
            case ToolCalled():
                arguments = json.dumps(event.arguments, ensure_ascii=False)
                if len(arguments) > _MAX_ARGUMENT_CHARS:
                    arguments = arguments[:_MAX_ARGUMENT_CHARS] + "…"
                return [AnswerText("reasoning_content", f"\n{event.tool} {arguments}\n")]
            case ToolFailed():
                return [AnswerText("reasoning_content", f"{event.tool} failed\n")]
            case ToolRejected():
                return [AnswerText("reasoning_content", f"{event.tool} was refused: {event.reason or event.by}\n")]
            case LimitReached():
                self._completion.finish_reason = "length"
            case ErrorRaised():
                self._completion.error = BoughError(event.message, code=event.code, hint=event.hint)
            case _:
                pass
        return []

    def _take_response(self, event: ModelResponded) -> list[AnswerText]:
        """Return what the pieces of a response lacked. A response that was repeated after a cut is sent whole."""
        usage = self._completion.usage
        usage["input"] += event.usage.input_tokens
        usage["output"] += event.usage.output_tokens
        usage["cached"] += event.usage.cache_read_tokens
        if event.finish_reason == "length":
            self._completion.finish_reason = "length"
        parts = event.response.get("parts", ())
        text = "".join(part["content"] for part in parts if part.get("part_kind") == "text")
        # A slow reader loses fragments and never events, so the event decides what is still missing.
        streamed, self._streamed = self._streamed, ""
        if text.startswith(streamed):
            missing = text[len(streamed) :]
            separator = "\n\n" if self._completion.content and not streamed and missing else ""
        else:
            missing, separator = text, "\n\n"
        return [AnswerText("content", separator + missing)] if missing else []


async def follow(access: Access, chat: OpenChat, completion: Completion) -> AsyncGenerator[AnswerText]:
    """Yield the pieces of an answer until its run has ended. They are added to `completion`, and the answer is stored.

    Calls that wait for an approval are rejected, because this client cannot give one.

    Raises:
        LimitExceeded: The key or the tenant has the maximum number of streams.
        BoughError: The run failed, or the conversation was deleted meanwhile.
    """
    services, speaker = access.services, _Speaker(completion)
    with services.limits.stream(access.caller):
        async with (
            interrupt_if_left(access, chat.id),
            services.broadcasts.join(chat.id) as broadcast,
            watch_key(access, broadcast) as is_refused,
        ):
            # From before the message: the run may have events already, which are then read from the store.
            async for item in broadcast.read(chat.after, is_refused):
                pieces: list[AnswerText] = []
                if isinstance(item, Fragment):
                    pieces = speaker.take_fragment(item)
                elif isinstance(item, StoredEvent):
                    pieces = speaker.take_event(item)
                elif isinstance(item, StreamEnd):
                    raise NotFound(f"the conversation can no longer be followed: {item.reason}", hint="send it again")
                for piece in pieces:
                    completion.add(piece)
                    yield piece
                reason = _find_end(item)
                if reason is None:
                    continue
                if not reason and await refuse_waiting(access, chat.id):
                    continue
                await _end(access, chat, completion, reason, item)
                return


def _find_end(item: object) -> str | None:
    """Return the finish reason of an event that ends a run; None for other items."""
    if not (isinstance(item, StoredEvent) and item.kind == "StateChanged" and isinstance(item.event, StateChanged)):
        return None
    return _ENDS.get(str(item.event.changes.get("status")))


async def _end(access: Access, chat: OpenChat, completion: Completion, reason: str, item: object) -> None:
    # A later attempt of the run may have overcome the error, and then the answer is whole.
    if completion.error is not None and reason == "error":
        raise completion.error
    completion.finish_reason = completion.finish_reason or reason or "stop"
    assert isinstance(item, StoredEvent)  # noqa: S101 - only an event ends a run
    # Before the last chunk is sent: the next request of the chat may follow it at once.
    with suppress(NotFound):  # deleted meanwhile
        await record_answer(access, chat, completion.content, item.seq + 1)


async def stream_chunks(
    access: Access, chat: OpenChat, completion: Completion, *, with_usage: bool
) -> AsyncGenerator[bytes]:
    """Iterate the frames of a streamed completion. An error is the last frame but one."""
    # At once: clients wait for the first chunk with a short time limit, and the model may think for long.
    yield _frame(completion.as_chunk({"role": "assistant", "content": ""}))
    try:
        async for piece in follow(access, chat, completion):
            yield _frame(completion.as_chunk({piece.kind: piece.text}))
    except BoughError as error:
        yield _frame({"error": describe_openai_error(error.code, error.message, error.hint)})
    else:
        yield _frame(completion.as_chunk({}, completion.finish_reason))
        if with_usage:
            yield _frame(completion.as_usage_chunk())
    yield ServerSentEvent(data="[DONE]", sep="\n").encode()


def make_completion(chat: OpenChat, created: int) -> Completion:
    """Return the empty answer of a chat."""
    return Completion(id=f"chatcmpl-{chat.id.hex}-{chat.after + 1}", agent=chat.agent, created=created)


def _frame(data: Any) -> bytes:
    return ServerSentEvent(data=json.dumps(data, ensure_ascii=False, separators=(",", ":")), sep="\n").encode()
