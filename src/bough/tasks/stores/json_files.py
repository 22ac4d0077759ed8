"""A task store in a folder, which also writes a readable JSON file for each task."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeVar
from uuid import UUID

from bough.errors import StoreError
from bough.events.model import TaskChanged
from bough.events.record import StoredEvent
from bough.events.side_tables import SideTables, Tables
from bough.events.store import EventStore
from bough.settings import Settings
from bough.tasks.model import Task
from bough.tasks.stores.backends import TaskStoreSqlite
from bough.tasks.stores.rows import find_row, parse_id, read_task
from bough.tasks.stores.summary import TASKS

T = TypeVar("T")

LOG = logging.getLogger("bough.task")


class TaskStoreJson(TaskStoreSqlite):
    """Stores tasks in `<directory>/log.db`, and writes `<id>.json` for every task that a commit changed.

    The files are copies that bough never reads, so a damaged or foreign file does no harm; the next transition of its
    task replaces it. The events of a task are in the log: `bough tasks logs`.

    Args:
        directory: Created by the first call; None uses `tasks` in the home folder.

    Source: agentic_patterns.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        self.directory = Settings.load().home / "tasks" if directory is None else Path(directory)
        super().__init__(f"sqlite:///{self.directory.absolute() / 'log.db'}")
        self._changed: dict[UUID, int] = {}
        self._writing = asyncio.Lock()
        self._copying = set[asyncio.Task[None]]()
        self._follower: asyncio.Task[None] | None = None

    async def open(self) -> EventStore:
        """Open the log, and start copying changed tasks.

        Raises:
            StoreError: The folder cannot be created or written.
        """
        try:
            await asyncio.to_thread(self.directory.mkdir, parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_write(self.directory, error) from error
        log = await super().open()
        log.on_append(TASKS, {"TaskChanged"}, self._mark_changed)
        if self._follower is None:
            self._follower = asyncio.create_task(self._follow(log), name="copies of tasks")
        return log

    async def change(self, change: Callable[[Tables], T], *, side_tables: Collection[SideTables] = ()) -> T:
        """Run a change and copy the changed tasks."""
        result = await super().change(change, side_tables=side_tables)
        await self._write_copies()
        return result

    async def delete(self, task_id: str) -> None:
        """Delete a task, its conversation and its copy."""
        await super().delete(task_id)
        id = parse_id(task_id) or UUID(int=0)
        self._changed.pop(id, None)
        async with self._writing:
            with suppress(OSError):
                (self.directory / f"{id}.json").unlink(missing_ok=True)

    async def aclose(self) -> None:
        """Write the remaining copies and close the log."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
            await self._write_copies()
        await super().aclose()

    def _mark_changed(self, tables: Tables, conversation: UUID, stored: StoredEvent) -> None:
        """Remember a task with a new transition, also one that a run in this process appends."""
        if isinstance(event := stored.event, TaskChanged) and (id := parse_id(event.task_id)) is not None:
            self._changed[id] = stored.seq

    async def _follow(self, log: EventStore) -> None:
        """Copy tasks that were not changed through `change`: by runs that end in this process."""
        async for _ in log.commits():
            with suppress(StoreError):  # unavailable: the next commit tries again
                await self._write_copies()

    async def _write_copies(self) -> None:
        """Write the copies of the tasks that changed here since the last call, one file each."""
        if not self._changed and not self._writing.locked():
            return
        # Shielded: cancelling the caller must not interrupt a copy that has started, or the task would lack one.
        copying = asyncio.create_task(self._copy_all(), name="copies of tasks")
        self._copying.add(copying)
        copying.add_done_callback(self._copying.discard)
        await asyncio.shield(copying)

    async def _copy_all(self) -> None:
        async with self._writing:  # one at a time, so that an older copy never replaces a newer one
            for id, seq in list(self._changed.items()):
                task = await self.look(lambda tables, id=id, seq=seq: _read(tables, id, seq))
                if task is None:
                    continue  # its transaction has not committed; that commit tries again
                if self._changed.get(id) == seq:  # else it changed again meanwhile, and needs another copy
                    del self._changed[id]
                try:
                    await asyncio.to_thread(write_copy, self.directory / f"{id}.json", task)
                except StoreError as error:  # only the copy is missing; the task is stored
                    LOG.warning("no copy of task %s: %s", id, error.message)


def write_copy(path: Path, task: Task) -> None:
    """Write a task to a file atomically, without its events. Blocks.

    Raises:
        StoreError: The file cannot be written.
    """
    text = json.dumps(task.model_dump(mode="json", exclude={"events"}), ensure_ascii=False, indent=2)
    try:
        with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
            file.write(text.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _read(tables: Tables, id: UUID, seq: int) -> Task | None:
    """Return a task if its transition at `seq` is committed; None otherwise."""
    row = find_row(tables, id)
    return None if row is None or row.last < seq else read_task(tables, row)


def _cannot_write(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be written: {error.strerror}", hint="free space, or give another folder")
