"""Whatever a caller gets wrong is an error of bough's with a hint: nothing is lost, and nothing runs unasked."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from bough.agents.model_analyzer import ModelAnalyzer
from bough.agents.retry_policy import RetryPolicy
from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.errors import BoughError, Conflict, InvalidInput, ModelError
from bough.guard import AllowList, AlwaysConfirm, Limits
from bough.testing import Failure, OpenAIServer, ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


class Acted:
    """A tool that says with what it ran."""

    def __init__(self) -> None:
        self.paths: list[str] = []

        def write_file(path: str) -> str:
            """Write a file."""
            self.paths.append(path)
            return "written"

        self.tool = write_file


@pytest.fixture
def acted() -> Acted:
    return Acted()


async def other(conversation: AsyncConversation, **given: Any) -> AsyncConversation:
    """The same conversation as another object has it."""
    return await AsyncConversation.open(
        conversation.id, store=conversation.store, agent=conversation.agent, settings=conversation.settings, **given
    )


async def test_a_policy_of_another_object_is_kept(start: Any, scripted: Any, acted: Acted) -> None:
    conversation = await start(scripted(tool_call("write_file", path="a"), tools=(acted.tool,)))
    async with await other(conversation) as stricter:
        await stricter.set_confirmation_policy(AlwaysConfirm())
    await conversation.send_message("go")
    assert [call.tool for call in (await conversation.run()).waiting] == ["write_file"]
    assert acted.paths == []


async def test_arguments_edited_into_what_is_denied_do_not_run(start: Any, scripted: Any, acted: Acted) -> None:
    spec = scripted(tool_call("write_file", path="notes/a"), "told", tools=(acted.tool,))
    allowed = AllowList.of("write_file(notes/*)")
    conversation = await start(spec, confirmation_policy=AlwaysConfirm(), allow_list=allowed)
    await conversation.send_message("go")
    (call,) = (await conversation.run()).waiting
    await conversation.approve(call.id, arguments={"path": "../keys"})
    assert (await conversation.run()).output == "told"
    assert acted.paths == []


@pytest.mark.parametrize("call", ["call_2", "", "no such call"])
async def test_an_answer_for_a_call_that_is_not_open(start: Any, scripted: Any, acted: Acted, call: str) -> None:
    conversation = await start(scripted(tool_call("write_file", path="a"), tools=(acted.tool,)))
    head = conversation.state.head
    for decide in (
        lambda: conversation.answer(call, 1),
        lambda: conversation.reject(call),
        lambda: conversation.approve(call),
    ):
        with pytest.raises(Conflict) as caught:
            await decide()
        assert caught.value.hint
    assert conversation.state.head == head


@pytest.mark.parametrize("value", [-1, float("nan"), True, "3"])
def test_limits_of_nonsense(value: Any) -> None:
    for name in ("steps", "requests", "cost_usd", "wall_seconds"):
        with pytest.raises(InvalidInput) as caught:
            Limits(**{name: value})
        assert caught.value.hint


async def test_a_limit_of_0_allows_nothing(start: Any, scripted: Any) -> None:
    spec = scripted("never")
    conversation = await start(spec, limits=Limits(requests=0))
    await conversation.send_message("go")
    result = await conversation.run()
    assert (result.status, result.limit, spec.model.requests) == ("paused", "requests", 0)


async def test_an_output_type_that_no_answer_fits_is_bounded(start: Any, scripted: Any) -> None:
    spec = scripted(*["no number"] * 20, output_type=int, output_retries=2)
    conversation = await start(spec)
    await conversation.send_message("go")
    with pytest.raises(ModelError):
        await conversation.run()
    assert (conversation.status, spec.model.requests) == ("error", 3)


async def test_a_provider_that_sends_429_for_ever(start: Any) -> None:
    policy = RetryPolicy(attempts=3, base_seconds=0.001)
    with OpenAIServer([Failure(status=429)] * 9) as server:
        conversation = await start(AgentSpec(model="openai:test", base_url=server.url, skills=(), retry=policy))
        await conversation.send_message("go")
        with pytest.raises(ModelError) as caught:
            await conversation.run()
        assert caught.value.hint
        assert len(server.received) == 3
        assert [each.kind async for each in conversation.events].count("RequestRetried") == 2
        await conversation.aclose()


async def test_two_interrupts_at_once_end_one_run(start: Any, scripted: Any) -> None:
    started = asyncio.Event()

    async def hang() -> None:
        """Hang."""
        started.set()
        await asyncio.Event().wait()

    conversation = await start(scripted(tool_call("hang"), "later", tools=(hang,)))
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    await started.wait()
    async with await other(conversation) as second:
        await asyncio.gather(conversation.interrupt(), conversation.interrupt(), second.interrupt())
    assert (await run).reason == "interrupted"
    kinds = [each.kind async for each in conversation.events]
    assert kinds.count("ToolInterrupted") == 1
    assert (await conversation.run()).output == "later"


class Callable:
    """An object that can be called, and has no name."""

    def __call__(self) -> str:
        """Act."""
        return "acted"


@pytest.mark.parametrize("tool", [partial(str, 1), Callable(), 3, "name"])
def test_a_tool_without_a_name_is_refused_with_a_hint(tool: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        AgentSpec(tools=(tool,))
    assert "Tool(" in caught.value.hint


def test_an_analyzer_with_a_model_that_is_not_there() -> None:
    for name in ("no-such-model", "nobody:model"):
        with pytest.raises(BoughError) as caught:
            ModelAnalyzer(name)
        assert caught.value.hint


async def test_what_a_judge_uses_is_counted_and_bounded(start: Any, scripted: Any, acted: Acted) -> None:
    judge = ModelAnalyzer(ScriptedModel(["LOW: a note", "LOW: a note"]))
    steps = [tool_call("write_file", path="a"), tool_call("write_file", path="b"), "done"]
    spec = scripted(*steps, tools=(acted.tool,))
    conversation = await start(spec, security_analyzer=judge, limits=Limits(requests=4))
    await conversation.send_message("go")
    result = await conversation.run()
    assert (result.limit, conversation.usage.requests) == ("requests", 4)
    added = [each.event async for each in conversation.events if each.kind == "UsageAdded"]
    assert [(each.purpose, each.model) for each in added] == [("analyzer", "scripted")] * 2
    assert acted.paths == ["a", "b"]
