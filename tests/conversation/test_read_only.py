"""Conversations that are opened to be read: without the agent's code, and without a change to the store."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from bough import AgentSpec, AsyncConversation, Conversation, OrchestratorAgent, Settings
from bough.errors import InvalidInput, NotFound, Unavailable
from bough.events import open_store
from bough.guard import Hook, HookKind, HookSet, Limits, NeverConfirm
from bough.testing import ScriptedModel, tool_call
from bough.testing.store.reading import read_log
from bough.types import new_id

pytestmark = pytest.mark.anyio


def look(city: str) -> str:
    """Look at a city."""
    return f"sun in {city}"


async def _start(settings: Settings, folder: Path, *steps: Any, **rules: Any) -> AsyncConversation[Any]:
    spec = AgentSpec(name="watcher", model=ScriptedModel(steps), tools=(look,), skills=())
    return await AsyncConversation.create(spec, workspace=folder, settings=settings, **rules)


async def test_it_needs_neither_agent_nor_hooks(settings: Settings, tmp_path: Path) -> None:
    ends: list[Any] = []
    hooks = HookSet((Hook(kind=HookKind.SESSION_END, function=ends.append),))
    async with await _start(settings, tmp_path, tool_call("look", city="Oslo"), "sunny", hooks=hooks) as source:
        await source.send_message("weather?")
        await source.run()
        messages = await source.messages()
    with pytest.raises(InvalidInput):
        await AsyncConversation.open(source.id, settings=settings)
    async with await AsyncConversation.open(source.id.hex[-8:], settings=settings, read_only=True) as opened:
        assert (opened.status, opened.title, opened.agent.name) == ("finished", "weather?", "watcher")
        assert opened.workspace == tmp_path
        (turn,) = await opened.turns()
        assert turn.calls[0].ended == "ToolReturned"
        assert (turn.output, turn.calls[0].result) == ("sunny", "sun in Oslo")
        assert await opened.messages() == messages
        assert len([update async for update in opened.follow()]) == opened.state.head
        assert [record.id for record in await opened.lineage()] == [source.id]
        assert (await opened.compare(opened)).common == opened.state.head
    assert len(ends) == 1, "closing a reader runs no hook"


async def test_nothing_is_written_or_run(settings: Settings, tmp_path: Path) -> None:
    async with await _start(settings, tmp_path, "hello", "again") as source:
        await source.send_message("hi")
        await source.run()
        await source.send_message("and now?")
    opened = await AsyncConversation.open(source.id, settings=settings, read_only=True)
    async with aclosing(await open_store(settings.store)) as store:
        log, record = await read_log(store, source.id), await store.get(source.id)
        for change in (
            lambda: opened.run(),
            lambda: opened.start(),
            lambda: opened.send_message("x"),
            lambda: opened.send_message("x", id=new_id()),
            lambda: opened.ask("x"),
            lambda: opened.fork(),
            lambda: opened.condense(),
            lambda: opened.pause(),
            lambda: opened.interrupt(),
            lambda: opened.approve(),
            lambda: opened.reject(),
            lambda: opened.answer("c", 1),
            lambda: opened.set_title("x"),
            lambda: opened.set_tags({}),
            lambda: opened.set_model("offline"),
            lambda: opened.set_limits(Limits(steps=1)),
            lambda: opened.set_confirmation_policy(NeverConfirm()),
            lambda: opened.adopt(),
            lambda: opened.graft(opened),
            lambda: opened.append(),
        ):
            with pytest.raises(Unavailable, match="read-only"):
                await change()
        await opened.aclose()
        assert (await read_log(store, source.id), await store.get(source.id)) == (log, record)
    with pytest.raises(Unavailable, match="closed"):
        await opened.messages()


async def test_a_run_elsewhere_is_followed(settings: Settings, tmp_path: Path) -> None:
    source = await _start(settings, tmp_path, "hello")
    async with source, await AsyncConversation.open(source.id, settings=settings, read_only=True) as opened:
        await source.send_message("hi")
        await source.start()
        assert "ModelResponded" in [update.kind async for update in opened.follow()]
        assert (await opened.turns())[0].output == "hello"


async def test_sub_agents_need_no_broker_and_other_arguments_are_refused(settings: Settings, tmp_path: Path) -> None:
    helper = AgentSpec(name="helper", description="Helps.", model=ScriptedModel([]), skills=())
    top = AgentSpec(name="top", model=ScriptedModel(["done"]), skills=(), sub_agents=[helper])
    async with OrchestratorAgent(top, workspace=tmp_path, settings=settings, store=settings.store) as orchestrator:
        await orchestrator.run("go")
        id = orchestrator.conversation.id
    async with await AsyncConversation.open(id, settings=settings, read_only=True) as opened:
        assert (await opened.turns())[0].output == "done"
    with pytest.raises(InvalidInput, match="agent= has no effect"):
        await AsyncConversation.open(id, settings=settings, read_only=True, agent=top)
    with pytest.raises(NotFound):
        await AsyncConversation.open(new_id(), settings=settings, read_only=True)


def test_without_await(settings: Settings, tmp_path: Path) -> None:
    spec = AgentSpec(name="watcher", model=ScriptedModel(["hello"]), tools=(look,), skills=())
    with Conversation(spec, workspace=tmp_path, settings=settings) as source:
        source.send_message("hi")
        source.run()
    with Conversation.open(source.id, settings=settings, read_only=True) as opened:
        assert opened.turns()[0].output == "hello"
        with pytest.raises(Unavailable):
            opened.send_message("more")
