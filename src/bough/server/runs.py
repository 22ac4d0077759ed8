"""Runs requested by clients. Each run is a task, which this server's broker or a worker process runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from bough.conversation import Delta, State
from bough.conversation.log.listeners import Update
from bough.errors import NotFound
from bough.events.model import Event, ModelResponded, UserMessage
from bough.events.record import ConversationRecord
from bough.events.side_tables import Tables
from bough.server.auth.caller import Caller
from bough.server.bodies.info import RunInfo
from bough.server.bounds.quotas import PAYER
from bough.server.live.broadcast import Broadcasts
from bough.server.metrics import Metrics
from bough.tasks import Task, TaskBroker, TaskEvent, TaskState
from bough.tasks.notify import has_stopped
from bough.tasks.stores.rows import TaskRow, find_latest_row, find_live_row, read_task
from bough.tasks.worker import ActiveRun

_MAX_SMALL = 128
"""The runs of up to this many conversations are looked up on the event loop."""


class Runs:
    """The broker's operations for routes.

    Args:
        broker: Not entered yet; `open` enters it, and draining leaves it.
        broadcasts: Receive the pieces of responses of the runs in this process.
        takes_tasks: Whether this process runs tasks; False if only workers do.
    """

    def __init__(self, broker: TaskBroker, metrics: Metrics, broadcasts: Broadcasts, *, takes_tasks: bool) -> None:
        self.broker = broker
        self._metrics = metrics
        self._broadcasts = broadcasts
        self._takes_tasks = takes_tasks
        self._drain_task: asyncio.Task[None] | None = None
        self._drain_started = asyncio.Event()
        metrics.runs.labels("running").set_function(lambda: len(broker.worker.active))
        broker.worker.on_update.append(self._take_update)
        broker.worker.on_end.append(self._take_end)

    async def open(self) -> None:
        """Start running tasks, if this process does."""
        await self.broker.store.open()
        if self._takes_tasks:
            await self.broker.__aenter__()

    def drain(self, seconds: float) -> None:
        """Take no more tasks, and hand over running tasks at the end of their step, or after `seconds`."""
        if self._drain_task is None:
            self._drain_started.set()
            self._drain_task = asyncio.create_task(self.broker.drain(seconds), name="drain of runs")

    def hand_over_now(self) -> None:
        """Hand over running tasks at once, and kill their tools."""
        self.broker.worker.stop_all("hand_back")

    async def aclose(self, seconds: float) -> None:
        """Drain, and return when this process runs no task."""
        self.drain(seconds)
        assert self._drain_task is not None  # noqa: S101 - made by the line before
        await self._drain_task

    @property
    def dispatcher_lives(self) -> bool:
        """Whether the dispatcher of this process is running; always True if workers run the tasks."""
        return not self._takes_tasks or self.broker.is_entered

    # Requests.

    async def latest(self, cid: UUID) -> RunInfo | None:
        """Return the latest run of a conversation; None before the first. Reads one row."""
        return await self.broker.store.look(lambda tables: read_latest_run(tables, tables.number(cid)), small=True)

    async def live_among(self, records: Collection[ConversationRecord]) -> frozenset[UUID]:
        """Return the ids of the conversations with a pending or running run. One statement."""
        cids = json.dumps([record.number for record in records])
        is_small = len(records) <= _MAX_SMALL
        rows = await self.broker.store.look(lambda tables: tables.run("task.live_among", cids=cids), small=is_small)
        live = {row[0] for row in rows}
        return frozenset(record.id for record in records if record.number in live)

    async def is_live(self, cid: UUID) -> bool:
        """Whether a run of the conversation is pending or running, in any process."""

        def look(tables: Tables) -> bool:
            row = find_live_row(tables, tables.number(cid))
            return row is not None and row.current is not TaskState.INPUT_REQUIRED

        return await self.broker.store.look(look, small=True)

    async def start(
        self, caller: Caller, cid: UUID, *, approve: Collection[str] = (), key: str | None = None, **submission: Any
    ) -> UUID:
        """Start a run and return the id of its task. If a task of the conversation waits for a person, return that id.

        Args:
            approve: Ids of waiting calls to approve.
            key: An idempotency key: the same key returns the same task.
            submission: `id`, `queue`, `priority`, `deadline_seconds` of the task.

        Raises:
            Conflict: The conversation is running.
            LimitExceeded: The tenant has the maximum number of runs.
        """
        metadata = {"idempotency_key": key, PAYER: caller.key, **submission}
        options: dict[str, Any] = {name: value for name, value in metadata.items() if value is not None}
        task = await self.broker.run(cid, by=caller.name, approve=approve, **options)
        assert task is not None  # noqa: S101 - a run that is started has a task
        return UUID(task)

    async def say(
        self,
        cid: UUID,
        events: Sequence[Event],
        *,
        caller: Caller,
        run: bool,
        expected_head: int | None = None,
        state: State | None = None,
        **submission: Any,
    ) -> None:
        """Append a message and the events that it activates. With `run`, the active run or a new one answers it.

        Args:
            events: The events, the message first.
            state: The state of the conversation, if the caller has just read it.
            submission: `id`, `queue`, `priority`, `deadline_seconds` of the task.

        Raises:
            Conflict: The log has another head.
            LimitExceeded: The tenant has the maximum number of runs; nothing is written.
        """
        message, *activated = events
        assert isinstance(message, UserMessage)  # noqa: S101 - as `prepare_message` returns them
        options: dict[str, Any] = {PAYER: caller.key, **submission}
        await self.broker.run(
            cid, message, activated=activated, by=caller.name, start=run, join=True, expected_head=expected_head,
            state=state, **{name: value for name, value in options.items() if value is not None},
        )  # fmt: skip

    async def find_asking(self, cid: UUID) -> Task | None:
        """Return the task of a conversation that waits for a person; None if there is none."""

        def look(tables: Tables) -> Task | None:
            row = find_live_row(tables, tables.number(cid))
            if row is None or row.current is not TaskState.INPUT_REQUIRED:
                return None
            return read_task(tables, row)

        return await self.broker.store.look(look, small=True)

    def stream(self, task: str, after: int) -> AsyncIterator[TaskEvent]:
        """Iterate the events of a task after `after`, then new ones until it ends. Raises as `TaskBroker.stream`."""
        return self.broker.stream(task, after)

    async def wait(self, task: UUID, seconds: float) -> Task:
        """Return a task when it ends or asks for input, when this server drains, or after `seconds`."""
        waiting = asyncio.create_task(self.broker.wait_until(str(task), has_stopped, seconds))
        drain_start = asyncio.create_task(self._drain_started.wait())
        try:
            await asyncio.wait({waiting, drain_start}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else await self.broker.poll(str(task))
        finally:
            for future in (waiting, drain_start):
                future.cancel()
            await asyncio.gather(waiting, drain_start, return_exceptions=True)

    async def pause(self, cid: UUID, *, by: str, reason: str) -> None:
        """Ask a run to stop at its next step; does nothing if none is running."""
        await self.broker.pause(cid, by=by, reason=reason)

    async def interrupt(self, cid: UUID, *, by: str, reason: str, wait_seconds: float = 0) -> None:
        """Stop a run now, in any process, and kill its tools; does nothing if none is running."""
        run = await self.latest(cid)
        await self.broker.interrupt(cid, by=by, reason=reason)
        if run is not None and wait_seconds:
            with suppress(NotFound):
                await self.wait(run.task, wait_seconds)

    # Updates of the runs in this process.

    def _take_update(self, cid: UUID, update: Update) -> None:
        if isinstance(update, Delta):
            self._broadcasts.publish(cid, update)
            return
        self._metrics.appends.inc()
        event = update.event
        if isinstance(event, ModelResponded):
            self._metrics.steps.inc()
            self._metrics.count_usage(event.usage)

    def _take_end(self, active: ActiveRun) -> None:
        self._metrics.run_seconds.observe(time.monotonic() - active.started)


def read_latest_run(tables: Tables, cid: int) -> RunInfo | None:
    """Return the latest run of the conversation with this number; None before the first."""
    row = find_latest_row(tables, cid)
    return None if row is None else _describe(tables, row)


def _describe(tables: Tables, row: TaskRow) -> RunInfo:
    waits_for_input = row.current is TaskState.INPUT_REQUIRED
    return RunInfo(
        task=UUID(bytes=row.id),
        state=row.current.value,
        attempts=row.attempts,
        queue=row.queue,
        request=read_task(tables, row).request if waits_for_input else None,
        parent=None if row.parent_id is None else UUID(bytes=row.parent_id),
    )
