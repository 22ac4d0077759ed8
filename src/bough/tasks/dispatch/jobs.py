"""Reconcile jobs and rows: give pending tasks without a job a new one, delete jobs that no row names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from bough.errors import BoughError
from bough.events.side_tables import Tables
from bough.tasks.state import TaskState
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import FORMAT, Enqueue, find_row, read_task

JOB_SWEEP_SECONDS = 5.0
"""Interval of the sweep in each worker process."""


class Undelivered(NamedTuple):
    """A pending task without a waiting job.

    Attributes:
        job: The job that the row names, if any.
        is_fetched: Whether a worker has fetched that job. It is about to claim the row, unless it has died.
    """

    id: UUID
    job: int | None
    is_fetched: bool


class JobSweep:
    """Repeats the sweep. Each one takes a statement, then a transaction per row.

    Args:
        monotonic: A clock in seconds that never goes back.
    """

    def __init__(
        self, store: RelationalTaskStore, enqueue: Enqueue, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._enqueue = enqueue
        self._monotonic = monotonic
        self._taken_since: dict[tuple[UUID, int | None], float] = {}

    async def run(self) -> None:
        """Sweep for ever. An unavailable store is tried again at the next sweep."""
        while True:
            with suppress(BoughError):
                await self.once()
            await asyncio.sleep(JOB_SWEEP_SECONDS)

    async def once(self) -> None:
        """Sweep once.

        Raises:
            StoreError: The store cannot be read or written.
        """
        await self._store.change(forget_jobs)
        undelivered = await self._store.look(find_undelivered)
        for task in self._choose(undelivered):
            await self._store.change(lambda tables, task=task: renew_job(tables, task.id, task.job, self._enqueue))

    def _choose(self, undelivered: list[Undelivered]) -> list[Undelivered]:
        """Return the tasks that get a new job. A fetched job counts as lost only after `JOB_SWEEP_SECONDS`."""
        checked_at = self._monotonic()
        # Replaces the old dictionary, so that jobs that were claimed or deleted meanwhile start anew if fetched again.
        self._taken_since = {
            (task.id, task.job): self._taken_since.get((task.id, task.job), checked_at)
            for task in undelivered
            if task.is_fetched
        }
        return [
            task
            for task in undelivered
            if not task.is_fetched or checked_at - self._taken_since[(task.id, task.job)] >= JOB_SWEEP_SECONDS
        ]


def find_undelivered(tables: Tables) -> list[Undelivered]:
    """Return at most 100 pending tasks without a waiting job."""
    rows = tables.run("task.undelivered", format=FORMAT)
    return [Undelivered(UUID(bytes=id), job, bool(is_fetched)) for id, job, is_fetched in rows]


def forget_jobs(tables: Tables) -> int:
    """Delete at most 100 jobs that no row names and no worker runs; return how many."""
    return len(tables.run("task.forget_jobs"))


def renew_job(tables: Tables, id: UUID, job: int | None, enqueue: Enqueue) -> bool:
    """Give a task another job if it is still pending with `job`; return whether it got one."""
    row = find_row(tables, id)
    if row is None or row.current is not TaskState.PENDING or row.job != job or row.format > FORMAT:
        return False
    tables.run("task.set_job", k=row.k, job=enqueue(tables, read_task(tables, row)))
    return True
