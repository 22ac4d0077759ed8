"""Cancel, time out and pause existing tasks. One transaction each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from bough.errors import NotFound
from bough.events.model import PauseRequested
from bough.events.side_tables import Tables
from bough.tasks.model import Task
from bough.tasks.state import TaskState
from bough.tasks.stores.endings import Withdraw, cancels_children, find_woken_parent, list_open_children, stop_task
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import Move, TaskRow, find_live_row, read_task
from bough.tasks.stores.submission import require_row

DEADLINE = "deadline"
"""The reason of a task that was failed because its deadline had passed."""


class Stopped(NamedTuple):
    """A task after it was stopped, and its children that must be stopped too.

    Attributes:
        changed: Whether this call stopped the task; False if it had ended before.
        woken: The parent's task, if it waited for this one and may run now.
    """

    row: TaskRow
    task: Task
    children: list[UUID]
    changed: bool
    woken: str | None = None


def cancel_task(
    tables: Tables, id: UUID, reason: str, owner: str, withdraw: Withdraw | None, *, only_running: bool = False
) -> Stopped:
    """Cancel a task: fence its worker, pause its conversation and notify its parent.

    Args:
        only_running: Leave a task unchanged that is pending or asks for input.

    Raises:
        NotFound: There is no such task.
    """
    row = require_row(tables, id)
    # Read in this transaction: a task that ended meanwhile keeps its result instead of becoming CANCELLED.
    changed = row.current is TaskState.RUNNING if only_running else not row.is_terminal
    if changed:
        row = stop_task(tables, row, TaskState.CANCELLED, Move(reason=reason), owner, withdraw)
    return _describe_stopped(tables, row, changed=changed)


def time_out_task(tables: Tables, id: UUID, owner: str, withdraw: Withdraw | None) -> Stopped:
    """Fail a task whose deadline has passed, as `cancel_task` cancels one.

    Raises:
        NotFound: There is no such task.
    """
    row = require_row(tables, id)
    changed = not row.is_terminal
    if changed:
        details = Move(error="its deadline has passed", code="timeout", reason=DEADLINE)
        row = stop_task(tables, row, TaskState.FAILED, details, owner, withdraw)
    return _describe_stopped(tables, row, changed=changed)


def _describe_stopped(tables: Tables, row: TaskRow, *, changed: bool) -> Stopped:
    task = read_task(tables, row)
    children = list_open_children(tables, row) if changed or cancels_children(row) else []
    return Stopped(row, task, children, changed, find_woken_parent(tables, row))


def pause_conversation(
    tables: Tables, cid: UUID, request: PauseRequested, *, owner: str, withdraw: Withdraw | None
) -> UUID | None:
    """Ask the run of a conversation to stop. Cancels a task that is not running, and returns its id.

    A run reads the request from its log, in whichever process it is, and writes its final events itself.

    Raises:
        NotFound: There is no such conversation.
    """
    live = find_live_row(tables, tables.number(cid))
    if live is not None and live.current is not TaskState.RUNNING:
        stop_task(tables, live, TaskState.CANCELLED, Move(reason=request.reason), owner, withdraw)
        return UUID(bytes=live.id)
    if live is not None or tables.get(cid).status == "running":
        tables.append(cid, [request])
    return None


class TaskControl:
    """Stops tasks of a store, whichever process runs them.

    Args:
        owner: Recorded as the worker of the transitions.
        withdraw: Cancels the delivery of a task that has ended.
        on_stop: Called with each task after the transaction that stopped it or found it ended.
    """

    def __init__(
        self,
        store: RelationalTaskStore,
        *,
        owner: str,
        withdraw: Withdraw | None,
        on_stop: Callable[[Stopped], None],
    ) -> None:
        self._store = store
        self._owner = owner
        self._withdraw = withdraw
        self._on_stop = on_stop

    async def cancel(self, id: UUID, reason: str, *, only_running: bool = False) -> Task:
        """Cancel a task, then its open children, depth first, each in a separate transaction; return the task.

        Raises:
            NotFound: There is no such task.
        """
        await self._store.open()
        return await self._stop(
            lambda tables: cancel_task(tables, id, reason, self._owner, self._withdraw, only_running=only_running)
        )

    async def time_out(self, id: UUID) -> Task:
        """Fail a task whose deadline has passed, then cancel its open children; return the task.

        Raises:
            NotFound: There is no such task.
        """
        return await self._stop(lambda tables: time_out_task(tables, id, self._owner, self._withdraw))

    async def _stop(self, stop: Callable[[Tables], Stopped]) -> Task:
        stopped = await self._store.change(stop)
        # After the parent's commit: a parent that still ran could start another child behind the ones listed here.
        self._on_stop(stopped)
        for child in stopped.children:
            await self.cancel(child, "parent ended")
        return stopped.task

    async def cancel_all(self, owner: str | None) -> None:
        """Cancel every unfinished task of one owner's conversations; None cancels all."""
        rows = await self._store.look(lambda tables: tables.run("task.open_ids", owner=owner))
        for (id,) in rows:
            try:
                await self.cancel(UUID(bytes=id), "cancelled")
            except NotFound:
                continue  # deleted since the list was read

    async def pause(self, conversation: UUID, request: PauseRequested) -> UUID | None:
        """Ask the run of a conversation to stop; return the id of the task that this cancelled.

        Raises:
            NotFound: There is no such conversation.
        """
        await self._store.open()
        owner, withdraw = self._owner, self._withdraw
        return await self._store.change(
            lambda tables: pause_conversation(tables, conversation, request, owner=owner, withdraw=withdraw)
        )
