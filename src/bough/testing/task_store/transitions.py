"""Which transitions are allowed, and what each transition writes."""

from __future__ import annotations

import asyncio

import pytest

from bough.errors import Conflict, InvalidInput, InvalidTransition
from bough.events.model import Usage
from bough.events.owner import owner
from bough.tasks.broker import TaskBroker
from bough.tasks.dispatch.local import LocalDispatcher
from bough.tasks.model import EventType, Task
from bough.tasks.state import TERMINAL_STATES, TRANSITIONS, TaskState
from bough.tasks.store import TaskStore
from bough.tasks.stores.relational import RelationalTaskStore

_PATHS: dict[TaskState, tuple[TaskState, ...]] = {
    TaskState.PENDING: (),
    TaskState.RUNNING: (TaskState.RUNNING,),
    TaskState.INPUT_REQUIRED: (TaskState.RUNNING, TaskState.INPUT_REQUIRED),
    TaskState.COMPLETED: (TaskState.RUNNING, TaskState.COMPLETED),
    TaskState.FAILED: (TaskState.FAILED,),
    TaskState.CANCELLED: (TaskState.CANCELLED,),
}

# Derived from the table, so that a new state or transition is tested without a change here.
_ALLOWED = [(start, end) for start in TaskState for end in TaskState if end in TRANSITIONS[start]]
_REJECTED = [(start, end) for start in TaskState for end in TaskState if end not in TRANSITIONS[start]]


async def _move_to(tasks: TaskStore, state: TaskState) -> Task:
    """Create a task, move it to a state by allowed transitions, and return it."""
    task: Task | None = await tasks.create(Task(input="one"))
    for step in _PATHS[state]:
        assert task is not None
        task = await tasks.update_state(task.id, step)
    assert task is not None
    return task


class TransitionsContract:
    """A transition is a compare-and-set of state and version, and writes one STATE_CHANGE."""

    pytestmark = pytest.mark.anyio

    @pytest.mark.parametrize(("state", "to"), _ALLOWED)
    async def test_allowed_transitions_are_made(self, tasks: TaskStore, state: TaskState, to: TaskState) -> None:
        """The state changes, the version increases, one event is added, and the updated task is returned."""
        task = await _move_to(tasks, state)
        previous = await tasks.get(task.id)
        moved = await tasks.update_state(task.id, to)
        current = await tasks.get(task.id)
        assert previous is not None
        assert current is not None
        assert moved is not None
        assert (moved.state, current.state, current.version) == (to, to, previous.version + 1)
        new = current.events[len(previous.events) :]
        assert [(event.event_type, event.payload["state"]) for event in new] == [(EventType.STATE_CHANGE, to.value)]

    @pytest.mark.parametrize(("state", "to"), _REJECTED)
    async def test_other_transitions_are_rejected(self, tasks: TaskStore, state: TaskState, to: TaskState) -> None:
        """`InvalidTransition` names both states; row, events and version are unchanged."""
        task = await _move_to(tasks, state)
        previous = await tasks.get(task.id)
        with pytest.raises(InvalidTransition) as refused:
            await tasks.update_state(task.id, to)
        assert refused.value.details == {"task": task.id, "from": state.value, "to": to.value}
        assert await tasks.get(task.id) == previous

    async def test_a_transition_stores_the_outcome(self, tasks: TaskStore) -> None:
        """Result, error, data, code and usage are stored in the task; the event contains the error."""
        task = await _move_to(tasks, TaskState.RUNNING)
        usage = Usage(requests=2, input_tokens=10, output_tokens=5, cost_usd=0.5)
        await tasks.update_state(
            task.id,
            TaskState.FAILED,
            result="half",
            error="too long",
            code="limit_exceeded",
            data={"n": 1},
            usage=usage,
        )
        stored = await tasks.get(task.id)
        assert stored is not None
        assert (stored.result, stored.error, stored.code, stored.data, stored.usage) == (
            "half", "too long", "limit_exceeded", {"n": 1}, usage,
        )  # fmt: skip
        assert stored.events[-1].payload["error"] == "too long"
        with pytest.raises(InvalidInput):
            await tasks.update_state(task.id, TaskState.CANCELLED, colour="red")  # pyright: ignore[reportCallIssue]

    async def test_results_over_a_mebibyte_are_truncated(self, tasks: TaskStore) -> None:
        """Shorter results are stored completely. Longer ones are cut to head and tail; the event has their size."""
        task = await _move_to(tasks, TaskState.RUNNING)
        text = "x" * 100_000
        await tasks.update_state(task.id, TaskState.COMPLETED, result=text)
        stored = await tasks.get(task.id)
        assert stored is not None
        assert stored.result == text
        other = await _move_to(tasks, TaskState.RUNNING)
        await tasks.update_state(other.id, TaskState.COMPLETED, result="a" + "é" * (1 << 20) + "z")
        cut = await tasks.get(other.id)
        assert cut is not None
        assert cut.result is not None
        assert len(cut.result.encode()) <= 1 << 20
        assert (cut.result[0], cut.result[-1]) == ("a", "z")
        assert cut.events[-1].payload["result_bytes"] == (2 << 20) + 2

    async def test_a_version_is_compared(self, tasks: TaskStore) -> None:
        """A transition with an outdated version raises Conflict."""
        task = await _move_to(tasks, TaskState.RUNNING)
        with pytest.raises(Conflict):
            await tasks.update_state(task.id, TaskState.COMPLETED, version=0)
        completed = await tasks.update_state(task.id, TaskState.COMPLETED, version=task.version)
        assert completed is not None
        assert completed.state is TaskState.COMPLETED

    async def test_only_one_of_concurrent_ends_wins(self, tasks: TaskStore) -> None:
        """Of concurrent transitions to an end, one succeeds with one event; the others raise `InvalidTransition`."""
        task = await _move_to(tasks, TaskState.RUNNING)
        ends = [tasks.update_state(task.id, state) for state in TERMINAL_STATES for _ in range(3)]
        results = await asyncio.gather(*ends, return_exceptions=True)
        assert sum(isinstance(result, InvalidTransition) for result in results) == len(ends) - 1
        stored = await tasks.get(task.id)
        assert stored is not None
        assert len([event for event in stored.events if event.event_type is EventType.STATE_CHANGE]) == 3

    async def test_a_cancellation_during_the_end_raises_nothing(self, tasks: TaskStore) -> None:
        """A task that completes while it is cancelled gets one of the two states, and both callers learn which one."""
        if not isinstance(tasks, RelationalTaskStore):
            pytest.skip("a broker runs no tasks of other stores")
        broker = TaskBroker(tasks, dispatcher=LocalDispatcher())
        submitted = [await _move_to(tasks, TaskState.PENDING) for _ in range(20)]
        claims = [await tasks.claim(owner(), id=task.id) for task in submitted]
        ends = [tasks.release(claim, TaskState.COMPLETED) for claim in claims if claim is not None]
        cancels = [broker.cancel(task.id) for task in submitted]
        results = await asyncio.gather(*(call for pair in zip(cancels, ends, strict=True) for call in pair),
                                       return_exceptions=True)  # fmt: skip
        for task, cancelled_task, end_error in zip(submitted, results[::2], results[1::2], strict=True):
            stored = await tasks.get(task.id)
            assert stored is not None
            assert isinstance(cancelled_task, Task), cancelled_task
            assert cancelled_task.state is stored.state
            assert stored.state is (TaskState.COMPLETED if end_error is None else TaskState.CANCELLED)
            assert end_error is None or isinstance(end_error, Conflict | InvalidTransition)
        await broker.aclose()
