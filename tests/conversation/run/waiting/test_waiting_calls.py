"""Calls whose result somebody else gives, what tools use of models, and listeners at every node of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.usage import RunUsage
from tests.conversation.places import everywhere

from bough.agents.context import ToolContext
from bough.agents.spec import AgentSpec
from bough.agents.usage import CallableUsage
from bough.conversation import AsyncConversation
from bough.errors import InvalidInput
from bough.events.model import ToolReturned, Usage
from bough.events.store import EventStore
from bough.guard import Limits
from bough.settings import Settings
from bough.testing import ScriptedModel
from bough.testing.scripted import tool_call

pytestmark = pytest.mark.anyio

Spec = Callable[..., AgentSpec]
Start = Callable[..., Any]


def lookup(key: str) -> str:
    return f"value of {key}"


def spend(ctx: RunContext[ToolContext], requests: int) -> str:
    ctx.usage.incr(RunUsage(requests=requests, input_tokens=10 * requests, output_tokens=requests))
    return "spent"


@everywhere
async def test_a_question_ends_the_run_once_the_parallel_calls_have_their_results(scripted: Spec, start: Start) -> None:
    asks = [tool_call("ask", question="Which one?", choices=["a", "b"]), tool_call("lookup", key="x")]
    conversation = await start(scripted(asks, "never said", tools=(lookup,), ask=True))
    async with conversation:
        await conversation.send_message("go")
        result = await conversation.run()
        assert result.status == "waiting_for_confirmation"
        ((id, waiting),) = conversation.state.waiting.items()
        assert waiting["kind"] == "question"
        assert waiting["request"] == {"question": "Which one?", "choices": ["a", "b"]}
        outcomes = {call.tool: call.outcome for call in conversation.state.calls.values()}
        assert outcomes["ask"] is None
        assert isinstance(outcomes["lookup"], ToolReturned)
        again = await conversation.run()
        assert (again.steps, again.status) == (0, "waiting_for_confirmation")
        assert list(conversation.state.waiting) == [id]


async def test_an_answered_question_returns_to_the_model_and_is_not_asked_again(
    scripted: Spec, start: Start, store: EventStore, settings: Settings
) -> None:
    model = ScriptedModel([tool_call("ask", question="Name?"), "thanks"])
    spec = scripted(ask=True).model_copy(update={"model": model})
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        ((id, _),) = conversation.state.waiting.items()
        await conversation.append(ToolReturned(tool_call_id=id, tool="ask", result="Ada", by="user"))
    async with await AsyncConversation.open(conversation.id, store=store, agent=spec, settings=settings) as opened:
        await opened.append(*_idle())
        result = await opened.run()
        assert (result.status, result.output) == ("finished", "thanks")
        returned = [event.event for event in [e async for e in opened.events] if event.kind == "ToolReturned"]
        assert [event.result for event in returned if isinstance(event, ToolReturned)] == ["Ada"]


def _idle() -> list[Any]:
    from bough.events.model import StateChanged

    return [StateChanged(changes={"status": "idle", "waiting": {}})]


@everywhere
async def test_what_tools_use_of_models_is_recorded_with_their_results(scripted: Spec, start: Start) -> None:
    calls = [tool_call("spend", requests=2), tool_call("spend", requests=5)]
    spec = scripted(calls, tool_call("spend", requests=1), tool_call("lookup", key="x"), "done", tools=(spend, lookup))
    async with await start(spec) as conversation:
        await conversation.send_message("go")
        await conversation.run()
        returned = [e.event async for e in conversation.events if e.kind == "ToolReturned"]
        used = [event.usage for event in returned if isinstance(event, ToolReturned)]
        assert sum(usage.requests for usage in used[:2] if usage) == 7
        assert sum(usage.input_tokens for usage in used[:2] if usage) == 70
        assert used[2] == Usage(requests=1, input_tokens=10, output_tokens=1)
        assert used[3] is None


async def test_a_listener_hears_every_node_of_a_run_in_order(scripted: Spec, start: Start) -> None:
    heard: list[str] = []

    async def hear(run: Any, node: Any) -> None:
        heard.append(type(node).__name__)

    async with await start(scripted(tool_call("lookup", key="x"), "done", tools=(lookup,))) as conversation:
        await conversation.send_message("go")
        await conversation.run(on_node=hear)
    turn = ["ModelRequestNode", "CallToolsNode"]
    assert heard == ["UserPromptNode", *turn, *turn, "End"]


async def test_bounds_of_one_run_hold_in_that_run_alone(scripted: Spec, start: Start) -> None:
    steps = [tool_call("lookup", key="x")] * 3
    async with await start(scripted(*steps, "done", tools=(lookup,))) as conversation:
        await conversation.send_message("go")
        bounded = await conversation.run(limits=Limits(requests=1))
        assert (bounded.status, bounded.limit) == ("paused", "requests")
        assert (await conversation.run()).output == "done"


async def test_an_agent_with_sub_agents_is_refused_where_nobody_runs_them(
    start: Start, store: EventStore, settings: Settings
) -> None:
    spec = AgentSpec(name="top", model="offline", sub_agents=(AgentSpec(name="below"),))
    with pytest.raises(InvalidInput, match="no broker to run them"):
        await start(spec)
    async with await start(spec.model_copy(update={"sub_agents": ()})) as conversation:
        pass
    with pytest.raises(InvalidInput, match="no broker to run them"):
        await AsyncConversation.open(conversation.id, store=store, agent=spec, settings=settings)


async def test_usage_is_read_as_a_value_and_as_a_call() -> None:
    ran = await Agent(ScriptedModel(["hello"])).run("hi", usage=CallableUsage())
    usage: Any = ran.usage
    assert usage().requests == usage.requests == 1
