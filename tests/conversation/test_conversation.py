"""A conversation from its first message to its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.conversation.places import OF_TASKS, everywhere

from bough.conversation import AsyncConversation, Delta
from bough.errors import Conflict, InvalidInput, ModelError, NotFound
from bough.events.record import StoredEvent
from bough.testing import tool_call

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def kinds(conversation: AsyncConversation) -> list[str]:
    return [stored.kind async for stored in conversation.events if stored.kind not in OF_TASKS]


@everywhere
async def test_a_turn_is_recorded_in_write_ahead_order(start: Any, scripted: Any) -> None:
    conversation = await start(scripted(tool_call("add", a=1, b=2), "It is 3.", tools=(add,)))
    await conversation.send_message("What is 1 + 2?")
    result = await conversation.run()
    assert (result.status, result.output, result.steps) == ("finished", "It is 3.", 2)
    assert await kinds(conversation) == [
        "ConversationStarted", "UserMessage", "StateChanged", "StateChanged",
        "ModelResponded", "ToolCalled", "ToolReturned", "ModelResponded", "StateChanged",
    ]  # fmt: skip


@everywhere
async def test_the_call_is_durable_before_its_tool_runs(start: Any, scripted: Any) -> None:
    seen: list[str] = []

    async def look() -> str:
        """Look at the log."""
        seen.extend(await kinds(conversation))
        return "looked"

    conversation = await start(scripted(tool_call("look"), "done", tools=(look,)))
    await conversation.send_message("look")
    await conversation.run()
    assert seen[-2:] == ["ModelResponded", "ToolCalled"]


@everywhere
async def test_the_model_is_shown_results_in_the_order_of_its_calls(start: Any, scripted: Any) -> None:
    async def slow(n: int) -> int:
        """The first call ends last."""
        for _ in range(3 - n):
            await asyncio.sleep(0)
        return n

    calls = [tool_call("slow", n=n) for n in (0, 1, 2)]
    spec = scripted(calls, "done", tools=(slow,))
    conversation = await start(spec)
    await conversation.send_message("go")
    await conversation.run()
    request = spec.model.asked[1].messages[-1]
    assert [part.content for part in request.parts] == [0, 1, 2]
    assert [part.tool_call_id for part in request.parts] == [call.tool_call_id for call in calls]


@everywhere
async def test_a_second_turn_sees_the_first(start: Any, scripted: Any) -> None:
    spec = scripted("one", "two")
    conversation = await start(spec)
    for text in ("first", "second"):
        await conversation.send_message(text)
        await conversation.run()
    assert len(spec.model.asked[1].messages) == 3
    assert conversation.state.output == "two"


async def test_running_without_work_does_nothing(start: Any, scripted: Any) -> None:
    spec = scripted("never")
    conversation = await start(spec)
    result = await conversation.run()
    assert (result.steps, result.status, spec.model.requests) == (0, "idle", 0)


@everywhere
async def test_streaming_gives_every_event_and_the_text(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("a rather long answer, in pieces"))
    await conversation.send_message("hello")
    head = conversation.state.head
    updates = [update async for update in conversation.run_stream()]
    events = [update for update in updates if isinstance(update, StoredEvent)]
    assert [event.seq for event in events] == list(range(head, conversation.state.head))
    text = "".join(update.text for update in updates if isinstance(update, Delta))
    assert text == "a rather long answer, in pieces"


@everywhere
async def test_a_message_sent_during_a_request_is_answered_by_the_next(start: Any, scripted: Any) -> None:
    async def first(asked: Any) -> str:
        await conversation.send_message("and this?")
        return "first answer"

    spec = scripted(first, "second answer")
    conversation = await start(spec)
    await conversation.send_message("this?")
    result = await conversation.run()
    assert result.output == "second answer"
    shown = [type(message).__name__ for message in spec.model.asked[1].messages]
    assert shown == ["ModelRequest", "ModelResponse", "ModelRequest"], "the late message comes after the answer"


@everywhere
async def test_a_tool_that_raises_is_recorded_and_told_to_the_model(start: Any, scripted: Any) -> None:
    def broken() -> str:
        """Break."""
        raise RuntimeError("no such disk")

    spec = scripted(tool_call("broken"), "it broke", tools=(broken,))
    conversation = await start(spec)
    await conversation.send_message("go")
    assert (await conversation.run()).output == "it broke"
    assert "ToolFailed" in await kinds(conversation)
    part = spec.model.asked[1].messages[-1].parts[0]
    assert (part.outcome, part.content) == ("failed", "RuntimeError: no such disk")


@pytest.mark.parametrize("call", [tool_call("nowhere"), tool_call("add", a="x", b=2)])
async def test_calls_that_never_reach_a_tool_are_closed(start: Any, scripted: Any, call: Any) -> None:
    spec = scripted(call, "I see", tools=(add,))
    conversation = await start(spec)
    await conversation.send_message("go")
    assert (await conversation.run()).output == "I see"
    assert [kind for kind in await kinds(conversation) if kind.startswith("Tool")] == ["ToolFailed"]
    assert spec.model.asked[1].messages[-1].parts[0].outcome == "retried"


@everywhere
async def test_a_model_that_answers_nothing_ends_in_an_error(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("", "", "", "too late"))
    await conversation.send_message("say something")
    with pytest.raises(ModelError, match="no usable answer"):
        await conversation.run()
    assert conversation.status == "error"
    assert "ErrorRaised" in await kinds(conversation)


@everywhere
async def test_a_failed_run_can_be_run_again(start: Any, scripted: Any) -> None:
    conversation = await start(scripted(ModelError("no route to the model"), "back again"))
    await conversation.send_message("hello")
    with pytest.raises(ModelError):
        await conversation.run()
    assert conversation.status == "error"
    assert (await conversation.run()).output == "back again"
    assert conversation.status == "finished"


@everywhere
async def test_two_runs_at_once_are_refused(start: Any, scripted: Any, reopen: Any) -> None:
    started = asyncio.Event()

    async def wait(asked: Any) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    spec = scripted(wait)
    conversation = await start(spec)
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    await started.wait()
    with pytest.raises(Conflict):
        await conversation.run()
    other = await reopen(conversation.id, spec)
    with pytest.raises(Conflict):
        await other.run()
    await other.send_message("still accepted")
    await conversation.interrupt()
    assert (await run).status == "paused"


@everywhere
async def test_interrupt_closes_the_running_call_and_can_be_resumed(start: Any, scripted: Any) -> None:
    started = asyncio.Event()

    async def hang() -> str:
        """Hang."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    conversation = await start(scripted(tool_call("hang"), "I was interrupted", tools=(hang,)))
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    await started.wait()
    await conversation.interrupt()
    assert (await run).status == "paused"
    assert (await kinds(conversation))[-2:] == ["ToolInterrupted", "StateChanged"]
    assert (await conversation.run()).output == "I was interrupted"


