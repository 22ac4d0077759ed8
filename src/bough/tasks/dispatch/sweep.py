"""What looks after tasks that nobody looks after: dead workers, deadlines, children of what has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from bough.errors import BoughError, Conflict, NotFound
from bough.events.beside import Tables
from bough.events.owner import is_gone
from bough.tasks.control import TaskControl
from bough.tasks.state import TaskState
from bough.tasks.store import LEASE_SECONDS
from bough.tasks.stores.rows import FORMAT, Move, find_row, give_job, move

if TYPE_CHECKING:
    from bough.tasks.worker import Worker

SWEEP_SECONDS = 1.0
"""How often every worker process looks."""

_SLOW_ROUNDS = 5
"""Of so many rounds one also looks for tasks whose conversation was decided without a broker."""


class SweepFindings(NamedTuple):
    """What one look found; ids of tasks."""

    lost: list[str]
    due: list[UUID]
    orphans: list[UUID]
    decided: list[UUID]


class Sweep:
    """Looks every second, for ever; each step is one statement over an index, then one transaction a row found.

    Args:
        queues: Tasks of these may run here.
        found: Told of a running task whose worker is gone and that may run here.
        by_clock: Also report leases that are over by the store's clock, for a process that looks once and exits.
    """

    def __init__(
        self, worker: Worker, *, queues: Collection[str], found: Callable[[str], None], by_clock: bool = False
    ) -> None:
        self._worker = worker
        self._queues = queues
        self._found = found
        self._by_clock = by_clock
        self._control = TaskControl(
            worker.store, owner=worker.owner, withdraw=worker.withdraw, on_stop=worker.note_stopped
        )
        self._round = 0
        self._seen: dict[str, tuple[tuple[str | None, int | None], float]] = {}

    async def run(self) -> None:
        """Look again and again. A store that is away is looked at again in a second."""
        while True:
            with suppress(BoughError):
                await self.once()
            await asyncio.sleep(SWEEP_SECONDS)

    async def once(self) -> None:
        """Look once, and do what is to be done.

        Raises:
            StoreError: The store cannot be read or written.
        """
        self._round += 1
        slow = self._round % _SLOW_ROUNDS == 0
        found = await self._worker.store.look(lambda tables: self._look(tables, slow=slow))
        for id in found.due:
            with suppress(Conflict, NotFound):  # it has moved on meanwhile: the next look sees where
                await self._control.time_out(id)
        for id in found.orphans:
            with suppress(Conflict, NotFound):
                await self._control.cancel(id, "parent ended")
        for id in found.decided:
            await self._change(id, self._wake)
        for task_id in found.lost:
            self._found(task_id)

    def _look(self, tables: Tables, *, slow: bool) -> SweepFindings:
        own = self._worker.active
        leases = {
            str(UUID(bytes=id)): (owner, expires)
            for id, queue, owner, expires in tables.run("task.running", format=FORMAT)
            if queue in self._queues
        }
        return SweepFindings(
            lost=[id for id in self._find_lost(leases, tables.now()) if id not in own],
            due=_ids(tables.run("task.due", now=tables.now())),
            orphans=_ids(tables.run("task.orphans", now=tables.now())),
            decided=_ids(tables.run("task.decided")) if slow else [],
        )

    def _find_lost(self, leases: dict[str, tuple[str | None, int | None]], store_now: int) -> list[str]:
        """Return the tasks whose worker is gone, or whose lease nobody has renewed for as long as it lasts.

        How long that is, is measured here by the monotonic clock: clocks of different machines do not matter. The claim
        that follows decides by the store's clock.
        """
        now = time.monotonic()
        self._seen = {id: self._seen[id] if self._is_known(id, lease) else (lease, now) for id, lease in leases.items()}
        return [
            id
            for id, ((owner, expires), since) in self._seen.items()
            if owner is None
            or is_gone(owner)
            or now - since >= LEASE_SECONDS
            or (self._by_clock and expires is not None and expires <= store_now)
        ]

    def _is_known(self, id: str, lease: tuple[str | None, int | None]) -> bool:
        return id in self._seen and self._seen[id][0] == lease

    async def _change(self, id: UUID, change: Callable[[Tables, UUID], None]) -> None:
        with suppress(Conflict):  # it has moved on meanwhile: the next look sees where
            await self._worker.store.change(lambda tables: change(tables, id))

    def _wake(self, tables: Tables, id: UUID) -> None:
        row = find_row(tables, id)
        if row is None or row.current is not TaskState.INPUT_REQUIRED:
            return
        if tables.get(row.conversation_id).status != "waiting_for_confirmation":
            give_job(tables, move(tables, row, TaskState.PENDING, Move(reason="decided")), self._worker.enqueue)


def _ids(rows: list[tuple[bytes, ...]]) -> list[UUID]:
    return [UUID(bytes=row[0]) for row in rows]
