"""A task store in a SQLite file, shared by any number of processes of one machine."""

from __future__ import annotations

from bough.events import open_store
from bough.events.store import EventStore
from bough.settings import Settings
from bough.tasks.stores.relational import RelationalTaskStore


class TaskStoreSqlite(RelationalTaskStore):
    """Stores tasks in the file of a SQLite event store.

    Args:
        store: The event store or its URL; None uses the store of the settings.
    """

    async def _open_log(self) -> EventStore:
        return await open_store(self._given_log if isinstance(self._given_log, str) else Settings.load().store)
