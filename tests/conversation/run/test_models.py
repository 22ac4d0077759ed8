"""Any model serves, whether it can stream or not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel

from bough.agents.models.resolve import can_stream
from bough.agents.spec import AgentSpec
from bough.conversation import Delta
from bough.testing import ScriptedModel

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("add", {"a": 1, "b": 2})])
    return ModelResponse(parts=[TextPart(f"it is {messages[-1].parts[0].content}")])


async def test_a_model_that_cannot_stream_is_asked_for_whole_responses(start: Any) -> None:
    async with await start(AgentSpec(model=FunctionModel(answer), tools=(add,))) as conversation:
        await conversation.send_message("one and two?")
        updates = [update async for update in conversation.run_stream()]
    assert conversation.state.output == "it is 3"
    assert [update for update in updates if isinstance(update, Delta)] == []


@pytest.mark.parametrize(
    ("model", "streams"),
    [
        (ScriptedModel(()), True),
        (FunctionModel(answer), False),
        (WrapperModel(FunctionModel(answer)), False),
        (WrapperModel(ScriptedModel(())), True),
        (FallbackModel(ScriptedModel(()), FunctionModel(answer)), False),
        (FallbackModel(ScriptedModel(()), ScriptedModel(())), True),
    ],
)
def test_what_can_stream(model: Model, streams: bool) -> None:
    assert can_stream(model) is streams


def test_a_model_without_a_streaming_method_cannot_stream() -> None:
    class Plain(Model):
        request = answer  # pyright: ignore
        model_name = system = "plain"  # pyright: ignore

    assert can_stream(Plain()) is False
