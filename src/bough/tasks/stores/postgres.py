"""A task store on Postgres, shared by any number of machines."""

from __future__ import annotations

import asyncio

from bough.errors import InvalidInput
from bough.events import open_store
from bough.events.store import EventStore
from bough.settings import Settings
from bough.tasks.stores.relational import RelationalTaskStore


class TaskStorePostgres(RelationalTaskStore):
    """Stores tasks in the schema of a Postgres event store.

    Args:
        store: The event store or its URL; None uses the store of the settings, which must be on Postgres.
    """

    _has_jobs = False

    async def open(self) -> EventStore:
        """Open the log, and create or upgrade the engine's tables. See `TaskStore.open`.

        Raises:
            Unavailable: The engine is not installed, or its tables are newer than the installed package.
        """
        log = await super().open()
        if not self._has_jobs:
            from bough.tasks.stores.jobs_schema import migrate_jobs

            address, schema = read_address(log)
            await asyncio.to_thread(migrate_jobs, address, schema)
            self._has_jobs = True
        return log

    async def _open_log(self) -> EventStore:
        url = self._given_log if isinstance(self._given_log, str) else Settings.load().store
        if not url.startswith(("postgresql:", "postgres:")):
            raise InvalidInput(f"{url!r} is not a Postgres store", hint="use postgresql://…, or TaskStoreSqlite")
        return await open_store(url)


def read_address(log: EventStore) -> tuple[str, str]:
    """Return the URL of a Postgres event store, including the password, and its schema.

    Raises:
        InvalidInput: The event store is not on Postgres.
    """
    from bough.events.stores.postgres import PostgresEventStore

    if not isinstance(log, PostgresEventStore):
        raise InvalidInput(f"{type(log).__name__} is not a Postgres store", hint="use TaskStoreSqlite")
    return log.address, log.schema
