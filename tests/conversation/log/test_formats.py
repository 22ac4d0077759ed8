"""What providers demand of a history holds wherever a log is cut and whatever was condensed.

The histories go through the message mappers of PydanticAI's own providers, as a request would.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from bough.conversation.log.condenser import select_range
from bough.conversation.log.tool_result import encode_result
from bough.conversation.log.view import View, encode_response
from bough.events.model import (
    Condensed,
    Event,
    ImagePart,
    ModelResponded,
    SkillActivated,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
    UserMessage,
)

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32
PARAMETERS = ModelRequestParameters()
Mapped = Callable[[list[ModelMessage]], Awaitable[Any]]


@pytest.fixture(scope="module")
def openai_chat() -> Mapped:
    model = OpenAIChatModel("gpt-5", provider=OpenAIProvider(api_key="none"))

    async def mapped(messages: list[ModelMessage]) -> Any:
        return await model._map_messages(messages, PARAMETERS)

    return mapped


@pytest.fixture(scope="module")
def openai_responses() -> Mapped:
    model = OpenAIResponsesModel("gpt-5", provider=OpenAIProvider(api_key="none"))

    async def mapped(messages: list[ModelMessage]) -> Any:
        return (await model._map_messages(messages, {}, PARAMETERS))[1]

    return mapped


@pytest.fixture(scope="module")
def anthropic() -> Mapped:
    model = AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(api_key="none"))

    async def mapped(messages: list[ModelMessage]) -> Any:
        return (await model._map_message(messages, PARAMETERS, {}))[1]

    return mapped


@pytest.fixture(scope="module")
def google() -> Mapped:
    model = GoogleModel("gemini-3-pro", provider=GoogleProvider(api_key="none"))

    async def mapped(messages: list[ModelMessage]) -> Any:
        return (await model._map_messages(messages, PARAMETERS))[1]

    return mapped


# Random logs, as runs write them, with condensations of all kinds in between.

TEXT = st.text(min_size=1, max_size=8)


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = [UserMessage.text("start")]
    view = View()
    view.apply(0, events[0])

    def add(event: Event) -> None:
        view.apply(len(events), event)
        events.append(event)

    for step in range(draw(st.integers(1, 8))):
        seen = len(events)
        if draw(st.integers(0, 3)) == 0:
            add(draw(messages(f"meanwhile {step}")))
        names = [f"c{step}-{n}" for n in range(draw(st.integers(0, 3)))]
        add(draw(responses(names, seen)))
        for name in draw(st.permutations(names)):
            if draw(st.integers(0, 4)) == 0:
                add(SkillActivated(name="s", content_hash="0", trigger="keyword", rendered="text of s"))
            add(draw(outcomes(name)))
        if not names or draw(st.integers(0, 4)) == 0:
            add(draw(messages(f"after {step}")))
        if draw(st.booleans()) and (condensed := draw(condensations(view, len(events)))):
            add(condensed)
    return events


def messages(text: str) -> st.SearchStrategy[Event]:
    image = ImagePart(data=base64.b64encode(PNG).decode(), media_type="image/png")
    return st.sampled_from([UserMessage.text(text), UserMessage(content=(*UserMessage.text(text).content, image))])


@st.composite
def responses(draw: st.DrawFn, names: list[str], seen: int) -> Event:
    provider = draw(st.sampled_from(["anthropic", "openai", "google"]))
    parts: list[Any] = []
    if draw(st.booleans()):
        parts.append(ThinkingPart("hm", id="rs_1", signature="c2ln", provider_name=provider))
    if not names or draw(st.booleans()):
        parts.append(TextPart(draw(TEXT)))
    parts += [ToolCallPart("t", {"n": 1}, tool_call_id=name) for name in names]
    return ModelResponded(response=encode_response(ModelResponse(parts=parts, provider_name=provider)), seen=seen)


def outcomes(call: str) -> st.SearchStrategy[Event]:
    image = encode_result(["look", BinaryContent(data=PNG, media_type="image/png")])
    fields: Any = {"tool_call_id": call, "tool": "t"}
    return st.sampled_from(
        [
            ToolReturned(result={"n": 1}, **fields),
            ToolReturned(result="", **fields),
            ToolReturned(result=None, **fields),
            ToolReturned(result=image, **fields),
            ToolReturned(result="long " * 100, shown=100, **fields),
            ToolReturned(result=[{"n": n} for n in range(50)], shown=60, **fields),
            ToolFailed(error="broke", **fields),
            ToolFailed(error="long " * 100, shown=100, **fields),
            ToolFailed(error="bad", retry=True, **fields),
            ToolRejected(by="user", reason="no", **fields),
            ToolInterrupted(**fields),
        ]
    )


@st.composite
def condensations(draw: st.DrawFn, view: View, head: int) -> Condensed | None:
    """One that a condenser makes, or any other: a log may come from elsewhere."""
    if draw(st.booleans()):
        start = draw(st.integers(0, head))
        return Condensed(start=start, stop=draw(st.integers(start, head)), summary="in short")
    middle = select_range(view.shown, keep_first=draw(st.integers(0, 3)), keep_last=draw(st.integers(0, 4)))
    return Condensed(start=middle[0].start, stop=middle[-1].stop, summary="in short") if middle else None


def requests(events: list[Event]) -> list[list[ModelMessage]]:
    """Every history that a run or a fork of this log may send: one for each cut at which no call is open."""
    view, found = View(), []
    for seq, event in enumerate(events):
        view.apply(seq, event)
        history = view.messages()
        if history and history[-1].kind == "request":
            found.append(history)
    return found


def check(mapped: Mapped, events: list[Event], valid: Callable[[Any], None]) -> None:
    async def all_of_them() -> None:
        for history in requests(events):
            valid(await mapped(history))

    asyncio.run(all_of_them())


FEW = settings(max_examples=25)


@FEW
@given(events=logs())
def test_openai_chat(openai_chat: Mapped, events: list[Event]) -> None:
    def valid(mapped: list[Any]) -> None:
        open_calls: list[str] = []
        for message in mapped:
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
                continue
            assert open_calls == [], "the results of calls come right after them"
            assert message.get("content") or message.get("tool_calls"), "no message is empty"
            open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        assert open_calls == []
        assert mapped[0]["role"] == "user"

    check(openai_chat, events, valid)


@FEW
@given(events=logs())
def test_openai_responses(openai_responses: Mapped, events: list[Event]) -> None:
    def valid(mapped: list[Any]) -> None:
        calls: Counter[str] = Counter()
        for item in mapped:
            if item.get("type") == "function_call":
                calls[item["call_id"]] += 1
            elif item.get("type") == "function_call_output":
                assert calls[item["call_id"]] == 1, "a result comes once and after its call"
                calls[item["call_id"]] += 1
        assert set(calls.values()) <= {2}

    check(openai_responses, events, valid)


@FEW
@given(events=logs())
def test_anthropic(anthropic: Mapped, events: list[Event]) -> None:
    def valid(mapped: list[Any]) -> None:
        roles = [message["role"] for message in mapped]
        assert (roles[0], roles[-1]) == ("user", "user")
        assert ("assistant", "assistant") not in itertools.pairwise(roles)
        open_calls: list[str] = []
        for message in mapped:
            blocks = message["content"]
            assert blocks, "no message is empty"
            results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            assert sorted(results) == sorted(open_calls), "results come in the very next message"
            leading = [block["type"] for block in blocks[: len(results)]]
            assert leading == ["tool_result"] * len(results), "and before anything else in it"
            open_calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert open_calls == []

    check(anthropic, events, valid)


@FEW
@given(events=logs())
def test_google(google: Mapped, events: list[Event]) -> None:
    def valid(mapped: list[Any]) -> None:
        open_calls = 0
        for content in mapped:
            parts = content["parts"]
            assert parts, "no content is empty"
            results = sum(1 for part in parts if part.get("function_response"))
            assert results == open_calls, "as many results as there were calls, in the next content"
            open_calls = sum(1 for part in parts if part.get("function_call"))
        assert open_calls == 0
        assert mapped[0]["role"] == mapped[-1]["role"] == "user"

    check(google, events, valid)
