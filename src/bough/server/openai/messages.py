"""Requests in OpenAI's format: the messages of a chat, and the digests by which a later request is recognized."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from bough.errors import InvalidInput
from bough.events.model import ContentPart, TextPart
from bough.server.bodies.base import Flag, Form, Integer
from bough.server.bodies.events import ContentItem
from bough.types import Json

_AGENTS_OWN = frozenset({
    "frequency_penalty", "logit_bias", "max_completion_tokens", "max_tokens", "metadata", "parallel_tool_calls",
    "presence_penalty", "prompt_cache_key", "reasoning_effort", "safety_identifier", "seed", "service_tier", "stop",
    "store", "temperature", "tool_choice", "top_p", "user", "verbosity",
})  # fmt: skip
"""Fields that an agent decides itself. They are accepted, have no effect, and are named in the response."""

_REFUSED: Mapping[str, str] = {
    "audio": "send and expect text",
    "function_call": "register the tools of an agent in config.yaml",
    "functions": "register the tools of an agent in config.yaml",
    "logprobs": "leave it out",
    "prediction": "leave it out",
    "response_format": "give the agent an output type",
    "tools": "register the tools of an agent in config.yaml",
    "top_logprobs": "leave it out",
    "web_search_options": "register the tools of an agent in config.yaml",
}
"""Fields that would change the answer, each with what to do instead."""

_HARMLESS: Mapping[str, Sequence[Json]] = {
    "function_call": ("none", "auto"),
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
    "top_logprobs": (0,),
}
"""Values of refused fields that ask for what happens anyway."""

IGNORED_HEADER = "X-Bough-Ignored"
"""The response header that names the fields without an effect."""


class ChatImage(Form):
    """An image of a message, as a `data:` URL."""

    model_config = ConfigDict(extra="ignore")

    url: str


class ChatPart(Form):
    """A part of a message."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text", "image_url", "refusal"]
    text: str | None = None
    refusal: str | None = None
    image_url: ChatImage | None = None

    def parts(self) -> list[ContentPart]:
        """Return the parts that the log records.

        Raises:
            InvalidInput: An image is not a `data:` URL in base64.
        """
        if self.image_url is not None:
            return ContentItem(type="image", image_urls=[self.image_url.url]).parts()
        return [TextPart(text=self.text or self.refusal or "")]


class ChatMessage(Form):
    """A message of a chat. Fields of answers that clients send back, such as `annotations`, have no effect."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ChatPart] | None = None
    tool_calls: list[Any] | None = None

    @property
    def is_instruction(self) -> bool:
        """Whether the message is an instruction to the agent instead of a part of the dialogue."""
        return self.role in ("system", "developer")

    @property
    def text(self) -> str:
        """The text, without images."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text or part.refusal or "" for part in self.content or () if part.image_url is None)

    def parts(self) -> list[ContentPart]:
        """Return the parts that the log records.

        Raises:
            InvalidInput: An image is not a `data:` URL in base64.
        """
        if isinstance(self.content, str):
            return [TextPart(text=self.content)]
        return [recorded for part in self.content or () for recorded in part.parts()]


class StreamOptions(Form):
    """Options of a streamed response."""

    model_config = ConfigDict(extra="ignore")

    include_usage: Flag = False


class ChatRequest(Form):
    """A request for a chat completion. `model` is the name of an agent."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=200)
    messages: list[ChatMessage] = Field(min_length=1, max_length=10_000)
    stream: Flag = False
    stream_options: StreamOptions | None = None
    n: Integer | None = None

    @property
    def instructions(self) -> str:
        """The texts of all system messages."""
        return "\n\n".join(message.text for message in self.messages if message.is_instruction)

    def list_ignored(self) -> list[str]:
        """Return the names of the fields that have no effect, sorted."""
        return sorted(name for name in self.model_extra or {} if name in _AGENTS_OWN)

    def dialogue(self) -> Dialogue:
        """Return the dialogue of the messages.

        Raises:
            InvalidInput: A field or a message asks for what an agent cannot do; the message names it.
        """
        if self.n not in (None, 1):
            raise InvalidInput("n: an agent gives one answer", hint="send n=1, or several requests")
        for name, value in (self.model_extra or {}).items():
            self._require_known(name, value)
        messages = [message for message in self.messages if not message.is_instruction]
        for message in messages:
            if message.role in ("tool", "function") or message.tool_calls:
                raise InvalidInput("messages: an agent runs its tools itself", hint="send only texts and images")
        if not messages or messages[-1].role != "user":
            raise InvalidInput("messages: the last one must be of the role user", hint="add the message to answer")
        return Dialogue(messages)

    def _require_known(self, name: str, value: Json) -> None:
        if name in _AGENTS_OWN:
            return
        # Refused instead of ignored, because nobody would notice that a misspelt field has no effect.
        if name not in _REFUSED:
            raise InvalidInput(f"{name[:100]}: unknown field", hint="see /docs for the fields")
        if value not in (None, [], {}) and value not in _HARMLESS.get(name, ()):
            raise InvalidInput(f"{name}: not supported", hint=_REFUSED[name], details={"field": name})


class Dialogue:
    """The messages of a user and an assistant, in order; the last one is of the user.

    Args:
        messages: Without instructions.

    Attributes:
        answered: How many messages precede the trailing messages of the user: the last of them is an answer.
    """

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self._messages = messages
        self._digests = list(_chain(messages))
        places = [place for place, message in enumerate(messages, 1) if message.role == "assistant"]
        self.answered = places[-1] if places else 0

    def answers(self) -> list[tuple[int, bytes]]:
        """Return the answers, the latest first: how many messages end with each, and the digest of these messages."""
        return [
            (place, self._digests[place - 1])
            for place in range(self.answered, 0, -1)
            if self._messages[place - 1].role == "assistant"
        ]

    def digest_with(self, answer: str) -> bytes:
        """Return the digest of all messages and their answer."""
        return _extend(self._digests[-1], ChatMessage(role="assistant", content=answer))

    def parts_from(self, start: int) -> tuple[ContentPart, ...]:
        """Return the message to send if the conversation has the first `start` messages.

        Messages between these and the trailing ones of the user were never part of the conversation, so the message
        quotes them.

        Raises:
            InvalidInput: An image is not a `data:` URL in base64.
        """
        parts: list[ContentPart] = []
        if start < self.answered:
            lines = [f"{message.role}: {message.text}" for message in self._messages[start : self.answered]]
            parts.append(TextPart(text="Earlier messages, as the client sent them:\n\n" + "\n\n".join(lines)))
        return (*parts, *(part for message in self._messages[self.answered :] for part in message.parts()))


def _chain(messages: Sequence[ChatMessage]) -> list[bytes]:
    """Return, for each message, the digest of it and all earlier ones."""
    digest, digests = b"", list[bytes]()
    for message in messages:
        digest = _extend(digest, message)
        digests.append(digest)
    return digests


def _extend(digest: bytes, message: ChatMessage) -> bytes:
    """Return the digest of a message and all earlier ones, without space around texts: some clients strip it."""
    images = [
        part.image_url.url
        for part in (message.content if isinstance(message.content, list) else ())
        if part.image_url is not None
    ]
    text = json.dumps([message.role, message.text.strip(), *images], ensure_ascii=False)
    # `surrogatepass`: JSON may contain half of a surrogate pair, and the digest must not fail for it.
    return hashlib.sha256(digest + text.encode("utf-8", "surrogatepass")).digest()
