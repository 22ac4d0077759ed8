"""Dispatch in one process: woken by commits, its own and other processes'; a timer only for what may not start yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from bough.errors import BoughError
from bough.events.beside import Tables
from bough.events.integrity import IntegrityFinding
from bough.tasks.dispatch.sweep import Sweep
from bough.tasks.model import Task
from bough.tasks.stores.claims import look_next

if TYPE_CHECKING:
    from bough.tasks.store import Claim
    from bough.tasks.worker import Worker

_AWAY_SECONDS = 1.0
"""How long after the store was away it is asked again."""


class LocalDispatcher:
    """Runs tasks in this process. On SQLite any number of processes do so with one file.

    Args:
        takes_waiting: False: what waits in queues is brought by an engine; only what is wanted here is claimed.

    Attributes:
        wanted: Ids of tasks to be run here whatever their queue; what cannot be claimed is dropped.
    """

    name = version = "in process"

    def __init__(self, *, takes_waiting: bool = True) -> None:
        self.wanted: deque[str] = deque()
        self._takes_waiting = takes_waiting
        self._queues: Collection[str] = ()
        self._woken = asyncio.Event()

    def enqueue(self, tables: Tables, task: Task) -> int | None:
        """Do nothing: the row is what is looked for."""
        return None

    def withdraw(self, tables: Tables, job: int) -> None:
        """Do nothing: there is no job."""

    async def check(self) -> list[IntegrityFinding]:
        """Find nothing: there are no tables of its own."""
        return []

    def wake(self) -> None:
        """Look for tasks now."""
        self._woken.set()

    def want(self, task_id: str, queue: str | None = None) -> None:
        """Run a task here, whatever its queue. See `Dispatcher.want`."""
        if queue is None or queue not in self._queues:  # else its turn comes by priority
            self.wanted.append(task_id)
        self.wake()

    async def run(self, worker: Worker, *, queues: Collection[str], concurrency: int, stopping: asyncio.Event) -> None:
        """Run tasks until `stopping` is set, then wait for those that run. See `Dispatcher.run`."""
        log = await worker.store.open()
        self._queues = queues
        sweep = Sweep(worker, queues=queues, found=self.want)
        helpers = [
            asyncio.create_task(self._listen(log.commits(appends=False)), name="commits of the task store"),
            asyncio.create_task(sweep.run(), name="sweep of tasks"),
            asyncio.create_task(_set_when(stopping, self._woken), name="stop of a dispatcher"),
        ]
        running: set[asyncio.Task[None]] = set()
        try:
            while not stopping.is_set():
                self._woken.clear()
                wait = await self._fill(worker, queues, concurrency, running, stopping)
                await self._wait(running, wait, full=len(running) >= concurrency)
            while running:
                await asyncio.wait(running)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _fill(
        self,
        worker: Worker,
        queues: Collection[str],
        concurrency: int,
        running: set[asyncio.Task[None]],
        stopping: asyncio.Event,
    ) -> float | None:
        """Claim and start tasks while there is room; return the seconds until another may become due, if one will."""
        while len(running) < concurrency and not stopping.is_set():
            try:
                claim, seconds = await self._claim(worker, queues)
            except BoughError:
                return _AWAY_SECONDS
            if claim is None:
                return seconds
            task = worker.start(claim)
            running.add(task)
            task.add_done_callback(running.discard)
            task.add_done_callback(lambda _: self.wake())
        return None

    async def _claim(self, worker: Worker, queues: Collection[str]) -> tuple[Claim | None, float | None]:
        """Claim a task; without one, return the seconds until one may become due, None where none waits."""
        while self.wanted:
            claim = await worker.claim_task(self.wanted.popleft())
            if claim is not None:
                return claim, None
        if not queues or not self._takes_waiting:
            return None, None
        seconds = await worker.store.look(lambda tables: _seconds_until_ready(tables, queues), small=True)
        if seconds != 0:
            return None, seconds
        return await worker.claim_next(queues), _AWAY_SECONDS  # if another worker was faster, its commits wake this one

    async def _wait(self, running: set[asyncio.Task[None]], seconds: float | None, *, full: bool) -> None:
        """Wait for a commit, for the end of a run, or until something may have become due."""
        del running, full  # the end of a run wakes, too
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)

    async def _listen(self, commits: object) -> None:
        async for _ in commits:  # pyright: ignore
            self.wake()


def _seconds_until_ready(tables: Tables, queues: Collection[str]) -> float | None:
    """Return the seconds until something can be claimed: 0 for now, None where nothing waits.

    It is read beside writers, so that looking for nothing costs no transaction.
    """
    if look_next(tables, queues) is not None:
        return 0
    row = tables.one("task.earliest")
    if row is None or row[0] is None:
        return None
    return max(row[0] - tables.now(), 0) / 1_000_000


async def _set_when(event: asyncio.Event, other: asyncio.Event) -> None:
    await event.wait()
    other.set()
