"""Whether a store that failed a write can be written again."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from bough.errors import BoughError
from bough.events.beside import Tables
from bough.events.store import EventStore
from bough.events.stores.relational.store import RelationalEventStore
from bough.events.stores.sqlite import SqliteEventStore
from bough.server.auth.keys import SERVER

_SPACE_BYTES = 1 << 20
"""Free space that a store needs: as much as a message may have, so that not only the probe fits."""


async def is_writable(store: EventStore) -> bool:
    """Whether writes succeed: nothing has failed since the last look, or a write of this function succeeds now."""
    if not isinstance(store, RelationalEventStore) or store.write_failure is None:
        return True
    if isinstance(store, SqliteEventStore) and not await asyncio.to_thread(_has_space, store.path.parent):
        return False
    try:
        await store.together(SERVER, _write_and_remove)
    except BoughError:
        return False
    store.write_failure = None
    return True


def _write_and_remove(tables: Tables) -> None:
    tables.run("server.add_probe")
    tables.run("server.remove_probe")


def _has_space(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            for _ in range(_SPACE_BYTES >> 16):  # written, not reserved: file systems may compress or share zeros
                if file.write(os.urandom(1 << 16)) < 1 << 16:
                    return False
            os.fsync(file.fileno())
    except OSError:
        return False
    return True
