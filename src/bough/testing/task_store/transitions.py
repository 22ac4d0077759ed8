"""The one table of transitions, and what each writes."""

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

_WAYS: dict[TaskState, tuple[TaskState, ...]] = {
    TaskState.PENDING: (),
    TaskState.RUNNING: (TaskState.RUNNING,),
    TaskState.INPUT_REQUIRED: (TaskState.RUNNING, TaskState.INPUT_REQUIRED),
    TaskState.COMPLETED: (TaskState.RUNNING, TaskState.COMPLETED),
    TaskState.FAILED: (TaskState.FAILED,),
    TaskState.CANCELLED: (TaskState.CANCELLED,),
}

_ALLOWED = [(one, other) for one in TaskState for other in TaskState if other in TRANSITIONS[one]]
_REFUSED = [(one, other) for one in TaskState for other in TaskState if other not in TRANSITIONS[one]]


async def _bring(tasks: TaskStore, state: TaskState) -> Task:
    """Return a task in a state, brought there by transitions."""
    task: Task | None = await tasks.create(Task(input="one"))
    for step in _WAYS[state]:
        assert task is not None
        task = await tasks.update_state(task.id, step)
    assert task is not None
    return task


class TransitionsContract:
    """Compare-and-set on state and version; one STATE_CHANGE each."""

    pytestmark = pytest.mark.anyio

    @pytest.mark.parametrize(("state", "to"), _ALLOWED)
    async def test_what_the_table_has_is_made(self, tasks: TaskStore, state: TaskState, to: TaskState) -> None:
        """State, version and exactly one more event; the answer is the task as it is then."""
        task = await _bring(tasks, state)
        before = await tasks.get(task.id)
        moved = await tasks.update_state(task.id, to)
        after = await tasks.get(task.id)
        assert before is not None
        assert after is not None
        assert moved is not None
        assert (moved.state, after.state, after.version) == (to, to, before.version + 1)
        new = after.events[len(before.events) :]
        assert [(event.event_type, event.payload["state"]) for event in new] == [(EventType.STATE_CHANGE, to.value)]

    @pytest.mark.parametrize(("state", "to"), _REFUSED)
    async def test_everything_else_is_refused(self, tasks: TaskStore, state: TaskState, to: TaskState) -> None:
        """B01: `InvalidTransition` says from where to where; row, events and version are what they were."""
        task = await _bring(tasks, state)
        before = await tasks.get(task.id)
        with pytest.raises(InvalidTransition) as refused:
            await tasks.update_state(task.id, to)
        assert refused.value.details == {"task": task.id, "from": state.value, "to": to.value}
        assert await tasks.get(task.id) == before

    async def test_a_transition_says_what_came_of_the_task(self, tasks: TaskStore) -> None:
        """Result, error, data, code and usage are the task's, and in its event."""
        task = await _bring(tasks, TaskState.RUNNING)
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
        found = await tasks.get(task.id)
        assert found is not None
        assert (found.result, found.error, found.code, found.data, found.usage) == (
            "half", "too long", "limit_exceeded", {"n": 1}, usage,
        )  # fmt: skip
        assert found.events[-1].payload["error"] == "too long"
        with pytest.raises(InvalidInput):
            await tasks.update_state(task.id, TaskState.CANCELLED, colour="red")

    async def test_long_results_are_whole_up_to_a_mebibyte(self, tasks: TaskStore) -> None:
        """B15: 100,000 characters arrive whole; more is cut at head and tail, and the size is told."""
        task = await _bring(tasks, TaskState.RUNNING)
        text = "x" * 100_000
        await tasks.update_state(task.id, TaskState.COMPLETED, result=text)
        found = await tasks.get(task.id)
        assert found is not None
        assert found.result == text
        other = await _bring(tasks, TaskState.RUNNING)
        await tasks.update_state(other.id, TaskState.COMPLETED, result="a" + "é" * (1 << 20) + "z")
        cut = await tasks.get(other.id)
        assert cut is not None
        assert cut.result is not None
        assert len(cut.result.encode()) <= 1 << 20
        assert (cut.result[0], cut.result[-1]) == ("a", "z")
        assert cut.events[-1].payload["result_bytes"] == (2 << 20) + 2

    async def test_a_version_is_compared(self, tasks: TaskStore) -> None:
        """A transition from another version than the one that was looked at is refused."""
        task = await _bring(tasks, TaskState.RUNNING)
        with pytest.raises(Conflict):
            await tasks.update_state(task.id, TaskState.COMPLETED, version=0)
        done = await tasks.update_state(task.id, TaskState.COMPLETED, version=task.version)
        assert done is not None
        assert done.state is TaskState.COMPLETED

    async def test_of_many_ends_one_wins(self, tasks: TaskStore) -> None:
        """Ten at once: one end, nine `InvalidTransition`, one event."""
        task = await _bring(tasks, TaskState.RUNNING)
        ends = [tasks.update_state(task.id, state) for state in TERMINAL_STATES for _ in range(3)]
        results = await asyncio.gather(*ends, return_exceptions=True)
        assert sum(isinstance(result, InvalidTransition) for result in results) == len(ends) - 1
        found = await tasks.get(task.id)
        assert found is not None
        assert len([event for event in found.events if event.event_type is EventType.STATE_CHANGE]) == 3

    async def test_a_cancellation_that_comes_with_the_end_raises_nothing(self, tasks: TaskStore) -> None:
        """Twenty tasks end while they are cancelled: each is one or the other, and both callers are told which."""
        if not isinstance(tasks, RelationalTaskStore):
            pytest.skip("a broker runs no tasks of other stores")
        broker = TaskBroker(tasks, dispatcher=LocalDispatcher())
        made = [await _bring(tasks, TaskState.PENDING) for _ in range(20)]
        claims = [await tasks.claim(owner(), id=task.id) for task in made]
        ends = [tasks.release(claim, TaskState.COMPLETED) for claim in claims if claim is not None]
        cancels = [broker.cancel(task.id) for task in made]
        results = await asyncio.gather(*(each for pair in zip(cancels, ends, strict=True) for each in pair),
                                       return_exceptions=True)  # fmt: skip
        cancelled, ended = results[::2], results[1::2]
        for task, stopped, end in zip(made, cancelled, ended, strict=True):
            found = await tasks.get(task.id)
            assert found is not None
            assert isinstance(stopped, Task), stopped
            assert stopped.state is found.state
            assert found.state is (TaskState.COMPLETED if end is None else TaskState.CANCELLED)
            assert end is None or isinstance(end, Conflict | InvalidTransition)
        await broker.aclose()
