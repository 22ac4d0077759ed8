"""A child that asks: its parent waits without a worker, and continues when the child ended, wherever that is."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from pydantic_ai.messages import ToolReturnPart

from bough.agents.spec import AgentSpec
from bough.errors import Conflict
from bough.settings import Settings
from bough.tasks import TaskBroker, TaskFilter, TaskState
from bough.tasks.notify import TaskStanding, has_ended
from bough.tasks.stores.relational import RelationalTaskStore
from bough.testing import ScriptedModel, tool_call
from bough.testing.scripted import Asked

pytestmark = pytest.mark.anyio


def _asks(task: TaskStanding) -> bool:
    return task.state is TaskState.INPUT_REQUIRED


def _texts(asked: Asked) -> list[str]:
    """Return the results that the model is shown last."""
    return [str(part.content) for part in asked.messages[-1].parts if isinstance(part, ToolReturnPart)]


def _painter(name: str = "painter") -> AgentSpec:
    def answer(asked: Asked) -> Any:
        if len(asked.messages) > 1:
            return f"{name}: {_texts(asked)[0]}"
        return tool_call("ask", question="Which colour?", choices=["red", "blue"])

    return AgentSpec(name=name, model=ScriptedModel([answer, answer]), skills=(), ask=True)


def _head(*below: AgentSpec) -> AgentSpec:
    def answer(asked: Asked) -> Any:
        if len(asked.messages) == 1:
            return [tool_call("delegate", agent_name=each.name, prompt="paint") for each in below]
        return ", ".join(_texts(asked))

    return AgentSpec(name="head", model=ScriptedModel([answer, answer]), skills=(), sub_agents=below)


async def test_a_child_that_asks_frees_the_parents_worker_and_wakes_it(
    tasks: RelationalTaskStore, settings: Settings
) -> None:
    """The parent's request names the child's; answering the parent answers the child; each model is asked twice."""
    spec = _head(_painter())
    async with TaskBroker(tasks, settings=settings, concurrency=1) as first:
        first.register_agents([spec])
        task_id = await first.submit("go", agent_name="head")
        task = await first.wait_until(task_id, _asks, 30)
        request = task.request or {}
        assert (request["kind"], request["request"]["question"]) == ("task", "Which colour?")
    answered = await TaskBroker(tasks, settings=settings).provide_input(task_id, "blue")
    assert (answered.agent_name, answered.state) == ("painter", TaskState.PENDING)
    assert (await tasks.get(task_id) or answered).state is TaskState.INPUT_REQUIRED
    async with TaskBroker(tasks, settings=settings, concurrency=1) as second:
        second.register_agents([_head(_painter())])
        done = await second.wait(task_id, 30)
    assert (done.state, done.result, done.usage.requests) == (TaskState.COMPLETED, "painter: blue", 4)
    states = [event.payload["state"] for event in done.events if "state" in event.payload]
    assert states == ["pending", "running", "input_required", "pending", "running", "completed"]


async def test_a_background_child_that_asks_makes_its_waiting_parent_ask(
    tasks: RelationalTaskStore, settings: Settings
) -> None:
    """`wait` returns what ended; once only a question is left, the parent's task needs input until it is answered."""
    quick = AgentSpec(name="quick", model=ScriptedModel(["quick work"]), skills=())

    def finish(asked: Asked) -> Any:
        return _texts(asked)[-1]

    steps: list[Any] = [
        [tool_call("submit_task", agent_name=name, prompt="paint") for name in ("painter", "quick")],
        tool_call("wait"),
        tool_call("wait"),
        finish,
        finish,
    ]
    head = AgentSpec(name="head", model=ScriptedModel(steps), skills=(), sub_agents=(_painter(), quick))
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([head])
        task_id = await broker.submit("go", agent_name="head")
        task = await broker.wait_until(task_id, lambda task: _asks(task) or has_ended(task), 30)
        assert task.state is TaskState.INPUT_REQUIRED
        request = task.request or {}
        assert (request["kind"], request["request"]["question"]) == ("task", "Which colour?")
        await broker.provide_input(task_id, "blue")
        done = await broker.wait(task_id, 30)
    assert done.state is TaskState.COMPLETED
    assert "painter: blue" in str(done.result)


async def test_two_children_that_ask_are_answered_one_after_the_other(
    tasks: RelationalTaskStore, settings: Settings
) -> None:
    """The parent keeps waiting for the second; its request leads to whichever still asks."""
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([_head(_painter("left"), _painter("right"))])
        task_id = await broker.submit("go", agent_name="head")
        await broker.wait_until(task_id, _asks, 30)
        first = await broker.provide_input(task_id, "red")
        await broker.wait(first.id, 30)
        assert (await broker.poll(task_id)).state is TaskState.INPUT_REQUIRED
        second = await broker.provide_input(task_id, "blue")
        assert {first.agent_name, second.agent_name} == {"left", "right"}
        done = await broker.wait(task_id, 30)
    said = {first.agent_name: "red", second.agent_name: "blue"}
    assert (done.state, done.result) == (TaskState.COMPLETED, f"left: {said['left']}, right: {said['right']}")


async def test_a_child_that_is_cancelled_while_it_asks_wakes_its_parent(
    tasks: RelationalTaskStore, settings: Settings
) -> None:
    """The parent is told of it as of any other end; nothing asks any more."""
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([_head(_painter())])
        task_id = await broker.submit("go", agent_name="head")
        task = await broker.wait_until(task_id, _asks, 30)
        assert task.request is not None
        await broker.cancel(task.request["task_id"])
        done = await broker.wait(task_id, 30)
        with pytest.raises(Conflict):
            await broker.provide_input(task_id, "blue")
    assert done.state is TaskState.COMPLETED
    assert '"state": "cancelled"' in str(done.result)


async def test_a_question_two_levels_below_reaches_the_top_and_its_answer_the_bottom(
    tasks: RelationalTaskStore, settings: Settings
) -> None:
    """No level holds a worker meanwhile; usage sums exactly."""
    middle = _head(_painter()).model_copy(update={"name": "middle"})
    top = AgentSpec(
        name="top",
        model=ScriptedModel([tool_call("delegate", agent_name="middle", prompt="go"), "all done"]),
        skills=(),
        sub_agents=(middle,),
    )
    async with TaskBroker(tasks, settings=settings, concurrency=1) as broker:
        broker.register_agents([top])
        task_id = await broker.submit("go", agent_name="top")
        await broker.wait_until(task_id, _asks, 30)
        await broker.provide_input(task_id, "red")
        done = await broker.wait(task_id, 30)
        [below] = (await tasks.list(TaskFilter(parent=UUID(task_id)))).items
    assert (done.state, done.usage.requests) == (TaskState.COMPLETED, 6)
    assert (below.state, below.usage.requests) == (TaskState.COMPLETED, 4)
