"""A coordinator with sub-agents: its tools through a real broker, results told once, usage summed, bounds kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import UsageLimits

from bough import AgentSpec, OrchestratorAgent, Settings
from bough.errors import Conflict, LimitExceeded
from bough.events.model import ToolFailed
from bough.testing import ScriptedModel
from bough.testing.scripted import tool_call

pytestmark = pytest.mark.anyio

Orchestrate = Callable[..., OrchestratorAgent]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)


@pytest.fixture
def orchestrate(tmp_path: Path, settings: Settings) -> Orchestrate:
    def make(spec: AgentSpec, **fields: Any) -> OrchestratorAgent:
        fields = {"store": f"sqlite:///{tmp_path / 'log.db'}", **fields}
        return OrchestratorAgent(spec, workspace=tmp_path, settings=settings, **fields)

    return make


def agent(name: str, *steps: Any, **fields: Any) -> AgentSpec:
    return AgentSpec(name=name, model=ScriptedModel(steps), skills=(), description=f"Knows {name}.", **fields)


def delegate(name: str, prompt: str = "do it") -> Any:
    return tool_call("delegate", agent_name=name, prompt=prompt)


def submit(name: str, prompt: str = "do it") -> Any:
    return tool_call("submit_task", agent_name=name, prompt=prompt)


async def returned(orchestrator: OrchestratorAgent) -> list[Any]:
    requests = [
        message for message in (await orchestrator.conversation.messages()) if isinstance(message, ModelRequest)
    ]
    return [part.content for message in requests for part in message.parts if isinstance(part, ToolReturnPart)]


async def prompts(orchestrator: OrchestratorAgent) -> list[str]:
    requests = [
        message for message in (await orchestrator.conversation.messages()) if isinstance(message, ModelRequest)
    ]
    return [str(part.content) for message in requests for part in message.parts if isinstance(part, UserPromptPart)]


async def test_delegates_to_two_sub_agents_and_sums_what_all_of_them_used(orchestrate: Orchestrate) -> None:
    top = agent(
        "top", delegate("alpha"), delegate("beta"), "both done", sub_agents=[agent("alpha", "A"), agent("beta", "B")]
    )
    async with orchestrate(top) as o:
        result = await o.run("go")
        assert result.output == "both done"
        assert (await returned(o)) == ["A", "B"]
        assert result.usage.requests == 5
        state = o.conversation.state
        assert (state.own.requests, state.delegated.requests) == (3, 2)
        assert state.tasks == {}
        assert "- alpha: Knows alpha." in o.system_prompt


async def test_nodes_are_told_and_kept(orchestrate: Orchestrate) -> None:
    heard: list[str] = []

    async def hear(node: Any) -> None:
        heard.append(type(node).__name__)

    async with orchestrate(agent("top", "one", "two"), on_node=hear, verbose=True) as o:
        await o.run("first")
        await o.run("second")
        turn = ["UserPromptNode", "ModelRequestNode", "CallToolsNode", "End"]
        assert heard == [*turn, *turn]
        assert [len(nodes) for _, nodes in o.runs] == [4, 4]
        assert o.runs[1][0].result is not None
        assert o.broker is None


async def test_background_results_come_before_the_next_prompt_once(orchestrate: Orchestrate) -> None:
    top = agent("top", submit("alpha"), "started", "seen", "again", sub_agents=[agent("alpha", "the result of alpha")])
    async with orchestrate(top) as o:
        await o.run("go")
        assert o.broker is not None
        ((id, _),) = o.conversation.state.tasks.items()
        await o.broker.wait(id)
        await o.run("and now?")
        told = [text for text in (await prompts(o)) if "the result of alpha" in text]
        assert len(told) == 1
        assert (await prompts(o)).index(told[0]) < (await prompts(o)).index("and now?")
        await o.run("once more")
        assert [text for text in (await prompts(o)) if "the result of alpha" in text] == told


async def test_wait_shows_a_result_that_is_then_not_told_again(orchestrate: Orchestrate) -> None:
    steps = [[submit("alpha"), submit("beta", "other")], tool_call("wait"), tool_call("wait"), "done", "later"]
    top = agent("top", *steps, sub_agents=[agent("alpha", "A"), agent("beta", "B")])
    async with orchestrate(top) as o:
        await o.run("go")
        results = [
            task["result"] for answer in (await returned(o)) if "finished" in answer for task in answer["finished"]
        ]
        assert sorted(results) == ["A", "B"]
        await o.run("more")
        assert len([text for text in (await prompts(o)) if "background" in text]) == 0
        assert o.conversation.state.delegated.requests == 2


async def test_entering_again_goes_on_with_results_that_nobody_saw(orchestrate: Orchestrate) -> None:
    top = agent("top", submit("alpha"), "started", "seen", sub_agents=[agent("alpha", "late result")])
    o = orchestrate(top)
    async with o:
        await o.run("go")
        assert o.broker is not None
        ((id, _),) = o.conversation.state.tasks.items()
        await o.broker.wait(id)
        first = o.conversation.id
    with pytest.raises(Conflict):
        await o.run("outside")
    async with o:
        assert o.conversation.id == first
        await o.run("back")
        assert len([text for text in (await prompts(o)) if "late result" in text]) == 1


async def test_three_levels_sum_exactly(orchestrate: Orchestrate) -> None:
    low = agent("low", "deep answer")
    middle = agent("middle", delegate("low"), "from below: deep answer", sub_agents=[low])
    async with orchestrate(agent("top", delegate("middle"), "done", sub_agents=[middle])) as o:
        result = await o.run("go")
        assert (await returned(o)) == ["from below: deep answer"]
        assert result.usage.requests == 5
        assert o.conversation.state.delegated.requests == 3


async def test_a_bound_of_the_turn_stops_its_children_and_then_itself(orchestrate: Orchestrate) -> None:
    def look(key: str) -> str:
        return key

    child = agent("alpha", *[tool_call("look", key=str(n)) for n in range(20)], "never", tools=[look])
    async with orchestrate(agent("top", delegate("alpha"), "never", sub_agents=[child])) as o:
        with pytest.raises(LimitExceeded):
            await o.run("go", usage_limits=UsageLimits(request_limit=4))
        state = o.conversation.state
        assert (state.own.requests, state.delegated.requests) == (1, 3)
        assert len(o.runs) == 1
        (failed,) = [event.event async for event in o.conversation.events if isinstance(event.event, ToolFailed)]
        assert (len(failed.tasks), state.tasks) == (1, {})  # its end was told, and is not told again


async def test_an_unknown_sub_agent_is_told_with_the_nearest_name(orchestrate: Orchestrate) -> None:
    top = agent("top", delegate("alhpa"), "sorry", sub_agents=[agent("alpha", "A")])
    async with orchestrate(top) as o:
        await o.run("go")
        (told,) = await returned(o)
        assert "did you mean 'alpha'?" in told
        assert o.conversation.state.tasks == {}


async def test_a_child_that_asks_is_answered_and_its_result_comes_back(orchestrate: Orchestrate) -> None:
    child = agent("alpha", tool_call("ask", question="Which?"), "it was blue", ask=True)
    async with orchestrate(agent("top", delegate("alpha"), "done", sub_agents=[child])) as o:
        result = await o.run("go")
        assert isinstance(result.output, DeferredToolRequests)
        (call,) = result.output.calls
        task_id = result.output.metadata[call.tool_call_id]["task"]
        await o.answer(task_id, "blue")
        result = await o.run(None)
        assert result.output == "done"
        assert (await returned(o)) == ["it was blue"]


async def test_the_offline_planner_delegates_to_the_agent_that_fits(orchestrate: Orchestrate, tmp_path: Path) -> None:
    weather = agent("weather", "It rains in Bern.")
    weather = weather.model_copy(update={"description": "Answers questions about the weather of a city."})
    letters = agent("letters", "never asked").model_copy(update={"description": "Writes letters."})
    top = AgentSpec(name="top", model="offline", skills=(), sub_agents=[letters, weather])
    async with orchestrate(top) as o:
        result = await o.run("What is the weather of the city?")
        assert result.output == "weather answers:\n\nIt rains in Bern."
        calls = [event.event async for event in o.conversation.events if event.kind == "ToolCalled"]
        assert [getattr(call, "tool", "") for call in calls] == ["delegate"]
        nothing = await o.run("Paint the fence")
        assert "- letters: Writes letters." in nothing.output
