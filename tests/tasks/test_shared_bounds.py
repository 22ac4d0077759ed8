"""Bounds of a tree of agents: shared by siblings, kept by every level, in whatever process; names at any depth."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from bough.agents.spec import AgentSpec
from bough.events.model import TaskChanged
from bough.guard import Limits
from bough.settings import Settings
from bough.tasks import Task, TaskBroker, TaskFilter, TaskState
from bough.tasks.stores.relational import RelationalTaskStore
from bough.testing import ScriptedModel, tool_call
from bough.testing.scripted import Asked

pytestmark = pytest.mark.anyio


def _note(text: str) -> str:
    return text


def _endless(name: str) -> AgentSpec:
    """Make an agent that continues as long as it is let, each step another one."""

    def step(asked: Asked) -> Any:
        return tool_call("_note", text=f"{len(asked.messages)}")

    return AgentSpec(name=name, model=ScriptedModel([step] * 50), tools=(_note,), skills=())


def _coordinator(*steps: Any, below: tuple[AgentSpec, ...], limits: Limits | None = None) -> AgentSpec:
    return AgentSpec(name="top", model=ScriptedModel(list(steps)), skills=(), sub_agents=below, limits=limits)


async def _children(tasks: RelationalTaskStore, task: Task) -> list[Task]:
    return (await tasks.list(TaskFilter(parent=UUID(task.id)))).items


async def test_b17_siblings_share_what_is_left_of_their_parents_bound(
    tasks: RelationalTaskStore, settings: Settings
) -> None:
    """Bound 6, two endless children: together with the parent's own requests at most one over for each of them."""
    starts = [tool_call("submit_task", agent_name=name, prompt="go") for name in ("left", "right")]
    top = _coordinator(
        starts, tool_call("wait", timeout=60), tool_call("wait", timeout=60), "never said",
        below=(_endless("left"), _endless("right")), limits=Limits(requests=6),
    )  # fmt: skip
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([top])
        task = await broker.wait(await broker.submit("begin", agent_name="top"), 60)
        children = [await broker.wait(child.id, 60) for child in await _children(tasks, task)]
        spent = await tasks.read_spent(UUID(task.id))
    assert (task.state, task.code) == (TaskState.FAILED, "limit_exceeded")
    assert [(child.state, child.code) for child in children] == [(TaskState.FAILED, "limit_exceeded")] * 2
    assert {"the limit of parent.requests was reached", "the limit of requests was reached"} >= {
        str(child.error) for child in children
    }
    assert 6 <= spent.usage.requests <= 6 + len(children)


async def test_a_grandchild_keeps_the_bound_of_the_top(tasks: RelationalTaskStore, settings: Settings) -> None:
    """Three levels: whoever is lowest stops first, then each level above in its turn."""
    middle = AgentSpec(
        name="middle",
        model=ScriptedModel([tool_call("delegate", agent_name="leaf", prompt="go"), "never said"]),
        skills=(),
        sub_agents=(_endless("leaf"),),
    )
    top = _coordinator(
        tool_call("delegate", agent_name="middle", prompt="go"),
        "never said",
        below=(middle,),
        limits=Limits(requests=5),
    )
    async with TaskBroker(tasks, settings=settings, concurrency=1) as broker:
        broker.register_agents([top])
        task = await broker.wait(await broker.submit("begin", agent_name="top"), 60)
    assert (task.state, task.code, task.usage.requests) == (TaskState.FAILED, "limit_exceeded", 5)
    assert (await tasks.read_spent(UUID(task.id))).usage.requests == 5


async def test_the_first_transition_of_a_child_names_the_bounds_above_it(
    tasks: RelationalTaskStore, settings: Settings, scripted: Any
) -> None:
    """Conversation, limits, what was spent when they began to count, level: of the parent first, then upwards."""
    leaf = scripted("leaf", "done")
    middle = scripted("middle", tool_call("delegate", agent_name="leaf", prompt="go"), "done", sub_agents=(leaf,))
    top = _coordinator(
        tool_call("delegate", agent_name="middle", prompt="go"), "done", below=(middle,), limits=Limits(requests=9)
    )
    async with TaskBroker(tasks, settings=settings, concurrency=1) as broker:
        broker.register_agents([top])
        task = await broker.wait(await broker.submit("begin", agent_name="top"), 60)
        [child] = await _children(tasks, task)
        [grandchild] = await _children(tasks, child)
    [first, *_] = [
        stored.event async for stored in tasks.log.read(UUID(grandchild.id)) if isinstance(stored.event, TaskChanged)
    ]
    assert isinstance(first, TaskChanged)
    assert [(bound["conversation"], bound["level"]) for bound in first.bounds] == [(child.id, 1), (task.id, 0)]
    assert first.bounds[1]["limits"]["requests"] == 9
    assert first.bounds[1]["spent"] == {"usage": {**_nothing(), "cost_usd": None}, "tasks": 0}


def _nothing() -> dict[str, int]:
    names = ("requests", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    return dict.fromkeys(names, 0)


async def test_the_depth_of_an_ancestor_bounds_its_descendants(
    tasks: RelationalTaskStore, settings: Settings, scripted: Any
) -> None:
    """The middle could go deeper by its own bound; the top's one says no, by its name."""
    leaf = scripted("leaf", "never said")
    asked = ScriptedModel([tool_call("delegate", agent_name="leaf", prompt="go"), "could not"])
    middle = AgentSpec(name="middle", model=asked, skills=(), sub_agents=(leaf,))
    top = _coordinator(
        tool_call("delegate", agent_name="middle", prompt="go"), "done", below=(middle,), limits=Limits(depth=1)
    )
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([top])
        task = await broker.wait(await broker.submit("begin", agent_name="top"), 60)
    assert task.state is TaskState.COMPLETED
    assert "the limit of depth is reached" in str(asked.asked[-1].messages) or "parent.depth" in str(
        asked.asked[-1].messages
    )
    assert (await tasks.read_spent(UUID(task.id))).tasks == 1


async def test_two_sub_agents_of_one_name_at_different_depths_are_two_agents(
    tasks: RelationalTaskStore, settings: Settings, scripted: Any
) -> None:
    """Each is found by the way down to it, where it is started and where it is run."""
    inner, outer = scripted("writer", "the inner one"), scripted("writer", "the outer one")
    model = ScriptedModel([tool_call("delegate", agent_name="writer", prompt="go"), _last])
    middle = AgentSpec(name="middle", model=model, skills=(), sub_agents=(inner,))
    calls = [tool_call("delegate", agent_name=name, prompt="go") for name in ("middle", "writer")]
    top = _coordinator(calls, _last, below=(middle, outer))
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([top])
        task = await broker.wait(await broker.submit("begin", agent_name="top"), 60)
    assert (task.state, task.result) == (TaskState.COMPLETED, "the inner one | the outer one")


def _last(asked: Asked) -> str:
    """Answer with the results that were shown last."""
    return " | ".join(str(getattr(part, "content", "")) for part in asked.messages[-1].parts)
