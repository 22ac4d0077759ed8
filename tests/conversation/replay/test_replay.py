"""A recorded run is a test: the same responses, the same tools, and what differs is shown."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bough.conversation.log.condenser import SummarizingCondenser
from bough.conversation.replay.replay import replay
from bough.events.model import Condensed
from bough.testing import ScriptedModel, tool_call

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


# What came from outside in the middle of a run.


async def test_messages_that_came_in_the_middle_come_again_at_their_places(start: Any, scripted: Any) -> None:
    """One while the model wrote, one while a tool ran, two before a run; each is answered where it was."""

    def writing(_: Any) -> Any:
        later.append(asyncio.ensure_future(conversation.send_message("while it writes")))
        return tool_call("look", name="a")

    async def look(name: str) -> str:
        """Look."""
        if not looked:
            await conversation.send_message("while it looks")
        looked.append(name)
        return f"saw {name}"

    later: list[Any] = []
    looked: list[str] = []
    steps = [writing, tool_call("look", name="b"), "first done", "second done"]
    conversation = await start(scripted(*steps, tools=(look,)))
    await conversation.send_message("look")
    await conversation.send_message("and be quick")
    await conversation.run()
    await asyncio.gather(*later)
    await conversation.send_message("once more")
    await conversation.run()
    report = await replay(conversation)
    assert report.same, [difference.render() for difference in report.differences]
    assert (report.output, looked) == ("second done", ["a", "b"] * 2)


async def test_a_message_during_the_last_response_is_answered_again(start: Any, scripted: Any) -> None:
    async def hold(_: Any) -> str:
        await conversation.send_message("wait")
        return "too late"

    conversation = await start(scripted(hold, "waited"))
    await conversation.send_message("go")
    await conversation.run()
    kinds = [stored.kind async for stored in conversation.events if stored.kind in ("UserMessage", "ModelResponded")]
    assert kinds == ["UserMessage", "UserMessage", "ModelResponded", "ModelResponded"]
    report = await replay(conversation)
    assert report.same, [difference.render() for difference in report.differences]
    assert report.output == "waited"


async def test_summaries_come_from_the_record(start: Any, scripted: Any) -> None:
    def look(name: str) -> str:
        """Look."""
        return f"saw {name}"

    summarizer = ScriptedModel([f"summary {n}" for n in range(9)])
    steps = [*(tool_call("look", name=str(n)) for n in range(8)), "done"]
    conversation = await start(
        scripted(*steps, tools=(look,)), condenser=SummarizingCondenser(model=summarizer, max_events=8, keep_first=1)
    )
    await conversation.send_message("look at eight things")
    await conversation.run()
    condensed = [stored.kind async for stored in conversation.events].count("Condensed")
    assert condensed == summarizer.requests > 2
    report = await replay(conversation)
    assert report.same, [difference.render() for difference in report.differences]
    assert summarizer.requests == condensed, "no model was asked again"


async def test_what_a_person_had_condensed_is_condensed_again(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("one", "two", "three", "four", "five", "what was said", "six"))
    for text in "abcde":
        await conversation.send_message(text)
        await conversation.run()
    assert await conversation.condense()
    await conversation.send_message("f")
    await conversation.run()
    report = await replay(conversation)
    assert report.same, [difference.render() for difference in report.differences]
    assert conversation.agent.model.requests == 7, "no model was asked again"


async def test_a_summary_that_is_not_reproduced_is_a_difference(start: Any, scripted: Any) -> None:
    conversation = await start(scripted("one", "two"))
    await conversation.send_message("go")
    await conversation.run()
    await conversation.append(Condensed(start=0, stop=99, summary="of nothing", usage=None))
    await conversation.append(Condensed(start=98, stop=99, summary="of what is not there", usage=None))
    await conversation.send_message("continue")
    await conversation.run()
    report = await replay(conversation)
    assert [difference.recorded["summary"] for difference in report.differences] == ["of what is not there"]
