"""Tasks in a folder of their own, with a JSON file a task for people to look at."""

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
from bough.events.beside import Beside, Tables
from bough.events.model import TaskChanged
from bough.events.record import StoredEvent
from bough.events.store import EventStore
from bough.settings import Settings
from bough.tasks.model import Task
from bough.tasks.stores.rows import find_row, parse_id, read_task
from bough.tasks.stores.sqlite import TaskStoreSqlite
from bough.tasks.stores.summary import TASKS

T = TypeVar("T")

LOG = logging.getLogger("bough.task")


class TaskStoreJson(TaskStoreSqlite):
    """Tasks in `<directory>/log.db`, and after each commit `<id>.json` of every task that it changed.

    The files are copies: nothing reads them. So a torn or foreign file harms nothing, and the next transition of its
    task writes it anew, whole. A task's events are in the log: `bough tasks logs`.

    Args:
        directory: Made at the first call; None takes `tasks` in the home folder.

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
        """Open the log, and copy what is changed from here on. See `TaskStore.open`.

        Raises:
            StoreError: The folder cannot be made or written.
        """
        try:
            await asyncio.to_thread(self.directory.mkdir, parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_write(self.directory, error) from error
        log = await super().open()
        log.follow(TASKS, {"TaskChanged"}, self._note)
        if self._follower is None:
            self._follower = asyncio.create_task(self._follow(log), name="copies of tasks")
        return log

    async def change(self, change: Callable[[Tables], T], *, beside: Collection[Beside] = ()) -> T:
        """Run a change, and copy the tasks that it changed. See `RelationalTaskStore.change`."""
        result = await super().change(change, beside=beside)
        await self._write_copies()
        return result

    async def delete(self, task_id: str) -> None:
        """Delete a task, its conversation and its copy. See `TaskStore.delete`."""
        await super().delete(task_id)
        id = parse_id(task_id) or UUID(int=0)
        self._changed.pop(id, None)
        async with self._writing:
            with suppress(OSError):
                (self.directory / f"{id}.json").unlink(missing_ok=True)

    async def aclose(self) -> None:
        """Write what is left to copy, and close the log."""
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
            await self._write_copies()
        await super().aclose()

    def _note(self, tables: Tables, conversation: UUID, stored: StoredEvent) -> None:
        """Remember a task whose transition is being appended, by whoever does it in this process: a run, too."""
        if isinstance(event := stored.event, TaskChanged) and (id := parse_id(event.task_id)) is not None:
            self._changed[id] = stored.seq

    async def _follow(self, log: EventStore) -> None:
        """Copy what was changed past this object: by a run that ended, in this process."""
        async for _ in log.commits():
            with suppress(StoreError):  # the store is away: the next commit comes again
                await self._write_copies()

    async def _write_copies(self) -> None:
        """Write the copies of the tasks that were changed here since the last time: one file each."""
        if not self._changed and not self._writing.locked():
            return
        # Whoever waits may be cancelled; a copy that was begun is written all the same, before the next one.
        copying = asyncio.create_task(self._copy_all(), name="copies of tasks")
        self._copying.add(copying)
        copying.add_done_callback(self._copying.discard)
        await asyncio.shield(copying)

    async def _copy_all(self) -> None:
        async with self._writing:  # an older copy never comes after a newer one
            for id, seq in list(self._changed.items()):
                task = await self.look(lambda tables, id=id, seq=seq: _read(tables, id, seq))
                if task is None:
                    continue  # noted inside a transaction that has not been committed: the next commit comes again
                if self._changed.get(id) == seq:
                    del self._changed[id]
                try:
                    await asyncio.to_thread(write_copy, self.directory / f"{id}.json", task)
                except StoreError as error:  # the task is as it is: only its copy is not
                    LOG.warning("no copy of task %s: %s", id, error.message)


def write_copy(path: Path, task: Task) -> None:
    """Write a task to a file: whole or not at all, without its events. Blocks.

    Raises:
        StoreError: It cannot be written.
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
    """Return a task whose transition at `seq` can be seen; None where it cannot."""
    row = find_row(tables, id)
    return None if row is None or row.last < seq else read_task(tables, row)


def _cannot_write(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path} cannot be written: {error.strerror}", hint="free space, or give another folder")
