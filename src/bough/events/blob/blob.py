"""Bytes that events name by their digest: beside the log, each once, and gone with the last event that names them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from bough.errors import Unavailable
from bough.events.beside import Beside
from bough.events.content import digest_of_bytes

if TYPE_CHECKING:
    from bough.events.beside import Tables
    from bough.events.store import EventStore

BLOBS = Beside("blob", "bough.events.blob")
"""The bytes of inputs, and which events name them; the tables are of the store's own schema 2."""


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
