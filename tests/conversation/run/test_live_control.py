"""What is set while a run is active: its model, in this object and in others; an interrupt through the log."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.errors import InvalidInput
from bough.events import open_store
from bough.events.store import EventStore
from bough.testing import ScriptedModel, tool_call
from bough.testing.openai_server import Answer, OpenAIServer, ServerCall

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EventStore]:
    opened = await open_store(f"sqlite:///{tmp_path / 'log.db'}")
    yield opened
    await opened.aclose()


class Gate:
    """A tool in which the run waits until the test has done something."""

    def __init__(self) -> None:
        self.entered, self.leave = asyncio.Event(), asyncio.Event()
        self.cancelled = False

    def tool(self) -> Any:
        async def wait_here() -> str:
            """Wait."""
            self.entered.set()
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            return "waited"

        return wait_here


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def begun(start: Any, spec: AgentSpec, gate: Gate) -> tuple[AsyncConversation, asyncio.Task[Any]]:
    conversation = await start(spec)
    await conversation.send_message("go")
    run = asyncio.create_task(conversation.run())
    await gate.entered.wait()
    return conversation, run


async def test_a_model_object_that_is_set_during_a_run_answers_the_next_step(
    start: Any, scripted: Any, gate: Gate
) -> None:
    spec = scripted(tool_call("wait_here"), tools=(gate.tool(),))
    conversation, run = await begun(start, spec, gate)
    other = ScriptedModel(["from the other one"], model_name="other")
    await conversation.set_model(other)
    gate.leave.set()
    result = await run
    assert (result.output, result.steps) == ("from the other one", 2)
    assert (spec.model.requests, other.requests) == (1, 1)
    assert conversation.agent.model_name == "other"


async def test_a_model_that_another_object_sets_answers_the_next_step(
    start: Any, store: Any, settings: Any, gate: Gate
) -> None:
    first, second = Answer(calls=(ServerCall(tool="wait_here"),)), "from the second one"
    with OpenAIServer([first, second]) as server:
        spec = AgentSpec(model="openai:first", base_url=server.url, tools=(gate.tool(),), skills=())
        conversation, run = await begun(start, spec, gate)
        async with await AsyncConversation.open(conversation.id, store=store, agent=spec, settings=settings) as other:
            await other.set_model("openai:second")
        gate.leave.set()
        assert (await run).output == "from the second one"
        await conversation.aclose()
    assert [received.body["model"] for received in server.received] == ["first", "second"]


async def test_a_model_object_of_another_process_pauses_the_run_and_loses_nothing(
    start: Any, scripted: Any, store: Any, settings: Any, gate: Gate
) -> None:
    spec = scripted(tool_call("wait_here"), "in the end", tools=(gate.tool(),))
    conversation, run = await begun(start, spec, gate)
    async with await AsyncConversation.open(conversation.id, store=store, agent=spec, settings=settings) as other:
        await other.set_model(ScriptedModel(["never"], model_name="elsewhere"))
    gate.leave.set()
    result = await run
    assert (result.status, result.reason) == ("paused", "invalid_input")
    await conversation.set_model(spec.model)
    assert (await conversation.run()).output == "in the end"


async def test_a_model_that_is_not_there_changes_nothing(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("one"))
    head = conversation.state.head
    with pytest.raises(InvalidInput, match="unknown model"):
        await conversation.set_model("nope")
    assert conversation.state.head == head


async def test_another_object_interrupts_a_run_through_the_log(
    start: Any, scripted: Any, store: Any, settings: Any, gate: Gate
) -> None:
    spec = scripted(tool_call("wait_here"), "never", tools=(gate.tool(),))
    conversation, run = await begun(start, spec, gate)
    async with await AsyncConversation.open(conversation.id, store=store, agent=spec, settings=settings) as other:
        await other.interrupt(by="ann")
    result = await run
    assert (result.status, result.reason, result.steps) == ("paused", "interrupted", 1)
    assert gate.cancelled
    kinds = [stored.kind async for stored in conversation.events]
    assert "ToolInterrupted" in kinds
    assert spec.model.requests == 1


_INTERRUPT = """
import sys
from pathlib import Path
from bough import Conversation, Settings
settings = Settings.load(home=Path(sys.argv[3]), env={}, cwd=Path(sys.argv[3]))
with Conversation.open(sys.argv[2], store=sys.argv[1], settings=settings) as conversation:
    conversation.interrupt(by="elsewhere")
"""


async def test_another_process_interrupts_a_run_through_the_log(
    start: Any, store: Any, tmp_path: Path, gate: Gate
) -> None:
    first = Answer(calls=(ServerCall(tool="run_command", arguments={"command": "sleep 600"}),))
    with OpenAIServer([first]) as server:
        spec = AgentSpec(model="openai:first", base_url=server.url, workspace_access="run", skills=None)
        conversation = await start(spec)
        await conversation.send_message("go")
        run = asyncio.create_task(conversation.run())
        async for stored in store.subscribe(conversation.id):
            if stored.kind == "ToolCalled":
                break
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _INTERRUPT, f"sqlite:///{tmp_path / 'log.db'}", str(conversation.id), str(tmp_path)
        )
        result = await run
        assert await process.wait() == 0
        await conversation.aclose()
    assert (result.status, result.reason) == ("paused", "interrupted")


async def test_interrupting_what_does_not_run_writes_nothing(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("one"))
    head = conversation.state.head
    await asyncio.gather(conversation.interrupt(), conversation.interrupt())
    assert conversation.state.head == head


async def test_two_interrupts_at_once_end_one_run_once(start: Any, scripted: Any, gate: Gate) -> None:
    spec = scripted(tool_call("wait_here"), "never", tools=(gate.tool(),))
    conversation, run = await begun(start, spec, gate)
    await asyncio.gather(conversation.interrupt(), conversation.interrupt())
    assert (await run).reason == "interrupted"
    changes = [stored.event.changes async for stored in conversation.events if stored.kind == "StateChanged"]
    assert [change.get("status") for change in changes].count("paused") == 1


async def test_an_interrupt_before_the_run_has_begun_stops_it(start: Any, scripted: Any) -> None:
    spec = scripted("never")
    conversation = await start(spec)
    await conversation.send_message("go")
    run = asyncio.ensure_future(conversation.run())
    while not conversation._current_run.is_active:
        await asyncio.sleep(0)
    await conversation.interrupt()
    assert (await run).output == ""
    assert spec.model.requests == 0


async def test_a_model_object_of_the_same_name_takes_effect(start: Any) -> None:
    first, second = ScriptedModel(["from the first"]), ScriptedModel(["from the second", "again"])
    assert first.model_name == second.model_name
    async with await start(AgentSpec(name="tester", model=first)) as conversation:
        await conversation.send_message("one")
        assert (await conversation.run()).output == "from the first"
        await conversation.set_model(second)
        await conversation.send_message("two")
        assert (await conversation.run()).output == "from the second"
        assert conversation.agent.model is second


async def test_a_model_object_of_the_same_name_takes_effect_at_the_next_step(start: Any) -> None:
    second = ScriptedModel(["from the second"])

    async def change() -> str:
        """Change the model."""
        await conversation.set_model(second)
        return "changed"

    first = ScriptedModel([tool_call("change"), "from the first"])
    async with await start(AgentSpec(name="tester", model=first, tools=(change,))) as conversation:
        await conversation.send_message("change it")
        assert (await conversation.run()).output == "from the second"
