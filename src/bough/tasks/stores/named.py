"""The task store of a URL."""

from __future__ import annotations

from pathlib import Path

from bough.events.store import EventStore
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.sqlite import TaskStoreSqlite

_SQLITE = "sqlite:///"


def open_task_store(url: str) -> RelationalTaskStore:
    """Return the tasks of the event store at a URL. Nothing is opened yet."""
    if url.startswith(("postgres:", "postgresql:")):
        from bough.tasks.stores.postgres import TaskStorePostgres

        return TaskStorePostgres(url)
    return TaskStoreSqlite(url)


def tasks_in(log: EventStore) -> RelationalTaskStore:
    """Return the tasks of an event store that is open; it stays the caller's to close."""
    if log.url.startswith(("postgres:", "postgresql:")):
        from bough.tasks.stores.postgres import TaskStorePostgres

        return TaskStorePostgres(log)
    return TaskStoreSqlite(log)


def has_store(url: str) -> bool:
    """Whether there is a store that can be read; a file that is not there yet is none."""
    return not url.startswith(_SQLITE) or Path(url.removeprefix(_SQLITE)).exists()
