"""What an agent's spec forbids is forbidden in its conversations, whatever else the caller allows."""

from __future__ import annotations

from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.events.model import ToolRejected
from bough.guard import AllowList, AlwaysConfirm, Limits, NeverConfirm
from bough.testing import ScriptedModel
from bough.testing.scripted import tool_call

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def agent(**rules: Any) -> AgentSpec:
    steps = [tool_call("add", a=1, b=2)] * 9
    return AgentSpec(model=ScriptedModel(steps), skills=(), tools=[add], **rules)


async def test_its_policy_asks_although_the_caller_does_not(start: Any) -> None:
    spec = agent(confirmation_policy=AlwaysConfirm())
    async with await start(spec, confirmation_policy=NeverConfirm()) as conversation:
        await conversation.send_message("go")
        assert (await conversation.run()).status == "waiting_for_confirmation"


async def test_its_bounds_and_its_allow_list_hold(start: Any) -> None:
    spec = agent(limits=Limits(requests=2), allow_list=AllowList.of("read_file"))
    async with await start(spec, limits=Limits(requests=5)) as conversation:
        await conversation.send_message("go")
        result = await conversation.run()
        assert (result.status, result.limit, result.steps) == ("paused", "requests", 2)
        rejected = [stored.event async for stored in conversation.events if isinstance(stored.event, ToolRejected)]
        assert {event.tool for event in rejected} == {"add"}
