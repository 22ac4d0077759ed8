"""The contract of a dispatcher, as tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough.agents.spec import AgentSpec
from bough.events.owner import owner
from bough.settings import Settings
from bough.tasks.broker import TaskBroker
from bough.tasks.dispatch.dispatcher import Dispatcher
from bough.tasks.model import EventType, Task
from bough.tasks.serve import serve
from bough.tasks.state import TaskState
from bough.tasks.stores.relational import RelationalTaskStore


class GatedAgent:
    """An agent whose tasks record their input and then wait inside a tool until the test opens the gate.

    Attributes:
        inputs: Inputs in the order of their first model request.
        begun: Inputs whose tool has started.
        ended: Inputs whose tool has ended, including errors and cancellations.
    """

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._gate = asyncio.Event()
        self._changed = asyncio.Event()
        self.spec = AgentSpec(name="gated", model=FunctionModel(self._respond), tools=(self.pass_gate,), skills=())

    def open(self) -> None:
        """Let current and future tools continue."""
        self._gate.set()

    def _respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        task_input = str(getattr(messages[0].parts[0], "content", ""))
        if any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts):
            return ModelResponse([TextPart(f"done {task_input}")])
        self.inputs.append(task_input)
        return ModelResponse([ToolCallPart("pass_gate", {"name": task_input})])

    async def pass_gate(self, name: str) -> str:
        """Wait until the gate is open."""
        self.begun.append(name)
        self._changed.set()
        try:
            await self._gate.wait()
        finally:
            self.ended.append(name)
            self._changed.set()
        return "passed"

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on `begun` and `ended` holds."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class DispatcherContract:
    """Tests of all rules of `Dispatcher`."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    async def tasks(self) -> RelationalTaskStore:
        """An empty store; subclasses override it."""
        raise NotImplementedError("a contract test needs a `tasks` fixture")

    @pytest.fixture
    def gate(self) -> GatedAgent:
        """The agent of each test."""
        return GatedAgent()

    @pytest.fixture
    def make_broker(self, tasks: RelationalTaskStore, tmp_path: Path, gate: GatedAgent) -> Callable[..., TaskBroker]:
        """Creates brokers on the store, each with a separate dispatcher."""
        settings = Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)

        def make(**fields: Any) -> TaskBroker:
            return TaskBroker(tasks, settings=settings, dispatcher=self.dispatcher(tasks), **fields)

        return make

    def dispatcher(self, tasks: RelationalTaskStore) -> Dispatcher:
        """Return a dispatcher for a store; subclasses override it."""
        raise NotImplementedError("a contract test needs a `dispatcher` method")

    async def test_waiting_tasks_are_run(self, make_broker: Callable[..., TaskBroker], gate: GatedAgent) -> None:
        """A broker runs tasks submitted before it starts, and tasks that another broker submits meanwhile."""
        idle = make_broker()
        early = await idle.submit("early", agent_name="gated", queue="q")
        async with make_broker(queues=("q",)) as broker:
            broker.register_agents([gate.spec])
            gate.open()
            late = await idle.submit("late", agent_name="gated", queue="q")
            for task_id, name in ((early, "early"), (late, "late")):
                task = await broker.wait(task_id)
                assert (task.state, task.result, task.attempts) == (TaskState.COMPLETED, f"done {name}", 1)
        assert sorted(gate.inputs) == ["early", "late"]
        await idle.aclose()

    async def test_only_served_queues_are_run(self, make_broker: Callable[..., TaskBroker], gate: GatedAgent) -> None:
        """A task in another queue remains pending, even with a higher priority."""
        idle = make_broker()
        other = await idle.submit("other", agent_name="gated", queue="other", priority=9)
        async with make_broker(queues=("q",)) as broker:
            broker.register_agents([gate.spec])
            gate.open()
            await broker.wait(await idle.submit("mine", agent_name="gated", queue="q"))
            assert (await broker.poll(other)).state is TaskState.PENDING
        assert gate.inputs == ["mine"]
        await idle.aclose()

    async def test_tasks_are_ordered_by_priority_and_age(
        self, make_broker: Callable[..., TaskBroker], gate: GatedAgent
    ) -> None:
        """A worker that runs one task at a time takes the highest priority first, then the oldest task."""
        idle = make_broker()
        submissions = (("a", 0), ("b", 5), ("c", -1), ("d", 5))
        ids = [
            await idle.submit(name, agent_name="gated", queue="q", priority=priority) for name, priority in submissions
        ]
        gate.open()
        async with make_broker(queues=("q",), concurrency=1) as broker:
            broker.register_agents([gate.spec])
            for task_id in ids:
                await broker.wait(task_id)
        assert gate.inputs == ["b", "d", "a", "c"]
        await idle.aclose()

    async def test_concurrency_limits_the_running_tasks(
        self, make_broker: Callable[..., TaskBroker], gate: GatedAgent
    ) -> None:
        """With a concurrency of 2, the third task begins when another task has ended."""
        idle = make_broker()
        ids = [await idle.submit(name, agent_name="gated", queue="q") for name in "abc"]
        async with make_broker(queues=("q",), concurrency=2) as broker:
            broker.register_agents([gate.spec])
            await gate.wait_until(lambda: len(gate.begun) == 2)
            await broker.cancel(ids[0])
            await gate.wait_until(lambda: len(gate.begun) == 3)
            assert gate.ended == ["a"]
            gate.open()
            assert (await broker.wait(ids[2])).state is TaskState.COMPLETED
        await idle.aclose()

    async def test_a_task_waits_for_its_start_time(
        self, make_broker: Callable[..., TaskBroker], gate: GatedAgent
    ) -> None:
        """A task with `not_before` starts at that time, and not earlier."""
        idle = make_broker()
        gate.open()
        soon = datetime.now(UTC) + timedelta(seconds=1.5)
        later = await idle.submit("later", agent_name="gated", queue="q", not_before=soon)
        never = await idle.submit("never", agent_name="gated", queue="q", not_before=soon + timedelta(hours=1))
        async with make_broker(queues=("q",)) as broker:
            broker.register_agents([gate.spec])
            task = await broker.wait(later)
            assert task.state is TaskState.COMPLETED
            started = next(event for event in task.events if event.payload.get("state") == "running")
            assert started.timestamp >= soon
            assert (await broker.poll(never)).state is TaskState.PENDING
        await idle.aclose()

    async def test_a_running_task_is_cancelled_by_another_broker(
        self, make_broker: Callable[..., TaskBroker], gate: GatedAgent
    ) -> None:
        """The tool of the task ends, and one event records that the task was cancelled."""
        idle = make_broker()
        task_id = await idle.submit("one", agent_name="gated", queue="q")
        async with make_broker(queues=("q",)) as broker:
            broker.register_agents([gate.spec])
            await gate.wait_until(lambda: gate.begun == ["one"])
            await idle.cancel(task_id)
            await gate.wait_until(lambda: gate.ended == ["one"])
        require_states(await idle.poll(task_id), "pending", "running", "cancelled")
        await idle.aclose()

    async def test_a_pending_task_that_was_cancelled_is_not_run(
        self, make_broker: Callable[..., TaskBroker], gate: GatedAgent
    ) -> None:
        """The model of a cancelled task is never called."""
        idle = make_broker()
        first, second = [await idle.submit(name, agent_name="gated", queue="q") for name in "ab"]
        await idle.cancel(first)
        gate.open()
        async with make_broker(queues=("q",), concurrency=1) as broker:
            broker.register_agents([gate.spec])
            await broker.wait(second)
        assert gate.inputs == ["b"]
        require_states(await idle.poll(first), "pending", "cancelled")
        await idle.aclose()

    async def test_a_doubled_delivery_is_harmless(
        self, tasks: RelationalTaskStore, make_broker: Callable[..., TaskBroker], gate: GatedAgent
    ) -> None:
        """A task that is delivered three times runs once, and the delivery of an unknown task is ignored."""
        idle = make_broker()
        dispatcher = idle.dispatcher
        task_id = await idle.submit("one", agent_name="gated", queue="q")
        task = await idle.poll(task_id)
        forged = task.model_copy(update={"id": Task(input="x").id})
        for delivery in (task, task, forged):
            await tasks.change(lambda tables, delivery=delivery: dispatcher.enqueue(tables, delivery))
        gate.open()
        async with make_broker(queues=("q",), concurrency=1) as broker:
            broker.register_agents([gate.spec])
            await broker.wait(task_id)
            # Submitted after the deliveries, so when this task has run, all deliveries have been processed.
            last = await broker.wait(await idle.submit("last", agent_name="gated", queue="q"))
            assert last.state is TaskState.COMPLETED
        require_states(await idle.poll(task_id), "pending", "running", "completed")
        assert gate.inputs == ["one", "last"]
        await idle.aclose()

    async def test_a_task_that_was_handed_back_is_delivered_again(
        self, make_broker: Callable[..., TaskBroker], gate: GatedAgent
    ) -> None:
        """A second worker continues a task that a stopping worker returned to its queue."""
        idle = make_broker()
        task_id = await idle.submit("one", agent_name="gated", queue="q")
        first = make_broker(queues=("q",))
        first.register_agents([gate.spec])
        stopping = asyncio.Event()
        running = asyncio.create_task(
            first.dispatcher.run(first.worker, queues=("q",), concurrency=1, stopping=stopping)
        )
        await gate.wait_until(lambda: gate.begun == ["one"])
        stopping.set()
        first.worker.stop_all("hand_back")
        await running
        assert (await idle.poll(task_id)).state is TaskState.PENDING
        await first.aclose()
        gate.open()
        async with make_broker(queues=("q",)) as second:
            second.register_agents([gate.spec])
            task = await second.wait(task_id)
        require_states(task, "pending", "running", "pending", "running", "completed")
        await idle.aclose()

    async def test_an_agent_that_is_registered_later_is_served(
        self, make_broker: Callable[..., TaskBroker], gate: GatedAgent
    ) -> None:
        """A running broker starts to serve the private queue of a new agent; running tasks continue."""
        other = GatedAgent()
        second = other.spec.model_copy(update={"name": "second"})
        idle = make_broker()
        idle.register_agents([second])
        private = await idle.submit("private", agent_name="second")
        async with make_broker(queues=("q",)) as broker:
            broker.register_agents([gate.spec])
            running = await idle.submit("one", agent_name="gated", queue="q")
            await gate.wait_until(lambda: gate.begun == ["one"])
            broker.register_agents([second])
            other.open()
            assert (await broker.wait(private)).result == "done private"
            gate.open()
            assert (await broker.wait(running)).attempts == 1
        await idle.aclose()

    async def test_a_broker_runs_its_own_tasks_of_any_queue(
        self, make_broker: Callable[..., TaskBroker], gate: GatedAgent
    ) -> None:
        """A running broker runs the tasks that it submitted, in any queue. With `queues=()`, it runs only these."""
        idle = make_broker()
        other = await idle.submit("other", agent_name="gated")
        gate.open()
        async with make_broker(queues=()) as broker:
            broker.register_agents([gate.spec])
            own = await broker.wait(await broker.submit("own", agent_name="gated", queue="elsewhere"))
            assert own.result == "done own"
            assert (await broker.poll(other)).state is TaskState.PENDING
        await idle.aclose()

    async def test_a_row_of_a_newer_format_is_not_run(
        self, tasks: RelationalTaskStore, make_broker: Callable[..., TaskBroker], gate: GatedAgent
    ) -> None:
        """A worker runs the tasks that it can read, and leaves rows of a newer version unchanged."""
        idle = make_broker()
        newer, current = [await idle.submit(name, agent_name="gated", queue="q") for name in ("newer", "known")]
        await tasks.change(lambda tables: tables.connection.execute(_NEWER_FORMAT) and None)
        initial = await idle.poll(newer)
        gate.open()
        async with make_broker(queues=("q",), concurrency=1) as broker:
            broker.register_agents([gate.spec])
            await broker.wait(current)
            # Also by id, because a dispatcher may deliver a task without a search.
            assert await tasks.claim(owner(), id=newer) is None
        final = await idle.poll(newer)
        assert (final, final.state) == (initial, TaskState.PENDING)
        assert gate.inputs == ["known"]
        await idle.aclose()

    async def test_a_worker_ends_on_request(self, make_broker: Callable[..., TaskBroker], gate: GatedAgent) -> None:
        """`serve(once=True)` ends after the waiting tasks; an idle worker stops at once."""
        idle = make_broker()
        gate.open()
        ids = [await idle.submit(name, agent_name="gated", queue="q") for name in "ab"]
        await serve(make_broker(), queues=("q",), agents=[gate.spec], once=True)
        assert [(await idle.poll(task_id)).state for task_id in ids] == [TaskState.COMPLETED] * 2
        async with make_broker(queues=("q",)):
            pass
        assert await idle.dispatcher.check() == []
        await idle.aclose()


_NEWER_FORMAT = "update task set format = format + 1 where k = (select min(k) from task)"


def require_states(task: Task, *states: str) -> None:
    """Assert that a task went through these states, with one event each."""
    recorded = [event.payload["state"] for event in task.events if event.event_type is EventType.STATE_CHANGE]
    assert recorded == list(states)
