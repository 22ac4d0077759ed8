"""What another project's orchestrator gets wrong, each by its number in the design's list; here it is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from bough import AgentSpec, OrchestratorAgent, Settings
from bough.errors import ModelError
from bough.events.model import ToolReturned
from bough.tasks import TaskBroker, TaskState, TaskStoreMemory
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a home of its own."""
    return Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)


def _agent(name: str, *steps: Any, **fields: Any) -> AgentSpec:
    return AgentSpec(name=name, model=ScriptedModel(list(steps)), skills=(), **fields)


def _asked(spec: AgentSpec) -> list[str]:
    """Return what each request to the agent's model said."""
    assert isinstance(spec.model, ScriptedModel)
    return [str(request.messages) for request in spec.model.asked]


async def test_b10_an_unknown_agent_is_no_bare_one(settings: Settings) -> None:
    """FAILED with the nearest name; no model is asked."""
    tasks, model = TaskStoreMemory(), ScriptedModel(["never said"])
    async with TaskBroker(tasks, settings=settings, model=model) as broker:
        broker.register_agents([_agent("checker")])
        task = await broker.wait(await broker.submit("go", agent_name="cheker"), 30)
    await tasks.aclose()
    assert (task.state, task.code) == (TaskState.FAILED, "not_found")
    assert "checker" in str(task.error)
    assert model.asked == []


async def test_b11_the_brokers_model_is_used_where_a_spec_has_none(settings: Settings) -> None:
    """The spec's own wins."""
    tasks = TaskStoreMemory()
    async with TaskBroker(tasks, settings=settings, model=ScriptedModel(["the broker's"])) as broker:
        broker.register_agents([AgentSpec(name="bare", skills=()), _agent("own", "its own")])
        said = [(await broker.wait(await broker.submit("go", agent_name=name), 30)).result for name in ("bare", "own")]
    await tasks.aclose()
    assert said == ["the broker's", "its own"]


async def test_b12_what_delegate_returned_is_not_announced_again(settings: Settings, tmp_path: Path) -> None:
    """The second turn's request holds it once."""
    top = _agent(
        "top",
        tool_call("delegate", agent_name="below", prompt="go"),
        "one",
        "two",
        sub_agents=[_agent("below", "xyzzy")],
    )
    async with OrchestratorAgent(top, store="memory:", workspace=tmp_path, settings=settings) as o:
        await o.run("first")
        await o.run("second")
    assert _asked(top)[-1].count("xyzzy") == 1


async def test_b13_b14_a_second_wait_waits_for_something_new(settings: Settings, tmp_path: Path) -> None:
    """What the first told is not news; an agent whose name says `failed` ends no wait by that."""
    below = [_agent("failed-checker", "first"), _agent("other", "second")]
    steps = [
        tool_call("submit_task", agent_name="failed-checker", prompt="go"),
        tool_call("wait", timeout=30),
        tool_call("submit_task", agent_name="other", prompt="go"),
        tool_call("wait", timeout=30),
        "done",
    ]
    top = _agent("top", *steps, sub_agents=below)
    async with OrchestratorAgent(top, store="memory:", workspace=tmp_path, settings=settings) as o:
        assert (await o.run("begin")).output == "done"
        events = [stored.event async for stored in o.conversation.events]
    answers: list[Any] = [event.result for event in events if isinstance(event, ToolReturned) and event.tool == "wait"]
    told = [[each["task_id"] for each in answer["finished"]] for answer in answers]
    assert [len(each) for each in told] == [1, 1]
    assert told[0] != told[1]


async def test_b15_long_results_arrive_whole_and_huge_ones_say_their_size(settings: Settings) -> None:
    """100,000 characters are the task's result; of 3 MiB beginning and end are, with the size."""
    tasks, huge = TaskStoreMemory(), "h" * (3 << 20)
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([_agent("long", "l" * 100_000), _agent("huge", huge)])
        whole = await broker.wait(await broker.submit("go", agent_name="long"), 30)
        cut = await broker.wait(await broker.submit("go", agent_name="huge"), 30)
    await tasks.aclose()
    assert whole.result == "l" * 100_000
    assert cut.result is not None
    assert len(cut.result) < 1 << 20
    assert "bytes left out" in cut.result
    assert cut.events[-1].payload["result_bytes"] == len(huge)


async def test_b16_both_ways_to_a_result_cost_the_same(settings: Settings, tmp_path: Path) -> None:
    """`delegate`, and `submit_task` with `wait`: the child's usage is in the parent's sums either way."""
    sums: list[int] = []
    for calls in (["delegate"], ["submit_task", "wait"]):
        steps = [
            tool_call(name, timeout=30) if name == "wait" else tool_call(name, agent_name="below", prompt="go")
            for name in calls
        ]
        top = _agent("top", *steps, "done", sub_agents=[_agent("below", "answer")])
        async with OrchestratorAgent(top, store="memory:", workspace=tmp_path, settings=settings) as o:
            await o.run("begin")
            assert o.conversation.state.delegated.requests == 1
            sums.append(o.conversation.state.delegated.output_tokens)
    assert sums[0] == sums[1]


async def test_b28_a_turn_that_raised_is_in_the_log_and_the_next_goes_on(settings: Settings, tmp_path: Path) -> None:
    """What was said before the failure is seen after it."""

    def fail(_: Any) -> Any:
        raise ValueError("the model broke")

    top = _agent("top", fail, "done")
    async with OrchestratorAgent(top, store="memory:", workspace=tmp_path, settings=settings) as o:
        with pytest.raises(ModelError):
            await o.run("remember me")
        assert len(o.runs) == 1
        assert (await o.run("again")).output == "done"
    assert "remember me" in _asked(top)[-1]


async def test_b29_a_history_is_what_the_next_turns_go_on_with(settings: Settings, tmp_path: Path) -> None:
    """Exactly it and what followed: nothing of what was said before it."""
    history: list[ModelMessage] = [
        ModelRequest([UserPromptPart("from the history")]),
        ModelResponse([TextPart("yes")]),
    ]
    top = _agent("top", "one", "two", "three")
    async with OrchestratorAgent(top, store="memory:", workspace=tmp_path, settings=settings) as o:
        await o.run("before")
        await o.run("with it", message_history=history)
        await o.run("after")
    last = _asked(top)[-1]
    assert all(text in last for text in ("from the history", "with it", "after"))
    assert "before" not in last


async def test_b30_no_skills_are_none_and_the_spec_stays_as_it_was(settings: Settings, tmp_path: Path) -> None:
    """A folder of skills in the workspace is not looked into."""
    (tmp_path / "skills" / "stray").mkdir(parents=True)
    (tmp_path / "skills" / "stray" / "SKILL.md").write_text("---\nname: stray\ndescription: Found by chance.\n---\nX")
    top = AgentSpec(name="top", model=ScriptedModel(["done"]), skills=[])
    before = top.snapshot()
    async with OrchestratorAgent(top, store="memory:", workspace=tmp_path, settings=settings) as o:
        await o.run("begin")
        assert "stray" not in o.system_prompt
    assert top.snapshot() == before
