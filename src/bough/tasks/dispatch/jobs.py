"""Jobs and rows brought together: tasks that wait without a job get one, jobs that no row names are deleted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from bough.errors import BoughError
from bough.events.beside import Tables
from bough.tasks.state import TaskState
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import FORMAT, Enqueue, find_row, read_task

JOB_SWEEP_SECONDS = 5.0
"""How often every worker process looks."""


class Undelivered(NamedTuple):
    """A task that waits, and whose job does not.

    Attributes:
        job: The job that the row names, if any.
        is_taken: Whether a worker has taken that job: it is about to claim the row, unless it died.
    """

    id: UUID
    job: int | None
    is_taken: bool


class JobSweep:
    """Looks again and again; each step is one statement, then one transaction a row found.

    Args:
        monotonic: Seconds that only grow.
    """

    def __init__(
        self, store: RelationalTaskStore, enqueue: Enqueue, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._enqueue = enqueue
        self._monotonic = monotonic
        self._taken: dict[tuple[UUID, int | None], float] = {}

    async def run(self) -> None:
        """Look for ever. A store that is away is looked at again next time."""
        while True:
            with suppress(BoughError):
                await self.once()
            await asyncio.sleep(JOB_SWEEP_SECONDS)

    async def once(self) -> None:
        """Look once, and do what is to be done.

        Raises:
            StoreError: The store cannot be read or written.
        """
        await self._store.change(forget_jobs)
        found = await self._store.look(find_undelivered)
        for task in self._choose(found):
            await self._store.change(lambda tables, task=task: renew_job(tables, task.id, task.job, self._enqueue))

    def _choose(self, found: list[Undelivered]) -> list[Undelivered]:
        """Return the tasks that get a job: those whose job somebody took only when he has had it for a while."""
        now = self._monotonic()
        self._taken = {
            (task.id, task.job): self._taken.get((task.id, task.job), now) for task in found if task.is_taken
        }
        return [
            task for task in found if not task.is_taken or now - self._taken[(task.id, task.job)] >= JOB_SWEEP_SECONDS
        ]


def find_undelivered(tables: Tables) -> list[Undelivered]:
    """Return tasks that wait and have no job that does, at most 100."""
    rows = tables.run("task.undelivered", format=FORMAT)
    return [Undelivered(UUID(bytes=id), job, bool(is_taken)) for id, job, is_taken in rows]


def forget_jobs(tables: Tables) -> int:
    """Delete jobs that no row names and nobody runs; return how many, at most 100 at once."""
    return len(tables.run("task.forget_jobs"))


def renew_job(tables: Tables, id: UUID, job: int | None, enqueue: Enqueue) -> bool:
    """Give a task another job, if it still waits and names the one that was looked at; return whether it got one."""
    row = find_row(tables, id)
    if row is None or row.current is not TaskState.PENDING or row.job != job or row.format > FORMAT:
        return False
    tables.run("task.set_job", k=row.k, job=enqueue(tables, read_task(tables, row)))
    return True
