"""Models and tools that do what they should not: recorded, told to the model, and the run ends in a defined status."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
)
from pydantic_ai.usage import RequestUsage

from bough.agents.retry_policy import RetryPolicy
from bough.conversation import AsyncConversation, Delta
from bough.conversation.log.tool_result import MAX_RESULT_BYTES
from bough.conversation.log.view import decode_response
from bough.errors import BoughError, InvalidInput, ModelError
from bough.events.model import ImagePart, UserMessage
from bough.guard import Limits
from bough.testing import tool_call

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 32


async def events(conversation: AsyncConversation, kind: str) -> list[Any]:
    return [stored.event async for stored in conversation.events if stored.kind == kind]


async def told(start: Any, scripted: Any, tool: Any) -> tuple[Any, Any]:
    """Run `tool` once; return the recorded outcome, and the part in which the model is told of it."""
    spec = scripted(tool_call(tool.__name__), "done", tools=(tool,))
    conversation = await start(spec)
    await conversation.send_message("go")
    assert (await conversation.run()).output == "done"
    outcome = [s.event async for s in conversation.events if s.kind in ("ToolReturned", "ToolFailed")]
    again = await reopened(conversation)
    assert (await again.messages()) == (await conversation.messages()), "the log says what was seen"
    (part,) = spec.model.asked[1].messages[-1].parts
    assert isinstance(part, ToolReturnPart)
    return outcome[0], part


async def reopened(conversation: AsyncConversation) -> AsyncConversation:
    return await AsyncConversation.open(
        conversation.id, store=conversation.store, agent=conversation.agent, settings=conversation.settings
    )


# Models.


@pytest.mark.parametrize("ids", [("", ""), ("x", "x"), ("x", "x-2", "x")])
async def test_calls_without_an_id_of_their_own_get_one(start: Any, scripted: Any, ids: tuple[str, ...]) -> None:
    ran: list[int] = []

    def act(n: int) -> str:
        """Act."""
        ran.append(n)
        return f"acted {n}"

    calls = [ToolCallPart("act", {"n": n}, tool_call_id=id) for n, id in enumerate(ids)]
    spec = scripted(calls, "done", tools=(act,))
    conversation = await start(spec)
    await conversation.send_message("go")
    assert (await conversation.run()).output == "done"
    assert sorted(ran) == list(range(len(ids)))
    results = spec.model.asked[1].messages[-1].parts
    assert [part.content for part in results] == [f"acted {n}" for n in range(len(ids))], "each gets its own result"
    seen = [part.tool_call_id for part in results]
    assert len(set(seen)) == len(ids)
    assert all(seen)
    assert seen == [part.tool_call_id for part in spec.model.asked[1].messages[-2].tool_calls]


async def test_text_beside_calls_is_no_answer_yet(start: Any, scripted: Any) -> None:
    def act() -> str:
        """Act."""
        return "acted"

    spec = scripted(["I act now.", tool_call("act")], "I acted.", tools=(act,))
    conversation = await start(spec)
    await conversation.send_message("go")
    assert (await conversation.run()).output == "I acted."
    assert spec.model.asked[1].messages[-2].parts[0].content == "I act now."


async def test_a_model_that_only_thinks_is_asked_for_an_answer_and_given_up(start: Any, scripted: Any) -> None:
    conversation = await start(scripted(*[[ThinkingPart("hm")] for _ in range(9)]))
    await conversation.send_message("go")
    with pytest.raises(ModelError, match="no usable answer"):
        await conversation.run()
    assert conversation.status == "error"
    assert conversation.agent.model.requests == 3


@pytest.mark.parametrize("call", [tool_call("unknown"), ToolCallPart("act", "{not json"), tool_call("act", n="x")])
async def test_calls_that_fit_no_tool_are_told_and_may_be_mended(start: Any, scripted: Any, call: Any) -> None:
    def act(n: int) -> str:
        """Act."""
        return "acted"

    conversation = await start(scripted(call, tool_call("act", n=1), "done", tools=(act,)))
    await conversation.send_message("go")
    assert (await conversation.run()).output == "done"
    failed = await events(conversation, "ToolFailed")
    assert [event.retry for event in failed] == [True]
    assert await events(await reopened(conversation), "ToolReturned")


@pytest.mark.parametrize("error", [ConnectionResetError("gone"), RuntimeError("peer closed"), ModelError("no")])
async def test_a_stream_that_breaks_off_is_no_response(start: Any, scripted: Any, error: Exception) -> None:
    spec = scripted(["The answer is for", error], "The answer is 4.", retry=RetryPolicy(attempts=1))
    conversation = await start(spec)
    await conversation.send_message("2 + 2?")
    updates: list[Any] = []
    with pytest.raises(ModelError):
        async for update in conversation.run_stream():
            updates.append(update)
    assert "The answer is for" in "".join(u.text for u in updates if isinstance(u, Delta)), "it was shown"
    assert await events(conversation, "ModelResponded") == [], "and not recorded"
    assert (conversation.status, (await events(conversation, "ErrorRaised"))[0].code) == ("error", "model_error")
    assert (await conversation.run()).output == "The answer is 4."


async def test_surrogates_from_a_model_reach_nobody(start: Any, scripted: Any) -> None:
    def act(text: str) -> str:
        """Act."""
        return text

    call = ToolCallPart("act", '{"text": "\\udcff"}')
    spec = scripted(["\ud83d half", call], "done", tools=(act,))
    conversation = await start(spec)
    await conversation.send_message("go")
    assert (await conversation.run()).output == "done"
    ModelMessagesTypeAdapter.dump_json(list(spec.model.asked[1].messages))
    assert "\ufffd half" in str(spec.model.asked[1].messages[-2])


RESPONSES = {
    "anthropic": ModelResponse(
        parts=[
            ThinkingPart("Let me see…", signature="EqQBCkYIBxgCKkB+/==", provider_name="anthropic"),
            ThinkingPart("", id="redacted_thinking", signature="EmwKAhgBEgy3va3=", provider_name="anthropic"),
            TextPart("I look."),
            ToolCallPart("act", {"n": 1}, tool_call_id="toolu_01A09q90qw90lq917835lq9"),
        ],
        usage=RequestUsage(
            input_tokens=2095, output_tokens=503, cache_read_tokens=1024, details={"cache_creation_input_tokens": 5}
        ),
        model_name="claude-sonnet-4-5",
        provider_name="anthropic",
        provider_url="https://api.anthropic.com",
        provider_details={"finish_reason": "tool_use"},
        provider_response_id="msg_013Zva2CMHLNnXjNJJKqJ2EF",
        finish_reason="tool_call",
    ),
    "openai": ModelResponse(
        parts=[
            ThinkingPart("", id="rs_68c3", signature="gAAAAABowy/+=" * 30, provider_name="openai"),
            ToolCallPart("act", '{"n": 1}', tool_call_id="call_9", id="fc_68c3", provider_name="openai"),
        ],
        usage=RequestUsage(input_tokens=10, output_tokens=20, details={"reasoning_tokens": 12}),
        model_name="gpt-5-2025-08-07",
        provider_name="openai",
        provider_response_id="resp_68c3",
        provider_details={"finish_reason": "completed"},
        finish_reason="stop",
    ),
    "google": ModelResponse(
        parts=[
            ThinkingPart("**Plan**\n"),
            ToolCallPart(
                "act",
                {"n": 1},
                tool_call_id="pyd_ai_1",
                provider_name="google",
                provider_details={"thought_signature": "CoMDAVSoXO6/+w=="},
            ),
        ],
        usage=RequestUsage(input_tokens=7, output_tokens=9, details={"thoughts_tokens": 4}),
        model_name="gemini-3-pro",
        provider_name="google",
        provider_details={"finish_reason": "STOP"},
        finish_reason="stop",
    ),
}


@pytest.mark.parametrize("response", RESPONSES.values(), ids=RESPONSES)
async def test_signatures_and_thinking_survive_the_log(start: Any, scripted: Any, response: ModelResponse) -> None:
    def act(n: int) -> str:
        """Act."""
        return "acted"

    spec = scripted(response, "done", tools=(act,))
    conversation = await start(spec)
    await conversation.send_message("go")
    assert (await conversation.run()).output == "done"
    (recorded, _) = await events(conversation, "ModelResponded")
    assert decode_response(recorded).parts == response.parts
    assert decode_response(recorded).usage == response.usage
    assert decode_response(recorded).provider_response_id == response.provider_response_id
    for seen in (spec.model.asked[1].messages[-2], (await (await reopened(conversation)).messages())[1]):
        assert seen.parts == response.parts, "live and after a restart the provider gets back what it gave"


# Tools.


async def test_a_result_of_50_mb_keeps_its_ends(start: Any, scripted: Any) -> None:
    def act() -> str:
        """Act."""
        return "BEGIN" + "x" * 50_000_000 + "END"

    outcome, part = await told(start, scripted, act)
    assert len(outcome.result) < MAX_RESULT_BYTES + 100
    assert "characters left out" in outcome.result
    assert part.content.startswith("BEGINx")
    assert part.content.endswith("xEND")
    assert "characters left out" in part.content


async def test_a_huge_list_is_shortened(start: Any, scripted: Any) -> None:
    def act() -> list[int]:
        """Act."""
        return list(range(1_000_000))

    outcome, _ = await told(start, scripted, act)
    assert isinstance(outcome.result, str)
    assert len(outcome.result) < MAX_RESULT_BYTES + 100


async def test_an_error_of_50_mb_keeps_its_ends(start: Any, scripted: Any) -> None:
    def act() -> str:
        """Act."""
        raise RuntimeError("x" * 50_000_000)

    outcome, _ = await told(start, scripted, act)
    assert outcome.kind == "ToolFailed"
    assert len(outcome.error) < MAX_RESULT_BYTES + 100


ODD = {
    "bytes": (b"\xff\x00\xfe", str),
    "nan": (float("nan"), "NaN"),
    "infinity": ([1, float("-inf")], [1, "-Infinity"]),
    "surrogate": ("a\ud800b", "a\ufffdb"),
    "surrogate key": ({"\udcff": 1}, {"\ufffd" * 3: 1}),
    "set": ({1}, [1]),
    "object": (object(), str),
    "none": (None, None),
    "keys": ({1: 2}, {"1": 2}),
    "looks like a file": ({"kind": "binary", "label": "x"}, {"kind": "binary", "label": "x"}),
}


@pytest.mark.parametrize(("value", "expected"), ODD.values(), ids=ODD)
async def test_results_without_a_json_form_are_described(start: Any, scripted: Any, value: Any, expected: Any) -> None:
    def act() -> Any:
        """Act."""
        return value

    outcome, part = await told(start, scripted, act)
    assert outcome.kind == "ToolReturned"
    assert isinstance(outcome.result, str) if expected is str else outcome.result == expected
    assert part.content == outcome.result
    json.dumps(part.content, allow_nan=False).encode()


async def test_a_circular_result_is_described(start: Any, scripted: Any) -> None:
    def act() -> Any:
        """Act."""
        circle: list[Any] = []
        circle.append(circle)
        return circle

    outcome, _ = await told(start, scripted, act)
    assert outcome.kind == "ToolReturned"


async def test_an_image_in_a_result_is_an_image_to_the_model(start: Any, scripted: Any) -> None:
    def act() -> Any:
        """Act."""
        return ["a picture", BinaryContent(data=PNG, media_type="image/png")]

    _, part = await told(start, scripted, act)
    text, image = part.content
    assert (text, image.data, image.media_type) == ("a picture", PNG, "image/png")
    assert part.files, "and PydanticAI knows it as a file"


async def test_what_a_tool_return_carries_besides_goes_with_it(start: Any, scripted: Any) -> None:
    def act() -> Any:
        """Act."""
        return ToolReturn(
            return_value={"clicked": True},
            content=["after:", BinaryContent(data=PNG, media_type="image/png")],
            metadata={"internal": object()},
        )

    outcome, part = await told(start, scripted, act)
    assert part.content[:2] == [{"clicked": True}, "after:"]
    assert part.content[2].data == PNG
    assert "internal" not in str(outcome.result)


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyError("x"), RecursionError()])
async def test_whatever_a_tool_raises_is_its_failure(start: Any, scripted: Any, error: BaseException) -> None:
    async def act() -> str:
        """Act."""
        raise error

    outcome, _ = await told(start, scripted, act)
    assert outcome.kind == "ToolFailed"
    assert type(error).__name__ in outcome.error


async def test_a_tool_that_hangs_ends_with_the_time_of_the_run(start: Any, scripted: Any) -> None:
    ended: list[str] = []

    async def hang() -> str:
        """Hang."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hang")
        return "never"

    conversation = await start(scripted(tool_call("hang"), "x", tools=(hang,)), limits=Limits(wall_seconds=2))
    await conversation.send_message("go")
    result = await conversation.run()
    assert (result.status, result.limit, ended) == ("paused", "wall_seconds", ["hang"])
    kinds = [stored.kind async for stored in conversation.events]
    assert kinds[-4:] == ["ToolCalled", "ToolInterrupted", "LimitReached", "StateChanged"]


