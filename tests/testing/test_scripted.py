"""The scripted model: it answers in order, counts, remembers, streams and fails as it was told."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ThinkingPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters

from bough.errors import InvalidInput, ModelError
from bough.testing import Asked, ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

REQUEST = [ModelRequest([UserPromptPart("hi")])]


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def echo_result(asked: Asked) -> str:
    (part,) = asked.messages[-1].parts
    return f"it is {getattr(part, 'content', None)}"


async def test_it_answers_in_order_counts_and_remembers() -> None:
    model = ScriptedModel([tool_call("add", a=1, b=2), echo_result])
    agent = Agent(model, instructions="be brief", tools=[add])
    assert (await agent.run("1 + 2?")).output == "it is 3"
    assert model.requests == 2
    assert [asked.instructions for asked in model.asked] == ["be brief", "be brief"]
    assert model.asked[0].tools == ("add",)
    assert [len(asked.messages) for asked in model.asked] == [1, 3]
    assert not model.asked[0].streamed


async def test_streaming_adds_up_to_the_same_response_in_several_deltas() -> None:
    model = ScriptedModel([[ThinkingPart("hm"), "let me add", tool_call("add", a=1, b=2)], "the sum is three"])
    agent = Agent(model, tools=[add])
    async with agent.run_stream("1 + 2?") as _:
        pass
    pieces: list[str] = []
    model = ScriptedModel([tool_call("add", a=1, b=2), "the sum is three"])
    async with Agent(model, tools=[add]).run_stream("1 + 2?") as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == "the sum is three"
    assert len(pieces) > 1
    assert [asked.streamed for asked in model.asked] == [True, True]


async def test_an_async_step_is_awaited() -> None:
    async def step(asked: Asked) -> list[str]:
        return [f"{len(asked.messages)} message"]

    assert (await Agent(ScriptedModel([step])).run("hi")).output == "1 message"


async def test_a_whole_response_is_given_back_as_it_is() -> None:
    given = ModelResponse([TextPart("x")], provider_response_id="r1", provider_details={"k": 1})
    model = ScriptedModel([given, given])
    assert (await model.request(REQUEST, None, ModelRequestParameters())).provider_response_id == "r1"
    async with model.request_stream(REQUEST, None, ModelRequestParameters()) as stream:
        async for _ in stream:
            pass
    assert stream.get().provider_response_id == "r1"
    assert stream.get().provider_details == {"k": 1}
    assert stream.get().state == "complete"


async def test_an_exception_is_raised_at_its_place_in_the_stream() -> None:
    model = ScriptedModel([["half of", ConnectionResetError("gone")], ConnectionResetError("at once")])
    seen: list[object] = []
    with pytest.raises(ConnectionResetError, match="gone"):
        async with model.request_stream(REQUEST, None, ModelRequestParameters()) as stream:
            async for event in stream:
                seen.append(event)
    assert stream.get().text == "half of"
    assert stream.get().state == "incomplete"
    assert seen
    with pytest.raises(ConnectionResetError, match="at once"):
        await model.request(REQUEST, None, ModelRequestParameters())
    assert model.requests == 2


async def test_a_request_beyond_the_script_is_an_error_that_is_counted() -> None:
    model = ScriptedModel(["one"])
    await model.request(REQUEST, None, ModelRequestParameters())
    with pytest.raises(ModelError, match="1 responses, and one more was requested"):
        await model.request(REQUEST, None, ModelRequestParameters())
    assert model.requests == 2


async def test_a_step_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cannot contain 42"):
        await ScriptedModel([[42]]).request(REQUEST, None, ModelRequestParameters())  # pyright: ignore
