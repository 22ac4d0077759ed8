"""Task stores in SQLite, in memory and in Postgres, and opening the one for a URL or an event store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bough.errors import InvalidInput
from bough.events import open_store
from bough.events.store import EventStore
from bough.settings import Settings
from bough.tasks.stores.relational import RelationalTaskStore

_SQLITE = "sqlite:///"


class TaskStoreSqlite(RelationalTaskStore):
    """Stores tasks in the file of a SQLite event store.

    Args:
        store: The event store or its URL; None uses the store of the settings.
    """

    async def _open_log(self) -> EventStore:
        return await open_store(self._given_log if isinstance(self._given_log, str) else Settings.load().store)


class TaskStoreMemory(TaskStoreSqlite):
    """Stores tasks in a temporary log, which is removed when the store is closed.

    Source: agentic_patterns.
    """

    def __init__(self) -> None:
        super().__init__("memory:")


class TaskStorePostgres(RelationalTaskStore):
    """Stores tasks in the schema of a Postgres event store.

    Args:
        store: The event store or its URL; None uses the store of the settings, which must be on Postgres.
    """

    _has_jobs = False

    async def open(self) -> EventStore:
        """Open the log, and create or upgrade the engine's tables.

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


def open_task_store(url: str) -> RelationalTaskStore:
    """Return the task store for the event store at a URL. The first call on it opens the event store."""
    if url.startswith(("postgres:", "postgresql:")):
        return TaskStorePostgres(url)
    return TaskStoreSqlite(url)


def tasks_in(log: EventStore) -> RelationalTaskStore:
    """Return the task store of an open event store, which the caller closes."""
    if log.url.startswith(("postgres:", "postgresql:")):
        return TaskStorePostgres(log)
    return TaskStoreSqlite(log)


def has_store(url: str) -> bool:
    """Whether a store can be at a URL; False for a SQLite file that does not exist."""
    return not url.startswith(_SQLITE) or Path(url.removeprefix(_SQLITE)).exists()
