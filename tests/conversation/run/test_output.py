"""An agent that answers with a value: validated, in the log, the same after forks and when it is opened again."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, NativeOutput, PromptedOutput, RunContext, ToolOutput

from bough import AlwaysConfirm, AsyncConversation
from bough.agents.spec import AgentSpec
from bough.errors import InvalidInput, ModelError
from bough.events.model import OutputGiven, ToolCalled, ToolFailed, ToolRejected, ToolReturned
from bough.testing import ScriptedModel
from bough.testing.scripted import tool_call

pytestmark = pytest.mark.anyio


class Report(BaseModel):
    words: int


class Refusal(BaseModel):
    why: str


def typed(*steps: Any, output_type: Any = Report, **fields: Any) -> AgentSpec:
    return AgentSpec(name="typed", model=ScriptedModel(steps), skills=(), output_type=output_type, **fields)


async def kinds(conversation: AsyncConversation, *wanted: type) -> list[Any]:
    return [stored.event async for stored in conversation.events if isinstance(stored.event, wanted)]


async def test_the_value_is_validated_recorded_and_nothing_is_left_to_do(start: Any) -> None:
    async with await start(typed(tool_call("final_result", words=3))) as conversation:
        await conversation.send_message("count")
        result = await conversation.run()
        assert (result.status, result.data, result.steps) == ("finished", Report(words=3), 1)
        (given,) = await kinds(conversation, OutputGiven)
        assert given.data == {"words": 3}
        assert given.output_type.endswith("test_output.Report")
        (returned,) = await kinds(conversation, ToolReturned, ToolCalled)
        assert returned.result == "Final result processed."
        again = await conversation.run()
        assert (again.steps, again.data) == (0, Report(words=3))


async def test_the_value_is_there_after_open_and_in_a_fork(start: Any, store: Any, settings: Any) -> None:
    agent = typed(tool_call("final_result", words=3), tool_call("final_result", words=4))
    async with await start(agent) as conversation:
        await conversation.send_message("count")
        await conversation.run()
        async with await conversation.fork() as fork:
            await fork.send_message("again")
            assert (await fork.run()).data == Report(words=4)
    with pytest.raises(InvalidInput, match="given as code"):
        await AsyncConversation.open(conversation.id, store=store, settings=settings)
    spec = typed()
    async with await AsyncConversation.open(conversation.id, store=store, settings=settings, agent=spec) as opened:
        assert (await opened.run()).data == Report(words=3)


async def test_a_second_turn_without_an_answer_has_no_value_of_the_first(start: Any) -> None:
    async with await start(typed(tool_call("final_result", words=3), ModelError("gone"))) as conversation:
        await conversation.send_message("count")
        await conversation.run()
        await conversation.send_message("again")
        with pytest.raises(ModelError):
            await conversation.run()
        assert conversation.state.data is None


@pytest.mark.parametrize(
    ("output_type", "answer", "data"),
    [
        ([Report, Refusal], tool_call("final_result_Refusal", why="no"), Refusal(why="no")),
        (ToolOutput(Report, name="report"), tool_call("report", words=1), Report(words=1)),
        (NativeOutput(Report), '{"words": 2}', Report(words=2)),
        (PromptedOutput(Report), '{"words": 2}', Report(words=2)),
        (Report | str, "just text", "just text"),
        (int, tool_call("final_result", response=7), 7),
    ],
)
async def test_every_kind_of_output(start: Any, output_type: Any, answer: Any, data: Any) -> None:
    async with await start(typed(answer, output_type=output_type)) as conversation:
        await conversation.send_message("go")
        assert (await conversation.run()).data == data
        assert len(await kinds(conversation, OutputGiven)) == 1


async def test_a_wrong_answer_is_asked_for_again_and_the_log_says_so(start: Any) -> None:
    steps = (tool_call("final_result", words="many"), tool_call("final_result", words=3))
    async with await start(typed(*steps)) as conversation:
        await conversation.send_message("count")
        result = await conversation.run()
        assert (result.data, result.steps) == (Report(words=3), 2)
        (failed,) = await kinds(conversation, ToolFailed)
        assert failed.retry
        assert "valid integer" in failed.error


@pytest.mark.parametrize("answer", [tool_call("final_result", words="many"), "text, and no value"])
async def test_answers_that_never_fit_end_in_an_error(start: Any, answer: Any) -> None:
    asked: list[Any] = []
    steps = [lambda request, answer=answer: (asked.append(request), answer)[1]] * 50
    async with await start(typed(*steps, output_retries=2)) as conversation:
        await conversation.send_message("count")
        with pytest.raises(ModelError):
            await conversation.run()
        assert conversation.status == "error"
    assert len(asked) == 3


async def test_tools_called_beside_the_answer_did_not_run_and_are_said_so(start: Any) -> None:
    ran: list[int] = []

    def effect(x: int) -> int:
        """Do something."""
        ran.append(x)
        return x

    steps = ([tool_call("final_result", words=3), tool_call("effect", x=1)],)
    async with await start(typed(*steps, tools=[effect])) as conversation:
        await conversation.send_message("count")
        assert (await conversation.run()).data == Report(words=3)
        if not ran:
            (rejected,) = await kinds(conversation, ToolRejected)
            assert rejected.by == "run"
        assert conversation.state.open_calls == []


async def test_giving_the_answer_needs_no_approval(start: Any) -> None:
    agent = typed(tool_call("final_result", words=3))
    async with await start(agent, confirmation_policy=AlwaysConfirm()) as conversation:
        await conversation.send_message("count")
        assert (await conversation.run()).status == "finished"


async def test_an_adopted_agent_keeps_its_type_and_its_validators(start: Any) -> None:
    agent: Agent[int, Report] = Agent(
        ScriptedModel([tool_call("final_result", words=1), tool_call("final_result", words=2)]),
        deps_type=int,
        output_type=Report,
        retries=3,
    )

    @agent.output_validator
    def more_than_one(ctx: RunContext[int], report: Report) -> Report:
        if report.words == 1:
            raise ModelRetry("count again")
        return Report(words=report.words + ctx.deps)

    async with await start(AgentSpec.of(agent, deps=40)) as conversation:
        await conversation.send_message("count")
        assert (await conversation.run()).data == Report(words=42)


async def test_a_message_in_between_is_answered_too(start: Any) -> None:
    started: list[AsyncConversation] = []

    async def late(_: Any) -> Any:
        await started[0].send_message("and now?")
        return tool_call("final_result", words=1)

    async with await start(typed(late, tool_call("final_result", words=2))) as conversation:
        started.append(conversation)
        await conversation.send_message("count")
        result = await conversation.run()
        assert (result.data, result.steps) == (Report(words=2), 2)
