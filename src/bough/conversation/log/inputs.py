"""Bytes of images and files that people send: beside the log, each once, and named by their digest in the events."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from pydantic_ai.messages import BinaryContent, ModelMessage, UserPromptPart

from bough.conversation.log.ending import Ending
from bough.conversation.log.state import State
from bough.errors import BoughError
from bough.events.beside import Beside
from bough.events.model import ContentPart, FilePart, ImagePart, UserMessage

if TYPE_CHECKING:
    from bough.events.beside import Tables
    from bough.events.store import EventStore

BLOBS = Beside("blob", "bough.conversation.log.blob")
"""The bytes of inputs, and which events name them."""

LOST = "[what was sent here is not in this store]"


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Bytes that an event names by their digest, in hexadecimal."""

    sha256: str
    media_type: str
    data: bytes


def take_bytes(message: UserMessage) -> tuple[UserMessage, tuple[Blob, ...]]:
    """Return a message whose parts name their bytes by digest, and the bytes."""
    blobs: list[Blob] = []

    def name(part: ContentPart) -> ContentPart:
        data = part.content if isinstance(part, ImagePart | FilePart) else None
        if data is None or not isinstance(part, ImagePart | FilePart):
            return part
        sha256 = hashlib.sha256(data).hexdigest()
        blobs.append(Blob(sha256=sha256, media_type=part.media_type, data=data))
        return part.without_content(sha256, len(data))

    parts = tuple(name(part) for part in message.content)
    return (message.model_copy(update={"content": parts}), tuple(blobs)) if blobs else (message, ())


def keep_blobs(conversation: UUID, blobs: Sequence[Blob], *, behind: int) -> Ending:
    """Return the change that keeps bytes in the transaction of the event that names them.

    Args:
        behind: How many events are appended with that one, from it on.
    """

    def change(tables: Tables, state: State, _: BoughError | None) -> None:
        number, seq = tables.number(conversation), state.head - behind
        for blob in blobs:
            digest = bytes.fromhex(blob.sha256)
            size = len(blob.data)
            tables.run("blob.keep", sha256=digest, media_type=blob.media_type, size=size, data=blob.data)
            tables.run("blob.use", number=number, seq=seq, sha256=digest)

    return Ending((BLOBS,), change)


def describe_bytes(sha256: str, media_type: str) -> BinaryContent:
    """Return what stands in a message for bytes that `fill_inputs` reads."""
    return BinaryContent(data=b"", media_type=media_type, identifier=sha256)


async def fill_inputs(store: EventStore, messages: Sequence[ModelMessage]) -> None:
    """Read the bytes that messages name, and put them where they stand. O(messages) where they have no bytes.

    What is not in the store, or is not what its digest says, is told the model in words.
    """
    places = list(_list_missing(messages))
    if not places:
        return
    wanted = {content.identifier for _, _, content in places}

    def read(tables: Tables) -> dict[str, bytes]:
        rows = {name: tables.one("blob.read", sha256=bytes.fromhex(name)) for name in wanted}
        return {name: bytes(row[0]) for name, row in rows.items() if row is not None}

    found = await store.together(BLOBS, read, read_only=True)
    for contents, index, content in places:
        data = found.get(content.identifier)
        if data is None or hashlib.sha256(data).hexdigest() != content.identifier:
            contents[index] = LOST
        else:
            contents[index] = BinaryContent(data=data, media_type=content.media_type)


def _list_missing(messages: Sequence[ModelMessage]) -> Iterator[tuple[list[Any], int, BinaryContent]]:
    for message in messages:
        for part in message.parts:
            if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
                continue
            contents = cast("list[Any]", part.content)
            for index, content in enumerate(contents):
                if isinstance(content, BinaryContent) and not content.data and len(content.identifier) == 64:
                    yield contents, index, content
