"""Run the tasks of an engine's jobs in the process that receives them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from bough.errors import BoughError
from bough.tasks.dispatch.jobs import renew_job
from bough.tasks.stores.endings import find_current
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import Enqueue, parse_id

if TYPE_CHECKING:
    from bough.tasks.worker import Worker

LOG = logging.getLogger("bough.task")

WhyStopped: TypeAlias = Literal["engine ends", "job aborted"]
"""Why the engine cancels a job."""


class Delivery:
    """Runs the tasks that jobs name, at most `concurrency` at once over all restarts of the engine.

    A task goes on when the engine that delivered it ends, so that a restarted server or an added queue interrupts no
    task.
    """

    def __init__(
        self, store: RelationalTaskStore, worker: Worker, enqueue: Enqueue, concurrency: int, stopping: asyncio.Event
    ) -> None:
        self.concurrency = concurrency
        self._store = store
        self._worker = worker
        self._enqueue = enqueue
        self._slots = asyncio.Semaphore(concurrency)
        self._stopping = stopping
        self._runs: set[asyncio.Task[None]] = set()

    async def deliver(self, task_id: str, job: int | None, why: Callable[[], WhyStopped | None]) -> None:
        """Run the task of a job. Returns when the run or the engine ends.

        Args:
            why: Returns why the engine cancelled the job; None if something else cancelled it.
        """
        run = asyncio.create_task(self._run(task_id, job), name=f"delivered task {task_id}")
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        while not run.done():
            try:
                await asyncio.wait({run})
            except asyncio.CancelledError:
                reason = why()
                if reason is None:
                    raise
                # The engine's cancellation ends the job, not the run: left counted, it would end the next await too.
                if (current := asyncio.current_task()) is not None:
                    current.uncancel()
                if reason == "engine ends":
                    return
                await self._stop_lost(task_id)

    async def finish(self) -> None:
        """Wait for the running tasks."""
        while self._runs:
            await asyncio.wait(self._runs)

    async def _run(self, task_id: str, job: int | None) -> None:
        async with self._slots:
            try:
                claim = None if self._stopping.is_set() else await self._worker.claim_task(task_id)
                if claim is None:
                    await self._renew(task_id, job)
                    return
            except BoughError as error:  # the job sweep finds the row and gives it another job
                LOG.warning("task %s could not be claimed: %s", task_id, error.message)
                return
            await self._worker.run(claim)

    async def _renew(self, task_id: str, job: int | None) -> None:
        """Replace the job of a task that cannot run here now, since the engine considers this job done."""
        id = parse_id(task_id)
        if id is not None and job is not None:
            await self._store.change(lambda tables: renew_job(tables, id, job, self._enqueue))

    async def _stop_lost(self, task_id: str) -> None:
        """Stop a run whose claim was ended by another process. An aborted job alone does not stop its run.

        This is the second signal of a cancellation, in addition to the tail of the log.
        """
        active = self._worker.active.get(task_id)
        if active is None:
            return
        id, lease = active.ending.id, active.claim.lease
        with suppress(BoughError):
            if await self._store.look(lambda tables: find_current(tables, id, lease)) is None:
                active.stop("fenced")
