"""The bytes of images and files on their way into a bundle."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING
from uuid import UUID

from bough.errors import StoreError
from bough.events.blob.blob import list_named_bytes, read_bytes
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events.store import EventStore


async def list_digests(store: EventStore, cid: UUID) -> list[str]:
    """Return which bytes the messages of a conversation name, each once. Reads its messages."""
    found: dict[str, None] = {}
    async for stored in store.read(cid, kinds=("UserMessage",)):
        if b'"size_bytes"' in stored.raw:  # others are not worth decoding
            try:
                found |= dict.fromkeys(named.sha256 for named in list_named_bytes(stored.event))
            except StoreError:
                continue  # whoever writes the events says what is wrong with it
    return [*found]


async def describe_blob(store: EventStore, digest: str) -> JsonObject | None:
    """Return the line of bytes; None where the store has lost them."""
    data = (await read_bytes(store, [digest])).get(digest)
    return None if data is None else {"blob": digest, "data": b64encode(data).decode()}
