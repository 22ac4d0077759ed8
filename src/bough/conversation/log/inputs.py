"""Bytes of images and files that people send: named by their digest in the events, shown to the model whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.messages import BinaryContent, ModelMessage, UserPromptPart

from bough.events.blob.blob import is_digest, read_bytes

if TYPE_CHECKING:
    from bough.events.store import EventStore

LOST = "[what was sent here is not in this store]"


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
    contents = await read_bytes(store, {content.identifier for _, _, content in places})
    for contents, index, content in places:
        data = contents.get(content.identifier)
        contents[index] = LOST if data is None else BinaryContent(data=data, media_type=content.media_type)


def _list_missing(messages: Sequence[ModelMessage]) -> Iterator[tuple[list[Any], int, BinaryContent]]:
    for message in messages:
        for part in message.parts:
            if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
                continue
            contents = cast("list[Any]", part.content)
            for index, content in enumerate(contents):
                if isinstance(content, BinaryContent) and not content.data and is_digest(content.identifier):
                    yield contents, index, content
