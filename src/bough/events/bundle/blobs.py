"""The bytes of images and files on their way into a bundle."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from bough.errors import StoreError
from bough.events.blob.blob import list_named_bytes, read_bytes
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events.record import StoredEvent
    from bough.events.store import EventStore


async def list_digests(events: AsyncIterator[StoredEvent]) -> list[str]:
    """Return which bytes the messages among `events` name, each once."""
    found: dict[str, None] = {}
    async for stored in events:
        if stored.kind == "UserMessage" and b'"size_bytes"' in stored.raw:  # others are not worth decoding
            try:
                found |= dict.fromkeys(named.sha256 for named in list_named_bytes(stored.event))
            except StoreError:
                continue  # whoever writes the events says what is wrong with it
    return [*found]


async def describe_blob(store: EventStore, digest: str) -> JsonObject | None:
    """Return the line of bytes; None where the store has lost them."""
    data = (await read_bytes(store, [digest])).get(digest)
    return None if data is None else {"blob": digest, "data": b64encode(data).decode()}
