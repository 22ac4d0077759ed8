"""Bytes that events refer to by digest: stored once, and deleted with the last event that refers to them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from bough.errors import InvalidInput, NotFound, Unavailable
from bough.events.content import sha256_hex
from bough.events.record import KINDS_WITH_FILES
from bough.events.side_tables import SideTables

if TYPE_CHECKING:
    from bough.events.model import Event
    from bough.events.record import StoredEvent
    from bough.events.side_tables import Tables
    from bough.events.store import EventStore

BLOBS = SideTables("blob", "bough.events.blob")
"""The side tables with the bytes of images and files, and the events that refer to them."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class NamedBytes(NamedTuple):
    """A reference of an event to bytes; `sha256` is hexadecimal."""

    sha256: str
    media_type: str
    size_bytes: int


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in hexadecimal."""
    return _DIGEST.fullmatch(text) is not None


def may_name_bytes(stored: StoredEvent) -> bool:
    """Whether a stored event may refer to bytes. A cheap test, since decoding every event is slow."""
    return stored.kind in KINDS_WITH_FILES and b'"size_bytes"' in stored.raw


def list_named_bytes(event: Event) -> Iterator[NamedBytes]:
    """Iterate over the references of an event to bytes that the store keeps."""
    for part in event.attachments:
        if part.sha256 is None or part.size_bytes is None:
            continue
        if is_digest(part.sha256):  # an imported log may have any text here, and digests become parameters and paths
            yield NamedBytes(part.sha256, part.media_type, part.size_bytes)


async def read_bytes(store: EventStore, cid: UUID, digests: Collection[str]) -> dict[str, bytes]:
    """Return bytes of a conversation by digest, omitting those that are missing or do not match their digest.

    Bytes are a conversation's if they were stored with an event of its log. An imported log may name the digest of any
    bytes, also another tenant's: without them in its bundle, it does not get them.

    Args:
        digests: Hexadecimal. The bytes of all are in memory at once.

    Raises:
        NotFound: The conversation does not exist.
    """
    ranges = await store.lineage(cid)

    def read(tables: Tables) -> dict[str, bytes]:
        places: list[dict[str, int]] = []
        for owner, lo, hi in ranges:
            with suppress(NotFound):  # deleted since, with its last fork
                places.append({"number": tables.number(owner), "lo": lo, "hi": hi})
        blobs: dict[str, bytes] = {}
        for digest in digests:
            sha256 = bytes.fromhex(digest)
            if any(tables.one("blob.is_used", sha256=sha256, **place) for place in places):
                row = tables.one("blob.read", sha256=sha256)
                blobs |= {} if row is None else {digest: bytes(row[0])}
        return blobs

    try:
        blobs = await store.transaction(BLOBS, read, read_only=True)
    except Unavailable as error:
        if error.details.get("package") != BLOBS.name:
            raise
        return {}  # a read-only store that never had bytes
    return {digest: data for digest, data in blobs.items() if sha256_hex(data) == digest}


async def read_file(store: EventStore, cid: UUID, digest: str) -> bytes:
    """Return the bytes of an image or a file of a conversation.

    Raises:
        InvalidInput: `digest` is not a SHA-256 in hexadecimal.
        NotFound: No event of the conversation was stored with such bytes, or they were erased.
    """
    if not (isinstance(digest, str) and is_digest(digest)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(
            f"not a digest: {digest!r:.80}", hint="give the sha256 of a message's part, or of a result's file"
        )
    data = (await read_bytes(store, cid, [digest])).get(digest)
    if data is None:
        raise NotFound(
            f"this conversation has no file {digest}", hint="its messages and results name the sha256 of theirs"
        )
    return data
