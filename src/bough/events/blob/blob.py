"""Bytes that events refer to by digest: stored once, and deleted with the last event that refers to them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from bough.errors import Unavailable
from bough.events.content import sha256_hex
from bough.events.side_tables import SideTables

if TYPE_CHECKING:
    from bough.events.model import Event
    from bough.events.side_tables import Tables
    from bough.events.store import EventStore

BLOBS = SideTables("blob", "bough.events.blob")
"""The side tables with the bytes of inputs and the events that refer to them."""


_DIGEST = re.compile(r"[0-9a-f]{64}")


class NamedBytes(NamedTuple):
    """A reference of an event to bytes; `sha256` is hexadecimal."""

    sha256: str
    media_type: str
    size_bytes: int


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in hexadecimal."""
    return _DIGEST.fullmatch(text) is not None


def list_named_bytes(event: Event) -> Iterator[NamedBytes]:
    """Iterate over the references of an event to bytes that the store keeps."""
    from bough.events.model import FilePart, ImagePart, UserMessage

    if not isinstance(event, UserMessage):
        return
    for part in event.content:
        if not isinstance(part, ImagePart | FilePart) or part.sha256 is None or part.size_bytes is None:
            continue
        if is_digest(part.sha256):  # an imported log may have any text here, and digests become parameters and paths
            yield NamedBytes(part.sha256, part.media_type, part.size_bytes)


async def read_bytes(store: EventStore, digests: Collection[str]) -> dict[str, bytes]:
    """Return bytes by digest, omitting those that are missing or do not match their digest.

    Args:
        digests: Hexadecimal. The bytes of all are in memory at once.
    """

    def read(tables: Tables) -> dict[str, bytes]:
        rows = {digest: tables.one("blob.read", sha256=bytes.fromhex(digest)) for digest in digests}
        return {digest: bytes(row[0]) for digest, row in rows.items() if row is not None}

    try:
        blobs = await store.transaction(BLOBS, read, read_only=True)
    except Unavailable as error:
        if error.details.get("package") != BLOBS.name:
            raise
        return {}  # a read-only store that never had bytes
    return {digest: data for digest, data in blobs.items() if sha256_hex(data) == digest}
