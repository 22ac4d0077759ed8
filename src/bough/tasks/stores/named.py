"""The task store of a URL."""

from __future__ import annotations

from pathlib import Path

from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.sqlite import TaskStoreSqlite

_SQLITE = "sqlite:///"


def open_task_store(url: str) -> RelationalTaskStore:
    """Return the tasks of the event store at a URL. Nothing is opened yet."""
    if url.startswith(("postgres:", "postgresql:")):
        from bough.tasks.stores.postgres import TaskStorePostgres

        return TaskStorePostgres(url)
    return TaskStoreSqlite(url)


def has_store(url: str) -> bool:
    """Whether there is a store that can be read; a file that is not there yet is none."""
    return not url.startswith(_SQLITE) or Path(url.removeprefix(_SQLITE)).exists()
