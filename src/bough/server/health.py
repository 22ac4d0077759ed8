"""The checks of `bough doctor` on the machine of a server, kept for ten seconds."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence

from bough.errors import BoughError
from bough.health import Check, check_config, check_executors, check_models, check_tasks, check_versions
from bough.settings import Settings
from bough.tasks.stores.relational import RelationalTaskStore

_KEPT_SECONDS = 10.0


class MachineHealth:
    """The checks of one server. Running them starts a process in every sandbox that works.

    Args:
        tasks: The store whose tasks are counted.
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
