"""Events in responses, in our form or another one; bodies of messages, and queries for events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol
from uuid import UUID

from fastapi import HTTPException, Response
from pydantic import Field, StringConstraints

from bough.errors import InvalidInput, NotFound
from bough.events.model import ContentPart, ImagePart, TextPart, UserMessage
from bough.events.record import StoredEvent
from bough.server.bodies.base import MAX_SEQ, OUR_EVENTS, Flag, Form, LenientForm, Moment, Success, stamp
from bough.types import JsonObject

MAX_FIELD_BYTES = 1 << 16
"""How much of a field one request returns."""


class EventForm(Protocol):
    """A form of events in responses. An event of the log may have several parts in this form, in order."""

    def encode(self, stored: StoredEvent, calls: Mapping[str, str]) -> Sequence[JsonObject]:
        """Return the parts of an event.

        Args:
            calls: For each tool call that the event names, the id of the part that made the call.
        """
        ...

    def calls_made(self, stored: StoredEvent) -> Mapping[str, str]:
        """Return the tool calls that an event makes, each with the id of the part that makes it."""
        ...

    def needs_calls(self, stored: StoredEvent) -> bool:
        """Whether the parts of an event name parts that made calls, so that `encode` needs `calls`."""
        ...


class OurEvents:
    """Our form: the flat object of `StoredEvent.as_json`, with times of fixed width."""

    def encode(self, stored: StoredEvent, calls: Mapping[str, str]) -> Sequence[JsonObject]:
        """Return the event."""
        return (encode_ours(stored),)

    def calls_made(self, stored: StoredEvent) -> Mapping[str, str]:
        """Return an empty mapping, because our form names calls by their own ids."""
        return {}

    def needs_calls(self, stored: StoredEvent) -> bool:
        """Return False, because our form names calls by their own ids."""
        return False


def encode_ours(stored: StoredEvent) -> JsonObject:
    """Return an event in our form."""
    return stored.as_json() | {"ts": stamp(stored.ts)}


def wants_ours(accept: str | None) -> bool:
    """Whether a request asks for events in our form."""
    return OUR_EVENTS in (accept or "").lower()


class ContentItem(LenientForm):
    """A part of a message: text, or images as `data:` URLs."""

    type: Literal["text", "image"]
    text: str | None = None
    image_urls: list[str] | None = Field(default=None, max_length=20)
    cache_prompt: Flag = False

    def parts(self) -> list[ContentPart]:
        """Return the parts that the log records.

        Raises:
            InvalidInput: An image is not a `data:` URL in base64.
        """
        if self.type == "text":
            return [TextPart(text=self.text or "")]
        return [_parse_image(url) for url in self.image_urls or ()]


class NewMessage(LenientForm):
    """A message of a person or a program. `run` starts a run; an active run gets the message."""

    role: Literal["user"] = "user"
    content: Annotated[str, StringConstraints(min_length=1)] | list[ContentItem]
    run: Flag = False
    sender: Annotated[str, StringConstraints(max_length=64)] | None = None
    id: UUID | None = None

    def event(self) -> UserMessage:
        """Return the event of the message.

        Raises:
            InvalidInput: An image is not a `data:` URL.
        """
        ids: dict[str, Any] = {} if self.id is None else {"id": self.id}
        sender = self.sender or "user"
        if isinstance(self.content, str):
            return UserMessage.text(self.content, sender=sender, **ids)
        parts = tuple(part for item in self.content for part in item.parts())
        return UserMessage(content=parts, sender=sender, **ids)


class MessageSent(Success):
    """The message was recorded."""

    event_id: UUID
    head: int


class EventQuery(Form):
    """Which events to return."""

    kind: str | None = Field(default=None, max_length=100)
    source: Literal["agent", "user", "environment", "hook"] | None = None
    body: str | None = Field(default=None, max_length=200)
    timestamp__gte: Moment | None = None
    timestamp__lt: Moment | None = None


class EventPage(EventQuery):
    """Which page of events to return. `after` and `before` are seqs, and `kinds` are kinds of our form."""

    page_id: str | None = Field(default=None, max_length=80)
    limit: int = Field(default=100, ge=1, le=500)
    sort_order: Literal["TIMESTAMP", "TIMESTAMP_DESC"] = "TIMESTAMP"
    after: int | None = Field(default=None, ge=-1, le=MAX_SEQ)
    before: int | None = Field(default=None, ge=0, le=MAX_SEQ)
    kinds: str | None = Field(default=None, max_length=1000)


class FieldQuery(Form):
    """Which part of an event's field to return. `offset` and `length` are bytes of UTF-8."""

    field: str | None = Field(default=None, min_length=1, max_length=100)
    offset: int = Field(default=0, ge=0, le=MAX_SEQ)
    length: int = Field(default=MAX_FIELD_BYTES, ge=1, le=MAX_FIELD_BYTES)


def answer_field(event: JsonObject, query: FieldQuery) -> Response:
    """Return the response with a range of a field of an event in our form; both ends are moved to whole characters.

    Raises:
        NotFound: The event has no such field.
        HTTPException: The field ends before the offset.
    """
    if query.field is None or query.field not in event:
        raise NotFound("the event has no such field", hint=f"its fields are {', '.join(event)}")
    value = event[query.field]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    content = text.encode("utf-8", "replace")
    size = len(content)
    if query.offset >= max(size, 1):
        raise HTTPException(416, "the field is shorter", headers={"Content-Range": f"bytes */{size}"})
    start, stop = _find_character(content, query.offset), _find_character(content, query.offset + query.length)
    # Moved to whole characters, so that each piece is text and the pieces joined are the field.
    if stop <= start:
        stop = min(start + 4, size)
        stop = _find_character(content, stop)
    headers = {"Content-Range": f"bytes {start}-{max(stop - 1, 0)}/{size}", "X-Content-Type-Options": "nosniff"}
    return Response(content[start:stop], 206, headers=headers, media_type="text/plain; charset=utf-8")


def _find_character(content: bytes, place: int) -> int:
    """Return the place of the character of UTF-8 to which a byte belongs; the size for a place beyond it."""
    place = min(place, len(content))
    while 0 < place < len(content) and content[place] & 0xC0 == 0x80:
        place -= 1
    return place


class ConfirmationAnswer(LenientForm):
    """The decision on all calls that wait."""

    accept: Flag
    reason: Annotated[str, StringConstraints(max_length=2000)] = "User rejected the action."


def _parse_image(url: str) -> ImagePart:
    """Return the image in a `data:` URL.

    Raises:
        InvalidInput: It is not such a URL, or not in base64.
    """
    header, comma, data = url.partition(",")
    if not header.startswith("data:") or not header.endswith(";base64") or not comma:
        raise InvalidInput("an image is not a data: URL in base64", hint="data:image/png;base64,…")
    return ImagePart(data=data, media_type=header.removeprefix("data:").removesuffix(";base64"))
