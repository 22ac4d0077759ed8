"""Tasks in a Postgres log: any number of machines."""

from __future__ import annotations

from bough.config import Settings
from bough.errors import InvalidInput
from bough.events import open_store
from bough.events.store import EventStore
from bough.tasks.stores.relational import RelationalTaskStore


class TaskStorePostgres(RelationalTaskStore):
    """Tasks in the schema of a Postgres event store.

    Args:
        store: The event store, its URL, or None for the settings' one, which has to be on Postgres.
    """

    async def _open_log(self) -> EventStore:
        given = self._given
        url = given if isinstance(given, str) else Settings.load().store
        if not url.startswith(("postgresql:", "postgres:")):
            raise InvalidInput(f"{url!r} is not a Postgres store", hint="use postgresql://…, or TaskStoreSqlite")
        return await open_store(url)