@everywhere
async def test_cancelling_the_caller_cancels_the_run(start: Any, scripted: Any) -> None:
    started = asyncio.Event()

    async def wait(asked: Any) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    conversation = await start(scripted(wait))
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert conversation.status == "paused"


async def test_leaving_a_stream_interrupts_the_run(start: Any, scripted: Any) -> None:
    conversation = await start(scripted(tool_call("add", a=1, b=1), "2", tools=(add,)))
    await conversation.send_message("go")
    stream = conversation.run_stream()
    async for update in stream:
        if isinstance(update, StoredEvent) and update.kind == "ModelResponded":
            break
    await stream.aclose()
    assert conversation.status == "paused"
    assert (await conversation.run()).output == "2"


async def test_open_by_the_end_of_the_id(start: Any, scripted: Any, store: Any, settings: Any) -> None:
    spec = scripted("one", "two")
    conversation = await start(spec, title="kept", tags={"a": "b"})
    await conversation.send_message("first")
    await conversation.run()
    again = await AsyncConversation.open(conversation.short_id, store=store, agent=spec, settings=settings)
    assert (again.id, again.title, again.tags, again.state.output) == (conversation.id, "kept", {"a": "b"}, "one")


async def test_an_agent_that_the_log_only_names_must_be_given(
    start: Any, scripted: Any, store: Any, settings: Any
) -> None:
    conversation = await start(scripted("one"))
    with pytest.raises(InvalidInput, match="only names"):
        await AsyncConversation.open(conversation.id, store=store, settings=settings)


async def test_what_does_not_exist_is_said(store: Any, settings: Any, scripted: Any, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await AsyncConversation.open("deadbeef", store=store, settings=settings)
    with pytest.raises(InvalidInput, match="not a folder"):
        await AsyncConversation.create(scripted(), workspace=tmp_path / "no", store=store, settings=settings)
    with pytest.raises(InvalidInput):
        await AsyncConversation.create("no-such:model", workspace=tmp_path, store=store, settings=settings)
    assert (await AsyncConversation.list(store)).items == [], "a refused conversation leaves nothing behind"


@everywhere
async def test_an_empty_message_is_refused(start: Any, scripted: Any) -> None:
    conversation = await start(scripted())
    with pytest.raises(InvalidInput, match="empty"):
        await conversation.send_message("  \n")
    assert await kinds(conversation) == ["ConversationStarted"]


@everywhere
async def test_the_first_message_gives_the_title(start: Any, scripted: Any, store: Any) -> None:
    conversation = await start(scripted("ok"))
    await conversation.send_message("\n Summarise sales.csv\nplease")
    assert conversation.title == "Summarise sales.csv"
    assert (await store.get(conversation.id)).title == "Summarise sales.csv"


async def test_a_conversation_without_key_or_name_is_offline(
    store: Any, settings: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    conversation = await AsyncConversation.create(workspace=tmp_path, store=store, settings=settings)
    assert conversation.agent.model == "offline"
    await conversation.send_message("paint me a picture of a whale")
    assert (await conversation.run()).status == "finished"


async def test_exist_ok_opens_what_is_there_with_the_agent_given(start: Any, scripted: Any) -> None:
    id = uuid4()
    first = await start(scripted("one"), id=id, exist_ok=True)
    await first.send_message("go")
    await first.run()
    head = first.state.head
    same = await start(scripted("two"), id=id, exist_ok=True)
    assert same.state.head == head, "an agent that is recorded alike is not recorded again"
    await same.send_message("continue")
    assert (await same.run()).output == "two"
    other = await start(scripted("three", description="another one"), id=id, exist_ok=True)
    assert other.state.agent["description"] == "another one"
    for each in (first, same, other):
        await each.aclose()


async def test_exist_ok_needs_an_id_and_without_it_a_taken_id_is_a_conflict(start: Any, scripted: Any) -> None:
    with pytest.raises(InvalidInput, match="exist_ok needs"):
        await start(scripted(), exist_ok=True)
    first = await start(scripted())
    with pytest.raises(Conflict):
        await start(scripted(), id=first.id)
    await first.aclose()
