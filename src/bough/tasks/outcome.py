"""Decide the state of a task from the end of its run. The transition is written with the run's last events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bough.conversation.log.journal import Journal
from bough.conversation.log.state import NOTHING_USED, State, add_usage, subtract_usage
from bough.errors import BoughError, CorruptLog, StoreError, Unavailable, public_message
from bough.events.model import TaskChanged, Usage
from bough.events.record import Lease
from bough.events.side_tables import Tables
from bough.tasks.model import Task
from bough.tasks.state import TaskState
from bough.tasks.stores.endings import end_claim, find_current, find_woken_parent
from bough.tasks.stores.rows import Enqueue, Move, TaskRow, give_job
from bough.tasks.stores.submission import require_row
from bough.types import JsonObject

RETRY_SECONDS = (1, 4, 16)
"""Delays before the first, second and later retries, after the store or a server was unavailable."""

_SECOND = 1_000_000


@dataclass
class RunEnding:
    """Ends one claimed run, once, in the transaction of the run's last events.

    Attributes:
        spent_before: Usage of the conversation before the task's first event.
        is_handed_back: Set before the run is stopped, if another worker is to continue it.
        why_stopped: The reason for a cancellation.
        enqueue: Delivers a task that is pending again.
        woken: The parent's task, if it waited for this one and may run now.
    """

    id: UUID
    lease: Lease
    spent_before: Usage = NOTHING_USED
    is_handed_back: bool = False
    why_stopped: str = "interrupted"
    enqueue: Enqueue | None = None
    woken: str | None = None

    def change(self, tables: Tables, state: State, error: BoughError | None) -> None:
        """Write the transition for the end of the run. The lease check refuses it if the claim was lost."""
        row = require_row(tables, self.id)
        to, details = self._choose_transition(row, state, error)
        details = details._replace(usage=subtract_usage(total_usage(state), self.spent_before))
        self._end(tables, row, to, details, error)

    def fail(self, tables: Tables, error: BoughError) -> None:
        """End a claim whose run could not write its end. Does nothing if the claim was lost or has ended."""
        row = find_current(tables, self.id, self.lease)
        if row is not None:
            to, details = _choose_after_error(row, error, None)
            self._end(tables, row, to, details, error)

    def _end(self, tables: Tables, row: TaskRow, to: TaskState, details: Move, error: BoughError | None) -> None:
        wait = _find_retry_delay(row, to, error)
        not_before = None if wait is None else tables.now() + wait * _SECOND
        # A run that asks for input or is handed back does not count, or long tasks would fail at `max_attempts`.
        counts = error is not None or to not in (TaskState.PENDING, TaskState.INPUT_REQUIRED)
        moved = end_claim(
            tables, row, self.lease, to, details, not_before=not_before, counts=counts, enqueue=self.enqueue
        )
        self.woken = find_woken_parent(tables, moved)
        if to is TaskState.PENDING:
            give_job(tables, moved, self.enqueue)

    def _choose_transition(self, row: TaskRow, state: State, error: BoughError | None) -> tuple[TaskState, Move]:
        """Return the next state of the task, and the details of the transition."""
        # First, since a run that is interrupted to be handed back has the status "paused", which means CANCELLED below.
        if self.is_handed_back:
            return TaskState.PENDING, Move(reason="handed back")
        text = state.output or None
        if error is not None:
            return _choose_after_error(row, error, text)
        if state.waiting:
            return TaskState.INPUT_REQUIRED, Move(request=describe_request(state))
        match state.status:
            case "stuck":
                stuck = Move(error="the agent repeats itself", code="limit_exceeded", result=text, reason="stuck")
                return TaskState.FAILED, stuck
            case "paused" if state.limit is not None:
                message = f"the limit of {state.limit} was reached"
                return TaskState.FAILED, Move(error=message, code="limit_exceeded", result=text, reason=state.limit)
            case "paused":
                return TaskState.CANCELLED, Move(reason=self.why_stopped, result=text)
            case "error":
                return TaskState.FAILED, Move(error="the run failed", code="internal", result=text)
            case _:
                return TaskState.COMPLETED, Move(result=state.output, data=state.data)


def _choose_after_error(row: TaskRow, error: BoughError, text: str | None) -> tuple[TaskState, Move]:
    """Return the next state of a task whose run failed: pending again if the store or a server was unavailable."""
    may_pass = isinstance(error, Unavailable | StoreError) and not isinstance(error, CorruptLog)
    is_retried = may_pass and row.attempts < row.max_attempts
    details = Move(error=describe_error(error), code=error.code, result=text)
    return (TaskState.PENDING if is_retried else TaskState.FAILED), details


def describe_error(error: BoughError) -> str:
    """Return an error in one line; for an unexpected exception, its type and message."""
    if error.code == "internal" and error.__cause__ is not None:
        return f"{type(error.__cause__).__name__}: {error.__cause__}"
    message = public_message(error)
    return f"{message}; {error.hint}" if error.hint else message


def describe_request(state: State) -> JsonObject:
    """Return the request that a task shows: the first question, the first task that asks, or the calls to approve."""
    for id, call in state.waiting.items():
        request: Any = call.get("request") or {}
        match call.get("kind"):
            case "question":
                return {"kind": "question", "call": id, "question": "", "choices": None, **request}
            case "task":
                return {"kind": "task", "call": id, **request, **({"task_id": call["task"]} if "task" in call else {})}
            case _:
                pass
    names = ("tool", "arguments", "risk", "reason")
    calls = [{"id": id, **{name: call.get(name) for name in names}} for id, call in state.waiting.items()]
    return {"kind": "approval", "calls": calls}


def total_usage(state: State) -> Usage:
    """Return the usage of a conversation and its sub-agents."""
    return add_usage(state.own, state.delegated)


def _find_retry_delay(row: TaskRow, to: TaskState, error: BoughError | None) -> int | None:
    """Return the delay in seconds before a task is retried; None if it is not retried after an error."""
    if to is not TaskState.PENDING or error is None:
        return None
    return RETRY_SECONDS[min(row.attempts, len(RETRY_SECONDS)) - 1]


async def measure_before(journal: Journal, task: Task) -> Usage:
    """Return the usage of a task's conversation before the task's first event. O(events before it)."""
    if task.conversation is not None and str(task.conversation) == task.id:
        return Usage(requests=0)
    state = State()
    async for stored in journal.store.read(journal.cid):
        if isinstance(event := stored.event, TaskChanged) and event.task_id == task.id:
            break
        state.apply(stored.seq, event)
    return total_usage(state)
