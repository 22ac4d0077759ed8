"""Tasks in a SQLite log: one file, any number of processes of one machine."""

from __future__ import annotations

from bough.events import open_store
from bough.events.store import EventStore
from bough.settings import Settings
from bough.tasks.stores.relational import RelationalTaskStore


class TaskStoreSqlite(RelationalTaskStore):
    """Tasks in the file of a SQLite event store.

    Args:
        store: The event store, its URL, or None for the settings' one.
    """

    async def _open_log(self) -> EventStore:
        given = self._given
        return await open_store(given if isinstance(given, str) else Settings.load().store)