# Messages.


async def test_a_message_of_5_mb_is_a_message(start: Any, scripted: Any) -> None:
    spec = scripted("long")
    conversation = await start(spec)
    await conversation.send_message("x" * (5 << 20))
    assert (await conversation.run()).output == "long"
    assert len(spec.model.asked[0].messages[0].parts[0].content) == 5 << 20
    assert len(conversation.title or "") <= 60
    with pytest.raises(InvalidInput, match="characters"):
        await conversation.send_message("x" * (17 << 20))


async def test_surrogates_in_a_message_are_replaced(start: Any, scripted: Any) -> None:
    spec = scripted("ok")
    conversation = await start(spec)
    await conversation.send_message("a\udcffb")
    await conversation.run()
    assert spec.model.asked[0].messages[0].parts[0].content == "a\ufffdb"


@pytest.mark.parametrize(
    ("data", "media_type"),
    [("%%%", "image/png"), ("iVBORw0KGgo=", "image/jpeg"), ("aGVsbG8=", "image/png"), ("iVBORw0KGgo=", "text/html")],
)
async def test_an_image_that_is_none_is_refused_before_it_is_recorded(
    start: Any, scripted: Any, data: str, media_type: str
) -> None:
    conversation = await start(scripted("ok"))
    head = conversation.state.head
    with pytest.raises(InvalidInput) as refused:
        await conversation.send_message(UserMessage(content=(ImagePart(data=data, media_type=media_type),)))
    assert refused.value.hint
    assert (await conversation.store.get(conversation.id)).head == head


