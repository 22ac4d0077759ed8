"""Open task stores by URL or event store."""

from __future__ import annotations

from pathlib import Path

from bough.events.store import EventStore
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.sqlite import TaskStoreSqlite

_SQLITE = "sqlite:///"


def open_task_store(url: str) -> RelationalTaskStore:
    """Return the task store for the event store at a URL. The first call on it opens the event store."""
    if url.startswith(("postgres:", "postgresql:")):
        from bough.tasks.stores.postgres import TaskStorePostgres

        return TaskStorePostgres(url)
    return TaskStoreSqlite(url)


def tasks_in(log: EventStore) -> RelationalTaskStore:
    """Return the task store of an open event store, which the caller closes."""
    if log.url.startswith(("postgres:", "postgresql:")):
        from bough.tasks.stores.postgres import TaskStorePostgres

        return TaskStorePostgres(log)
    return TaskStoreSqlite(log)


def has_store(url: str) -> bool:
    """Whether a store can be at a URL; False for a SQLite file that does not exist."""
    return not url.startswith(_SQLITE) or Path(url.removeprefix(_SQLITE)).exists()
