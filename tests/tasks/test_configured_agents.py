"""Tasks whose agents are those of `config.yaml`, and children in workspaces of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import RunContext

from bough.agents.context import ToolContext
from bough.agents.spec import AgentSpec
from bough.settings import Settings
from bough.tasks import TaskBroker, TaskState
from bough.tasks.stores.relational import RelationalTaskStore
from bough.testing import ScriptedModel, tool_call
from bough.testing.scripted import Asked

pytestmark = pytest.mark.anyio

CONFIG = """
models:
  small: offline
agents:
  head: {description: Coordinates, sub_agents: [weather, letters]}
  weather: {description: Answers questions about the weather of a city, system_prompt: You know the weather.}
  letters: {description: Writes letters, ask: true}
"""


async def test_a_task_runs_an_agent_of_the_configuration_and_its_sub_agents(
    tasks: RelationalTaskStore, settings: Settings
) -> None:
    """Nothing is registered: submitter, worker and delegation find all of them in the file, in an ordinary queue."""
    settings.home.mkdir(parents=True)
    (settings.home / "config.yaml").write_text(CONFIG)
    async with TaskBroker(tasks, settings=settings) as broker:
        task_id = await broker.submit("What is the weather of the city?", agent_name="head")
        task = await broker.wait(task_id, 30)
        [child] = [each for each in await tasks.list_by_state(TaskState.COMPLETED) if each.id != task_id]
        plain = await broker.wait(await broker.submit("hello", config_name="small", system_prompt="{a}: {}"), 30)
        unknown = await broker.wait(await broker.submit("hello", agent_name="weathre"), 30)
    assert (task.state, task.queue, task.error) == (TaskState.COMPLETED, "default", None)
    assert (child.agent_name, child.queue, child.state) == ("weather", "default", TaskState.COMPLETED)
    assert plain.state is TaskState.COMPLETED
    assert (unknown.state, unknown.code) == (TaskState.FAILED, "not_found")


def _last(asked: Asked) -> str:
    return " | ".join(str(getattr(part, "content", "")) for part in asked.messages[-1].parts)


@pytest.mark.parametrize("workspace", ["shared", "readonly", "copy"])
async def test_a_child_works_where_its_spec_says(
    tasks: RelationalTaskStore, settings: Settings, tmp_path: Path, workspace: Any
) -> None:
    """`copy`: what it writes is in a folder of its own, which the result names; `readonly`: its tools know that."""

    def write(ctx: RunContext[ToolContext]) -> str:
        assert ctx.deps.workspace is not None
        if not ctx.deps.readonly:
            (ctx.deps.workspace / "made.txt").write_text("made")
        return "read" if ctx.deps.readonly else "wrote"

    child = AgentSpec(
        name="child", model=ScriptedModel([tool_call("write"), _last]), tools=(write,), skills=(), workspace=workspace
    )
    model = ScriptedModel([tool_call("delegate", agent_name="child", prompt="go"), _last])
    parent = AgentSpec(name="parent", model=model, skills=(), sub_agents=(child,))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "there.txt").write_text("there")
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([parent])
        task = await broker.wait(await broker.submit("go", agent_name="parent", workspace=str(folder)), 30)
    assert (task.state, task.error) == (TaskState.COMPLETED, None)
    assert (folder / "made.txt").exists() is (workspace == "shared")
    copies = list((settings.home / "workspaces").glob("*/made.txt"))
    if workspace == "copy":
        assert [(copy.parent / "there.txt").read_text() for copy in copies] == ["there"]
        assert str(copies[0].parent) in str(task.result)
    else:
        assert copies == []
        assert task.result == ("read" if workspace == "readonly" else "wrote")


async def test_a_child_of_a_reader_only_reads(
    tasks: RelationalTaskStore, settings: Settings, scripted: Callable[..., AgentSpec]
) -> None:
    """A child that shares its parent's folder may not do more with it than its parent."""

    def look(ctx: RunContext[ToolContext]) -> bool:
        return ctx.deps.readonly

    leaf = AgentSpec(name="leaf", model=ScriptedModel([tool_call("look"), _last]), tools=(look,), skills=())
    reader = scripted(
        "reader", tool_call("delegate", agent_name="leaf", prompt="go"), _last, sub_agents=(leaf,), workspace="readonly"
    )
    top = scripted("top", tool_call("delegate", agent_name="reader", prompt="go"), _last, sub_agents=(reader,))
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([top])
        task = await broker.wait(await broker.submit("go", agent_name="top"), 30)
    assert (task.state, task.result) == (TaskState.COMPLETED, "True")
