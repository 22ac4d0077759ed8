"""The checks of `bough doctor` on the machine of a server, and the check that its store is writable."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bough.errors import BoughError
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.events.stores.relational.store import RelationalEventStore
from bough.events.stores.sqlite import SqliteEventStore
from bough.health import Check, check_config, check_executors, check_models, check_tasks, check_versions
from bough.server.auth.keys import SERVER
from bough.settings import Settings
from bough.tasks.stores.relational import RelationalTaskStore

_KEPT_SECONDS = 10.0

_SPACE_BYTES = 1 << 20
"""Free space that a store needs: the maximum size of a message, since a full disk may still hold the probe."""


class MachineHealth:
    """The checks of one server. Running them starts a process in every sandbox that works.

    Args:
        tasks: The store of the tasks to count.
    """

    def __init__(
        self, settings: Settings, tasks: RelationalTaskStore, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._monotonic = monotonic
        self._looking = asyncio.Lock()
        self._found: tuple[Sequence[Check], float] | None = None

    async def look(self) -> Sequence[Check]:
        """Return the checks, at most ten seconds old; only `bough doctor` checks the rows of conversations."""
        async with self._looking:
            if self._found is None or self._monotonic() - self._found[1] > _KEPT_SECONDS:
                self._found = (await self._check(), self._monotonic())
            return self._found[0]

    async def _check(self) -> list[Check]:
        settings = self._settings
        try:
            tasks = await check_tasks(self._tasks)
        except BoughError as error:
            tasks = [Check("tasks", "rows", "broken", error.message, error.hint)]
        return [
            *await check_executors(settings.executor),
            *await asyncio.to_thread(lambda: list(check_models(settings, os.environ))),
            *tasks,
            *await asyncio.to_thread(check_config, settings),
            *await asyncio.to_thread(lambda: list(check_versions())),
        ]


async def is_writable(store: EventStore) -> bool:
    """Return whether the store can be written: no write has failed since the last call, or a probe succeeds."""
    if not isinstance(store, RelationalEventStore) or store.write_failure is None:
        return True
    if isinstance(store, SqliteEventStore) and not await asyncio.to_thread(_has_space, store.path.parent):
        return False
    try:
        await store.transaction(SERVER, _write_and_remove)
    except BoughError:
        return False
    store.write_failure = None
    return True


def _write_and_remove(tables: Tables) -> None:
    tables.run("server.add_probe")
    tables.run("server.remove_probe")


def _has_space(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            for _ in range(_SPACE_BYTES >> 16):  # written, not reserved: file systems may compress or share zeros
                if file.write(os.urandom(1 << 16)) < 1 << 16:
                    return False
            os.fsync(file.fileno())
    except OSError:
        return False
    return True
