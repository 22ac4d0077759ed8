"""Bytes that events name by their digest: beside the log, each once, and gone with the last event that names them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, NamedTuple

from bough.errors import Unavailable
from bough.events.beside import Beside
from bough.events.content import digest_of_bytes

if TYPE_CHECKING:
    from bough.events.beside import Tables
    from bough.events.model import Event
    from bough.events.store import EventStore

BLOBS = Beside("blob", "bough.events.blob")
"""The bytes of inputs, and which events name them; the tables are of the store's own schema 2."""


_DIGEST = re.compile(r"[0-9a-f]{64}")


class NamedBytes(NamedTuple):
    """Bytes as an event names them; `sha256` is hexadecimal."""

    sha256: str
    media_type: str
    size_bytes: int


def is_digest(text: str) -> bool:
    """Whether a text is the name of bytes: a SHA-256, hexadecimal."""
    return _DIGEST.fullmatch(text) is not None


def list_named_bytes(event: Event) -> Iterator[NamedBytes]:
    """Iterate the bytes that an event names and does not hold itself."""
    from bough.events.model import FilePart, ImagePart, UserMessage

    if not isinstance(event, UserMessage):
        return
    for part in event.content:
        if not isinstance(part, ImagePart | FilePart) or part.sha256 is None or part.size_bytes is None:
            continue
        if is_digest(part.sha256):  # an imported log may say anything
            yield NamedBytes(part.sha256, part.media_type, part.size_bytes)


async def read_bytes(store: EventStore, digests: Collection[str]) -> dict[str, bytes]:
    """Return bytes by their digest; what is not in the store, or is not what its digest says, is left out.

    Args:
        digests: Hexadecimal; bytes of all of them are in memory at once.
    """

    def read(tables: Tables) -> dict[str, bytes]:
        rows = {digest: tables.one("blob.read", sha256=bytes.fromhex(digest)) for digest in digests}
        return {digest: bytes(row[0]) for digest, row in rows.items() if row is not None}

    try:
        found = await store.together(BLOBS, read, read_only=True)
    except Unavailable as error:
        if error.details.get("package") != BLOBS.name:
            raise
        return {}  # a store that cannot be written, and in which no bytes were ever kept
    return {digest: data for digest, data in found.items() if digest_of_bytes(data) == digest}
