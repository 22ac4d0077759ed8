"""Chat completions, whole and streamed, made from the events and pieces of text of one run."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from sse_starlette import ServerSentEvent

from bough.errors import BoughError, NotFound
from bough.events.model import Usage
from bough.server.access import Access
from bough.server.conversations.following import follow_run
from bough.server.live.steps import (
    CallStep,
    EndedStep,
    FailedStep,
    LimitStep,
    RespondedStep,
    ResultStep,
    Step,
    TextStep,
    ThinkingStep,
)
from bough.server.openai.answering import OpenChat, record_answer, refuse_waiting
from bough.server.requests.problems import describe_openai_error
from bough.types import JsonObject

_WAITING = "waiting_for_confirmation"

_ENDS: Mapping[str, str] = {
    "finished": "stop",
    "paused": "stop",
    "stuck": "stop",
    _WAITING: "stop",
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

    def count(self, usage: Usage) -> None:
        """Add the usage of a response."""
        self.usage["input"] += usage.input_tokens
        self.usage["output"] += usage.output_tokens
        self.usage["cached"] += usage.cache_read_tokens

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
    """Turns the steps of a run into pieces of the answer, and notes usage, limits and errors."""

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        self._response = ""

    def take(self, step: Step) -> AnswerText | None:
        """Return the piece of a step; None if it has none."""
        match step:
            case TextStep(response=response, text=text):
                is_next = bool(self._completion.content) and response != self._response
                self._response = response
                return AnswerText("content", ("\n\n" if is_next else "") + text)
            case ThinkingStep(text=text):
                return AnswerText("reasoning_content", text)
            case CallStep(tool=tool, is_running=True):
                arguments = json.dumps(step.arguments, ensure_ascii=False)
                if len(arguments) > _MAX_ARGUMENT_CHARS:
                    arguments = arguments[:_MAX_ARGUMENT_CHARS] + "…"
                return AnswerText("reasoning_content", f"\n{tool} {arguments}\n")
            case ResultStep(tool=tool, outcome="failed"):
                return AnswerText("reasoning_content", f"{tool} failed\n")
            case ResultStep(tool=tool, outcome="refused", value=reason):
                return AnswerText("reasoning_content", f"{tool} was {reason}\n")
            case _:
                self._note(step)
                return None

    def _note(self, step: Step) -> None:
        match step:
            case RespondedStep(usage=usage, finish_reason=reason):
                self._completion.count(usage)
                if reason == "length":
                    self._completion.finish_reason = "length"
            case LimitStep():
                self._completion.finish_reason = "length"
            case FailedStep(code=code, message=message, hint=hint):
                self._completion.error = BoughError(message, code=code, hint=hint)
            case _:
                pass


async def follow(access: Access, chat: OpenChat, completion: Completion) -> AsyncGenerator[AnswerText]:
    """Yield the pieces of an answer until its run has ended. They are added to `completion`, and the answer is stored.

    Calls that wait for an approval are rejected, because this client cannot give one.

    Raises:
        LimitExceeded: The key or the tenant has the maximum number of streams.
        BoughError: The run failed, or the conversation was deleted meanwhile.
    """
    speaker = _Speaker(completion)
    async with follow_run(access, chat.id, chat.after, kind="openai") as steps:
        async for step, head in steps:
            piece = speaker.take(step)
            if piece is not None:
                completion.add(piece)
                yield piece
            if isinstance(step, EndedStep) and step.status in _ENDS:
                if step.status == _WAITING and await refuse_waiting(access, chat.id):
                    continue
                await _end(access, chat, completion, step.status, head)
                return


async def _end(access: Access, chat: OpenChat, completion: Completion, status: str, head: int) -> None:
    # A later attempt of the run may have overcome the error, and then the answer is whole.
    if completion.error is not None and status == "error":
        raise completion.error
    completion.finish_reason = completion.finish_reason or _ENDS[status]
    # Before the last chunk is sent: the next request of the chat may follow it at once.
    with suppress(NotFound):  # deleted meanwhile
        await record_answer(access, chat, completion.content, head)


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
