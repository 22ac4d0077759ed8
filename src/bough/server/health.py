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

_CACHE_SECONDS = 10.0

_SPACE_BYTES = 1 << 20
"""Free space that a writable store needs: the maximum size of a message. The probe alone may fit on a full disk."""


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
        self._lock = asyncio.Lock()
        self._checks: Sequence[Check] = ()
        self._checked_at: float | None = None

    async def check(self) -> Sequence[Check]:
        """Return the results, at most ten seconds old. Rows of conversations are checked by `bough doctor` only."""
        async with self._lock:
            if self._checked_at is None or self._monotonic() - self._checked_at > _CACHE_SECONDS:
                self._checks = await self._run_checks()
                self._checked_at = self._monotonic()
            return self._checks

    async def _run_checks(self) -> list[Check]:
        settings = self._settings
        try:
            task_checks = await check_tasks(self._tasks)
        except BoughError as error:
            task_checks = [Check("tasks", "rows", "broken", error.message, error.hint)]
        return [
            *await check_executors(settings.executor),
            *await asyncio.to_thread(lambda: list(check_models(settings, os.environ))),
            *task_checks,
            *await asyncio.to_thread(check_config, settings),
            *await asyncio.to_thread(lambda: list(check_versions())),
        ]


async def is_writable(store: EventStore) -> bool:
    """Whether the store can be written: no write failed since the last successful probe, or a new probe succeeds."""
    if not isinstance(store, RelationalEventStore) or store.write_failure is None:
        return True
    if isinstance(store, SqliteEventStore) and not await asyncio.to_thread(_has_space, store.path.parent):
        return False
    try:
        await store.transaction(SERVER, _add_and_remove_probe)
    except BoughError:
        return False
    store.write_failure = None
    return True


def _add_and_remove_probe(tables: Tables) -> None:
    tables.run("server.add_probe")
    tables.run("server.remove_probe")


def _has_space(folder: Path) -> bool:
    """Whether a mebibyte can be written to the file system of a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            for _ in range(_SPACE_BYTES >> 16):  # random bytes: a file system may compress zeros
                if file.write(os.urandom(1 << 16)) < 1 << 16:
                    return False
            os.fsync(file.fileno())
    except OSError:
        return False
    return True
