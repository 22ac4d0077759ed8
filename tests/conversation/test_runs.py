"""What ends a run ends it at once: leaving its stream, closing its conversation; and what of it cannot be ended."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation, Conversation
from bough.errors import InvalidInput, StoreError, Unavailable
from bough.events.model import StateChanged
from bough.events.record import StoredEvent
from bough.execution import UnsafeLocalCodeExecutor
from bough.guard import ConfirmRisky, Hook, HookKind, HookSet, NeverConfirm
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio


async def kinds(conversation: AsyncConversation) -> list[str]:
    return [stored.kind async for stored in conversation.events]


def is_response(update: object) -> bool:
    return isinstance(update, StoredEvent) and update.kind == "ModelResponded"


class Ran:
    """A tool that says whether it ran."""

    def __init__(self) -> None:
        self.calls = 0

        async def act() -> str:
            """Act."""
            self.calls += 1
            return "acted"

        self.act = act


async def test_no_tool_starts_after_the_statement_that_leaves_a_stream(start: Any, scripted: Any) -> None:
    ran = Ran()
    conversation = await start(scripted(tool_call("act"), "done", "and more", tools=(ran.act,)))
    await conversation.send_message("go")
    async for update in conversation.run_stream():
        if is_response(update):
            break
    await conversation.send_message("something else")  # waits until the run has ended
    assert conversation.status == "paused"
    assert ran.calls == 0
    assert (await conversation.run()).output == "done"


async def test_a_stream_that_is_left_may_be_followed_by_a_run_at_once(start: Any, scripted: Any) -> None:
    ran = Ran()
    conversation = await start(scripted(tool_call("act"), "done", tools=(ran.act,)))
    await conversation.send_message("go")
    async for update in conversation.run_stream():
        if is_response(update):
            break
    result = await conversation.run()
    assert (result.status, result.output) == ("finished", "done")


async def test_a_stream_that_is_dropped_before_its_first_step_runs_nothing(start: Any, scripted: Any) -> None:
    spec = scripted("one")
    conversation = await start(spec)
    await conversation.send_message("go")
    conversation.run_stream()
    assert await asyncio.wait_for(conversation.ask("?"), 60) == "one"
    assert spec.model.requests == 1
    stream = conversation.run_stream()
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


def test_the_next_line_after_a_stream_was_left_sees_the_run_ended(
    scripted: Any, settings: Settings, tmp_path: Any
) -> None:
    ended = list[bool]()

    async def hang() -> None:
        """Hang."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    spec = scripted(tool_call("hang"), tools=(hang,))
    with Conversation(spec, workspace=tmp_path, store="memory:", settings=settings) as conversation:
        conversation.send_message("go")
        for update in conversation.run_stream():
            if isinstance(update, StoredEvent) and update.kind == "ToolCalled":
                break
        assert conversation.status == "paused"
        assert ended in ([], [True]), "the tool was ended, or had not begun"
        kinds = [stored.kind for stored in conversation.events]
        assert kinds[-2:] == ["ToolInterrupted", "StateChanged"]


