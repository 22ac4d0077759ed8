"""In-process dispatch, woken by commits of any process. A timer is only used for tasks that may not start yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from bough.errors import BoughError
from bough.events.integrity import IntegrityFinding
from bough.events.side_tables import Tables
from bough.tasks.dispatch.sweep import Sweep
from bough.tasks.model import Task
from bough.tasks.stores.claims import find_next_row

if TYPE_CHECKING:
    from bough.tasks.store import Claim
    from bough.tasks.worker import Worker

_RETRY_SECONDS = 1.0
"""Delay before the next claim, after a claim that failed or found the store unavailable."""


class LocalDispatcher:
    """Runs tasks in this process. On SQLite, any number of processes share one file.

    Args:
        claims_pending: Whether to claim pending tasks from queues. False if an engine delivers them, so that only
            tasks passed to `want` are claimed.

    Attributes:
        requested: Ids of tasks to run here whatever their queue. Those that cannot be claimed are dropped.
    """

    name = version = "in process"

    def __init__(self, *, claims_pending: bool = True) -> None:
        self.requested: deque[str] = deque()
        self._claims_pending = claims_pending
        self._queues: Collection[str] = ()
        self._woken = asyncio.Event()

    def enqueue(self, tables: Tables, task: Task) -> int | None:
        """Do nothing: workers look for rows."""
        return None

    def withdraw(self, tables: Tables, job: int) -> None:
        """Do nothing: tasks have no jobs."""

    async def check(self) -> list[IntegrityFinding]:
        """Return no findings: this dispatcher has no tables."""
        return []

    def wake(self) -> None:
        """Look for tasks now."""
        self._woken.set()

    def want(self, task_id: str, queue: str | None = None) -> None:
        """Run a task in this process."""
        if queue is None or queue not in self._queues:  # a task of a served queue is claimed in its turn, by priority
            self.requested.append(task_id)
        self.wake()

    async def run(self, worker: Worker, *, queues: Collection[str], concurrency: int, stopping: asyncio.Event) -> None:
        """Run tasks until `stopping` is set, then wait for the running ones."""
        log = await worker.store.open()
        self._queues = queues
        sweep = Sweep(worker, queues=queues, on_lost=self.want)
        background = [
            asyncio.create_task(self._listen(log.commits(appends=False)), name="commits of the task store"),
            asyncio.create_task(sweep.run(), name="sweep of tasks"),
            asyncio.create_task(_set_when(stopping, self._woken), name="stop of a dispatcher"),
        ]
        running: set[asyncio.Task[None]] = set()
        try:
            while not stopping.is_set():
                self._woken.clear()  # before claiming: a commit during the claim sets it again
                wait = await self._start_tasks(worker, queues, concurrency, running, stopping)
                with suppress(TimeoutError):  # also set by commits and by the end of each run
                    await asyncio.wait_for(self._woken.wait(), wait)
            while running:
                await asyncio.wait(running)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    async def _start_tasks(
        self,
        worker: Worker,
        queues: Collection[str],
        concurrency: int,
        running: set[asyncio.Task[None]],
        stopping: asyncio.Event,
    ) -> float | None:
        """Claim and start tasks while there is room; return the seconds until another becomes due, if any."""
        while len(running) < concurrency and not stopping.is_set():
            try:
                claim, seconds = await self._claim(worker, queues)
            except BoughError:
                return _RETRY_SECONDS
            if claim is None:
                return seconds
            task = worker.start(claim)
            running.add(task)
            task.add_done_callback(running.discard)
            task.add_done_callback(lambda _: self.wake())
        return None

    async def _claim(self, worker: Worker, queues: Collection[str]) -> tuple[Claim | None, float | None]:
        """Claim a task. Returns the claim, if any, and the seconds until the next attempt; None if no task waits."""
        while self.requested:
            claim = await worker.claim_task(self.requested.popleft())
            if claim is not None:
                return claim, None
        if not queues or not self._claims_pending:
            return None, None
        seconds = await worker.store.look(lambda tables: _seconds_until_ready(tables, queues), small=True)
        if seconds != 0:
            return None, seconds
        # If another worker was faster, the delay is cut short by its commit.
        return await worker.claim_next(queues), _RETRY_SECONDS

    async def _listen(self, commits: object) -> None:
        async for _ in commits:  # pyright: ignore
            self.wake()


def _seconds_until_ready(tables: Tables, queues: Collection[str]) -> float | None:
    """Return the seconds until a task can be claimed: 0 if one can be now, None if none is waiting.

    Runs in a read transaction, so that an idle worker never blocks writers.
    """
    if find_next_row(tables, queues) is not None:
        return 0
    row = tables.one("task.earliest")
    if row is None or row[0] is None:
        return None
    return max(row[0] - tables.now(), 0) / 1_000_000


async def _set_when(event: asyncio.Event, other: asyncio.Event) -> None:
    """Set `other` as soon as `event` is set."""
    await event.wait()
    other.set()
