"""A recorded run is a test: the same responses, the same tools, and what differs is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bough.conversation.replay import replay
from bough.testing import tool_call

pytestmark = pytest.mark.anyio


async def recorded(start: Any, scripted: Any, tool: Any) -> Any:
    spec = scripted(tool_call("look", name="a"), "I looked", "and again", tools=(tool,))
    conversation = await start(spec)
    for text in ("look", "once more"):
        await conversation.send_message(text)
        await conversation.run()
    return conversation


async def test_the_same_agent_does_the_same(start: Any, scripted: Any) -> None:
    looked: list[str] = []

    def look(name: str) -> str:
        """Look."""
        looked.append(name)
        return f"saw {name}"

    conversation = await recorded(start, scripted, look)
    head = conversation.state.head
    report = await replay(conversation)
    assert report.same, [difference.render() for difference in report.differences]
    assert (report.output, looked) == ("and again", ["a", "a"]), "the tool really ran again"
    assert (await conversation.store.get(conversation.id)).head == head, "the record is not touched"
    assert conversation.agent.model.requests == 3, "no model was asked"


async def test_a_tool_that_changed_is_named(start: Any, scripted: Any) -> None:
    answers = iter(["old", "new"])

    def look(name: str) -> str:
        """Look."""
        return next(answers)

    conversation = await recorded(start, scripted, look)
    report = await replay(conversation)
    assert not report.same
    first = report.differences[0]
    assert first.recorded["kind"] == first.replayed["kind"] == "ToolReturned"
    assert '-  "result": "old"' in first.render().replace('- "result"', '-  "result"')


async def test_an_agent_without_the_tool_differs_at_its_call(start: Any, scripted: Any, tmp_path: Path) -> None:
    def look(name: str) -> str:
        """Look."""
        return "saw"

    conversation = await recorded(start, scripted, look)
    report = await replay(conversation, agent=scripted())
    assert report.differences[0].recorded["kind"] == "ToolCalled"
    assert report.differences[0].replayed["kind"] == "ToolFailed"


async def test_a_replay_can_stop_early(start: Any, scripted: Any) -> None:
    def look(name: str) -> str:
        """Look."""
        return "saw"

    conversation = await recorded(start, scripted, look)
    second = [stored.seq async for stored in conversation.events if stored.kind == "UserMessage"].pop()
    report = await replay(conversation, until=second)
    assert report.same
    assert report.output == "I looked"