async def test_an_image_that_is_one_is_seen(start: Any, scripted: Any) -> None:
    spec = scripted("a picture")
    conversation = await start(spec)
    image = ImagePart(data="iVBORw0KGgo=", media_type="image/png")
    await conversation.send_message(UserMessage(content=(image,)))
    assert (await conversation.run()).output == "a picture"
    assert spec.model.asked[0].messages[0].parts[0].content[0].media_type == "image/png"


async def test_an_image_from_elsewhere_that_cannot_be_read_breaks_nothing(start: Any, scripted: Any) -> None:
    spec = scripted("I see none")
    conversation = await start(spec)
    broken = UserMessage(content=(ImagePart(data="%%%", media_type="image/png"),))
    await conversation.store.append(conversation.id, [broken])
    assert (await conversation.run()).output == "I see none"
    assert "cannot be read" in str(spec.model.asked[0].messages)


async def test_every_failure_of_a_run_is_an_error_of_bough(start: Any, scripted: Any) -> None:
    class Broken:
        """A condenser of somebody else's."""

        async def condense(self, *_: Any, **__: Any) -> None:
            raise LookupError("nobody thought of this")

    conversation = await start(scripted("one"), condenser=Broken())
    await conversation.send_message("go")
    with pytest.raises(BoughError, match="nobody thought of this"):
        await conversation.run()
    assert conversation.status == "error"
    assert [event.code for event in await events(conversation, "ErrorRaised")] == ["internal"]