async def test_a_function_that_blocks_is_named_where_it_cannot_be_stopped(
    start: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bough.conversation.run.recorder.BLOCKING_SECONDS", 0.01)
    started, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block() -> str:
        """Block."""
        loop.call_soon_threadsafe(started.set)
        release.wait()
        return "too late"

    conversation = await start(scripted(tool_call("block"), "it was cut off", tools=(block,)))
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    await started.wait()
    await conversation.interrupt()
    assert (await run).reason == "interrupted"
    release.set()
    (ended,) = [s.event async for s in conversation.events if s.kind == "ToolInterrupted"]
    assert ended.reason == "still running in a thread"
    assert (await conversation.run()).output == "it was cut off"
    assert "ToolReturned" not in await kinds(conversation), "what it gave after that is dropped"


async def test_a_function_that_blocks_is_waited_for(start: Any, scripted: Any) -> None:
    started, release, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block() -> None:
        """Block."""
        loop.call_soon_threadsafe(started.set)
        release.wait()
        ended.set()

    conversation = await start(scripted(tool_call("block"), tools=(block,)))
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    await started.wait()
    interrupting = asyncio.create_task(conversation.interrupt())
    release.set()
    await interrupting
    assert ended.is_set()
    assert (await run).reason == "interrupted"


class NotAnError(BaseException):
    """What no tool should raise."""


async def test_a_tool_that_raises_what_is_no_error_fails_as_others_do(start: Any, scripted: Any) -> None:
    def odd() -> None:
        """Be odd."""
        raise NotAnError("odd")

    async def odd_too() -> None:
        """Be odd."""
        raise NotAnError("odd as well")

    calls = [tool_call("odd"), tool_call("odd_too")]
    conversation = await start(scripted(calls, "well", tools=(odd, odd_too)))
    await conversation.send_message("go")
    assert (await conversation.run()).output == "well"
    failed = [s.event.error async for s in conversation.events if s.kind == "ToolFailed"]
    assert sorted(failed) == ["NotAnError: odd", "NotAnError: odd as well"]


@pytest.mark.parametrize("raised", [StopIteration, GeneratorExit, SystemExit, StopAsyncIteration])
async def test_a_function_that_raises_what_ends_others_is_a_failed_call(
    start: Any, scripted: Any, raised: type[BaseException]
) -> None:
    """`next()` of nothing raises StopIteration, which no future takes: the run waited for it for ever."""

    def look() -> str:
        """Look."""
        raise raised

    conversation = await start(scripted(tool_call("look"), "well", tools=(look,)))
    await conversation.send_message("go")
    assert (await conversation.run()).output == "well"
    failed = [s.event.error async for s in conversation.events if s.kind == "ToolFailed"]
    assert len(failed) == 1
    assert raised.__name__ in failed[0]


async def test_a_run_whose_caller_is_cancelled_has_a_result(start: Any, scripted: Any) -> None:
    """As after Ctrl-C: what it came to can be looked at, and is not that of the run before."""
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang(_: object) -> str:
        asked.set()
        await never.wait()
        return "never"

    conversation = await start(scripted("one", hang))
    await conversation.send_message("go")
    await conversation.run()
    await conversation.send_message("again")
    run = asyncio.create_task(conversation.run())
    await asked.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    result = conversation.result
    assert (result.status, result.output, result.steps) == ("paused", "", 1)


async def test_a_closed_conversation_says_so_and_what_it_knew_can_be_read(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("one", "two"))
    await conversation.send_message("go")
    await conversation.run()
    await conversation.aclose()
    await conversation.aclose()
    assert (conversation.status, conversation.state.output) == ("finished", "one")
    for use in (
        lambda: conversation.send_message("again"),
        conversation.run,
        conversation.fork,
        lambda: conversation.ask("?"),
        conversation.messages,
        lambda: conversation.set_title("t"),
        conversation.condense,
    ):
        with pytest.raises(Unavailable, match="closed") as caught:
            await use()
        assert conversation.short_id in caught.value.hint


async def test_closing_lets_all_go_even_when_its_last_append_fails(
    scripted: Any, settings: Settings, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = HookSet((Hook(kind=HookKind.SESSION_END, function=lambda _: None),))
    conversation = await AsyncConversation.create(
        scripted("one"), workspace=tmp_path, store="memory:", settings=settings, hooks=hooks
    )
    store = conversation.store

    async def fail(*_: Any, **__: Any) -> None:
        raise StoreError("the disk is full", hint="free space")

    monkeypatch.setattr(store, "append", fail)
    with pytest.raises(StoreError, match="disk is full"):
        await conversation.aclose()
    with pytest.raises((StoreError, Unavailable)):
        await store.get(conversation.id)  # its store was closed all the same
    await conversation.aclose()


@pytest.mark.parametrize("message", [["a", "list"], 3, None, b"bytes", {"text": "x"}])
async def test_what_is_no_message_is_refused_with_a_hint(start: Any, scripted: Any, message: Any) -> None:
    conversation = await start(scripted("one"))
    with pytest.raises(InvalidInput, match="is not a message") as caught:
        await conversation.send_message(message)
    assert "UserMessage" in caught.value.hint
    assert not conversation.state.has_message


async def test_a_fork_takes_a_model_object_as_override(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("one"))
    await conversation.send_message("go")
    async with await conversation.fork(at=2, overrides={"model": ScriptedModel(["another"])}) as fork:
        assert (await fork.run()).output == "another"


async def test_a_model_string_gets_the_tools_that_its_prompt_speaks_of(settings: Settings, tmp_path: Any) -> None:
    common: Any = {"workspace": tmp_path, "store": "memory:", "settings": settings}
    async with await AsyncConversation.create("offline", **common) as conversation:
        assert conversation.agent.workspace_access == "run"
        assert conversation.state.policies["policy"]["kind"] == ConfirmRisky().to_json()["kind"]
    async with await AsyncConversation.create(confirmation_policy=NeverConfirm(), **common) as conversation:
        assert conversation.agent.workspace_access == "run"
        assert conversation.state.policies["policy"] == NeverConfirm().to_json()
    async with await AsyncConversation.create(executor=UnsafeLocalCodeExecutor(), **common) as conversation:
        assert conversation.agent.workspace_access == "write", "commands only where they run in a sandbox"
    async with await AsyncConversation.create(AgentSpec(model="offline"), **common) as conversation:
        assert conversation.agent.workspace_access == "none", "a spec says itself what it has"
        assert conversation.state.policies["policy"] == NeverConfirm().to_json()


async def test_calls_that_wait_are_told_without_a_result(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("one"))
    assert conversation.waiting == ()
    waits = {"c1": {"kind": "external", "tool": "look", "arguments": {"at": 1}, "risk": None, "reason": "r"}}
    await conversation.append(StateChanged(changes={"status": "waiting_for_confirmation", "waiting": waits}))
    (call,) = conversation.waiting
    assert (call.id, call.tool, call.arguments, call.kind) == ("c1", "look", {"at": 1}, "external")
