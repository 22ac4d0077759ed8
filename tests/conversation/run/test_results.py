"""Results tell the truth: answers that are cut off, runs without an answer, why a run ended, the order of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Delta
from bough.events import open_store
from bough.events.record import StoredEvent
from bough.events.store import EventStore
from bough.guard import AlwaysConfirm, Limits
from bough.testing import tool_call
from bough.testing.openai_server import Answer, OpenAIServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store() -> AsyncIterator[EventStore]:
    opened = await open_store("memory:")
    yield opened
    await opened.aclose()


def cut(text: str, reason: Any = "length") -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)] if text else [], model_name="scripted", finish_reason=reason)


async def said(start: Any, spec: AgentSpec, message: str = "go", **rules: Any) -> tuple[AsyncConversation, Any]:
    conversation = await start(spec, **rules)
    await conversation.send_message(message)
    return conversation, await conversation.run()


async def test_an_answer_that_is_cut_off_is_paused_and_continued(
    start: Any, scripted: Any, store: Any, settings: Any
) -> None:
    spec = scripted(cut("The first half"), " and the second.")
    conversation, result = await said(start, spec)
    assert (result.status, result.output, result.partial) == ("paused", "The first half", True)
    assert (result.finish_reason, result.reason) == ("length", "length")
    (event,) = [stored.event async for stored in conversation.events if stored.kind == "ModelResponded"]
    assert (event.finish_reason, event.partial) == ("length", True)
    async with await AsyncConversation.open(conversation.id, store=store, agent=spec, settings=settings) as again:
        rest = await again.run()
    assert (rest.status, rest.output, rest.reason) == ("finished", " and the second.", "")
    assert "cut off" in str(spec.model.asked[1].messages[-1])


async def test_a_new_message_goes_before_the_continuation(start: Any, scripted: Any) -> None:
    spec = scripted(cut("The first half"), "something else")
    conversation, _ = await said(start, spec)
    await conversation.send_message("never mind")
    assert (await conversation.run()).output == "something else"
    assert "cut off" not in str(spec.model.asked[1].messages)


async def test_what_a_filter_kept_back_is_not_finished(start: Any, scripted: Any) -> None:
    spec = scripted(cut("", "content_filter"))
    conversation, result = await said(start, spec)
    assert (result.status, result.output, result.reason) == ("paused", "", "content_filter")
    assert (await conversation.run()).steps == 0, "there is nothing to continue with"
    assert spec.model.requests == 1


async def test_a_stream_without_an_end_is_not_finished(start: Any) -> None:
    with OpenAIServer([Answer(text="half of it", finish=None, says_usage=False)]) as server:
        spec = AgentSpec(model="openai:test", base_url=server.url, skills=())
        conversation, result = await said(start, spec)
        await conversation.aclose()
    assert (result.status, result.output, result.partial, result.reason) == ("paused", "half of it", True, "no_finish")
    assert result.finish_reason == "none"


async def test_a_server_that_never_gives_a_reason_is_believed_when_it_says_what_it_used(start: Any) -> None:
    with OpenAIServer([Answer(text="all of it", finish=None)]) as server:
        spec = AgentSpec(model="openai:test", base_url=server.url, skills=())
        conversation, result = await said(start, spec)
        await conversation.aclose()
    assert (result.status, result.output, result.partial, result.reason) == ("finished", "all of it", False, "")
    assert result.finish_reason == "none"


async def test_a_run_without_an_answer_has_no_output(start: Any, scripted: Any) -> None:
    spec = scripted("the first answer", tool_call("look"), "never", tools=(look,))
    conversation, result = await said(start, spec)
    assert (result.output, result.conversation) == ("the first answer", conversation.id)
    await conversation.send_message("again")
    await conversation.set_confirmation_policy(AlwaysConfirm())
    waits = await conversation.run()
    assert (waits.status, waits.output, waits.steps) == ("waiting_for_confirmation", "", 1)
    (call,) = waits.waiting
    assert (call.tool, call.arguments, call.kind) == ("look", {}, "approval")
    assert (await conversation.run()).output == ""


async def test_a_limit_an_error_and_a_circle_name_themselves(start: Any, scripted: Any) -> None:
    _, limited = await said(start, scripted(tool_call("look"), "x", tools=(look,)), limits=Limits(steps=1))
    assert (limited.status, limited.reason, limited.limit) == ("paused", "steps", "steps")
    _, stuck = await said(start, scripted(*[tool_call("look")] * 12, tools=(look,)))
    assert (stuck.status, stuck.reason) == ("stuck", "stuck")


async def test_the_planner_says_when_nothing_fits(start: Any) -> None:
    _, result = await said(start, AgentSpec(model="offline", skills=()), "bake a cake")
    assert (result.status, result.reason) == ("finished", "nothing_fits")


async def test_a_stream_is_in_the_order_of_causes(start: Any, scripted: Any) -> None:
    steps = ["I look. ", tool_call("look", at="the far end")], "It is there, at the far end."
    conversation = await start(scripted(*steps, tools=(look,)))
    await conversation.send_message("go")
    seen: list[Any] = [update async for update in conversation.run_stream()]
    known: set[int] = {stored.seq for stored in [s async for s in conversation.events]}
    before = min(update.seq for update in seen if isinstance(update, StoredEvent))
    told = before
    for update in seen:
        if isinstance(update, StoredEvent):
            assert update.seq == told, "events come in their order"
            told += 1
        else:
            assert told == update.head, "a piece comes behind every event that was there before it"
    assert told == len(known)
    pieces = [update for update in seen if isinstance(update, Delta)]
    arguments = [piece for piece in pieces if piece.kind == "tool_arguments"]
    assert "".join(piece.text for piece in arguments) == '{"at":"the far end"}'
    assert {piece.tool for piece in arguments} == {"look"}
    lengths: dict[object, int] = {}
    for piece in pieces:
        stream = (piece.response, piece.kind, piece.tool_call_id)
        assert piece.offset == lengths.get(stream, 0)
        lengths[stream] = piece.offset + len(piece.text)
    responses = [stored.id async for stored in conversation.events if stored.kind == "ModelResponded"]
    assert [piece.response for piece in pieces if piece.order == 0] == responses
    (called,) = [stored.event.tool_call_id async for stored in conversation.events if stored.kind == "ToolCalled"]
    assert {piece.tool_call_id for piece in arguments} == {called}


async def test_a_slow_listener_loses_the_oldest_pieces_and_no_event(start: Any, scripted: Any, tmp_path: Path) -> None:
    from bough.conversation.log.listeners import CHANNEL_PIECES, UpdateChannel

    channel = UpdateChannel()
    for order in range(CHANNEL_PIECES + 3):
        channel.put(Delta(text="x", order=order))
    channel.put(None)
    first = await channel.take()
    assert isinstance(first, Delta)
    assert (first.order, first.lost) == (3, 3)
    rest = 0
    while await channel.take() is not None:
        rest += 1
    assert rest == CHANNEL_PIECES - 1


def look(at: str = "here") -> str:
    """Look somewhere."""
    return f"seen {at}"
