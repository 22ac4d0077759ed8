"""The sweep for tasks that no worker attends to: dead workers, deadlines, children of ended tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from bough.errors import BoughError, Conflict, NotFound
from bough.events.owner import is_gone
from bough.events.side_tables import Tables
from bough.tasks.control import TaskControl
from bough.tasks.state import TaskState
from bough.tasks.store import LEASE_SECONDS
from bough.tasks.stores.rows import FORMAT, Move, find_row, give_job, move

if TYPE_CHECKING:
    from bough.tasks.worker import Worker

SWEEP_SECONDS = 1.0
"""Interval of the sweep in each worker process."""

_SWEEPS_PER_SLOW_SWEEP = 5
"""Every n-th sweep also looks for tasks whose calls were decided without a broker."""


class SweepFindings(NamedTuple):
    """Ids of the tasks that one sweep found."""

    lost: list[str]
    due: list[UUID]
    orphans: list[UUID]
    decided: list[UUID]


class Sweep:
    """Sweeps once a second. Each sweep takes a statement over an index per kind, then a transaction per row.

    Args:
        queues: Queues whose tasks may run here.
        on_lost: Called with a running task whose worker has died and that may run here.
        by_clock: Also report leases that have expired by the store's clock, for a process that sweeps once and exits.
    """

    def __init__(
        self, worker: Worker, *, queues: Collection[str], on_lost: Callable[[str], None], by_clock: bool = False
    ) -> None:
        self._worker = worker
        self._queues = queues
        self._on_lost = on_lost
        self._by_clock = by_clock
        self._control = TaskControl(
            worker.store, owner=worker.owner, withdraw=worker.withdraw, on_stop=worker.on_stopped
        )
        self._sweep_count = 0
        self._leases: dict[str, tuple[tuple[str | None, int | None], float]] = {}

    async def run(self) -> None:
        """Sweep for ever. An unavailable store is tried again at the next sweep."""
        while True:
            with suppress(BoughError):
                await self.once()
            await asyncio.sleep(SWEEP_SECONDS)

    async def once(self) -> None:
        """Sweep once.

        Raises:
            StoreError: The store cannot be read or written.
        """
        self._sweep_count += 1
        slow = self._sweep_count % _SWEEPS_PER_SLOW_SWEEP == 0
        findings = await self._worker.store.look(lambda tables: self._find_tasks(tables, slow=slow))
        for id in findings.due:
            with suppress(Conflict, NotFound):  # the task has changed or was deleted; the next sweep sees it again
                await self._control.time_out(id)
        for id in findings.orphans:
            with suppress(Conflict, NotFound):
                await self._control.cancel(id, "parent ended")
        for id in findings.decided:
            await self._change(id, self._resume_decided)
        for task_id in findings.lost:
            self._on_lost(task_id)

    def _find_tasks(self, tables: Tables, *, slow: bool) -> SweepFindings:
        own = self._worker.active
        leases = {
            str(UUID(bytes=id)): (owner, expires)
            for id, queue, owner, expires in tables.run("task.running", format=FORMAT)
            if queue in self._queues
        }
        return SweepFindings(
            lost=[id for id in self._find_lost(leases, tables.now()) if id not in own],
            due=_read_ids(tables.run("task.due", now=tables.now())),
            orphans=_read_ids(tables.run("task.orphans", now=tables.now())),
            decided=_read_ids(tables.run("task.decided")) if slow else [],
        )

    def _find_lost(self, leases: dict[str, tuple[str | None, int | None]], store_now: int) -> list[str]:
        """Return the tasks whose worker has died, or whose lease was not renewed for its whole length.

        The length is measured by this process's monotonic clock, so that differing machine clocks do not matter. The
        claim that follows checks the lease again, by the store's clock.
        """
        checked_at = time.monotonic()
        self._leases = {
            id: self._leases[id] if self._is_unchanged(id, lease) else (lease, checked_at)
            for id, lease in leases.items()
        }
        return [
            id
            for id, ((owner, expires), since) in self._leases.items()
            if owner is None
            or is_gone(owner)
            or checked_at - since >= LEASE_SECONDS
            or (self._by_clock and expires is not None and expires <= store_now)
        ]

    def _is_unchanged(self, id: str, lease: tuple[str | None, int | None]) -> bool:
        return id in self._leases and self._leases[id][0] == lease

    async def _change(self, id: UUID, change: Callable[[Tables, UUID], None]) -> None:
        with suppress(Conflict):  # the task has changed; the next sweep sees it again
            await self._worker.store.change(lambda tables: change(tables, id))

    def _resume_decided(self, tables: Tables, id: UUID) -> None:
        """Make a task pending whose waiting calls were all decided without a broker."""
        row = find_row(tables, id)
        if row is None or row.current is not TaskState.INPUT_REQUIRED:
            return
        if tables.get(row.conversation_id).status != "waiting_for_confirmation":
            give_job(tables, move(tables, row, TaskState.PENDING, Move(reason="decided")), self._worker.enqueue)


def _read_ids(rows: list[tuple[bytes, ...]]) -> list[UUID]:
    return [UUID(bytes=row[0]) for row in rows]
