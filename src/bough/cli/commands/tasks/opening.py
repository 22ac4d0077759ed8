"""Opening the tasks of the settings' store, for commands about them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.errors import NotFound

if TYPE_CHECKING:
    from bough.tasks import Task
    from bough.tasks.stores.relational import RelationalTaskStore

TaskId = Annotated[str, typer.Argument(metavar="ID", help="A task: its id, a unique part of it, or - for the latest.")]
TaskIds = Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Tasks, as shown by `bough tasks list`.")]


@asynccontextmanager
async def open_tasks(home: str | None, store: str | None) -> AsyncGenerator[RelationalTaskStore | None]:
    """Open the tasks of the settings' store; None where there is no store yet."""
    from bough.tasks.stores.backends import has_store, open_task_store

    url = options.settings_of(home, store).store
    if not has_store(url):
        yield None
        return
    tasks = open_task_store(url)
    try:
        yield tasks
    finally:
        await tasks.aclose()


@asynccontextmanager
async def open_existing(home: str | None, store: str | None) -> AsyncGenerator[RelationalTaskStore]:
    """Open the tasks of the settings' store.

    Raises:
        NotFound: There is no store yet.
    """
    async with open_tasks(home, store) as tasks:
        if tasks is None:
            raise NotFound("there are no tasks yet", hint='bough run --detach "…" submits one')
        yield tasks


async def get_task(tasks: RelationalTaskStore, name: str) -> Task:
    """Return the task that a name stands for, with its events. Raises: see `RelationalTaskStore.resolve`."""
    task = await tasks.get(await tasks.resolve(name))
    assert task is not None  # noqa: S101 - it was there a moment ago
    return task
