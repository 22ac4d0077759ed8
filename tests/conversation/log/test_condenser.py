"""Condensing: what the model sees gets short, the log stays, nothing that belongs together is parted."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from bough.conversation.log.condenser import KeepFirstCondenser, NoCondenser, Size, SummarizingCondenser, select_range
from bough.conversation.log.view import View, encode_response
from bough.conversation.run.ask import summarize
from bough.errors import InvalidInput
from bough.events.model import Event, ModelResponded, SkillActivated, ToolReturned, UserMessage
from bough.testing import ScriptedModel

pytestmark = pytest.mark.anyio


def responded(*parts: Any, seen: int) -> ModelResponded:
    return ModelResponded(response=encode_response(ModelResponse(parts=list(parts))), seen=seen)


def log(turns: int, calls: int = 1) -> list[Event]:
    events: list[Event] = []
    for turn in range(turns):
        events.append(UserMessage.text(f"question {turn}"))
        names = [f"c{turn}-{n}" for n in range(calls)]
        if names:
            parts = [ToolCallPart("t", {}, tool_call_id=name) for name in names]
            events.append(responded(*parts, seen=len(events)))
            events += [ToolReturned(tool_call_id=name, tool="t", result="r") for name in names]
        events.append(responded(TextPart(f"answer {turn}"), seen=len(events)))
    return events


def view_of(events: list[Event]) -> View:
    view = View()
    for seq, event in enumerate(events):
        view.apply(seq, event)
    return view


def check_pairs(view: View) -> None:
    waiting: list[str] = []
    kinds = [message.kind for message in view.messages()]
    assert all(a != b for a, b in itertools.pairwise(kinds)), "requests and responses take turns"
    assert kinds[0] == "request"
    for message in view.messages():
        for part in message.parts:
            if part.part_kind == "tool-call":
                waiting.append(part.tool_call_id)
            elif part.part_kind == "tool-return":
                assert waiting.pop(0) == part.tool_call_id
    assert waiting == []


@given(st.integers(2, 12), st.integers(0, 3), st.integers(0, 6), st.integers(0, 8))
def test_every_stretch_keeps_calls_and_results_together(turns: int, calls: int, first: int, last: int) -> None:
    events = log(turns, calls)
    view = view_of(events)
    middle = select_range(view.shown, keep_first=first, keep_last=last)
    if not middle:
        return
    from bough.events.model import Condensed

    view.apply(len(events), Condensed(start=middle[0].start, stop=middle[-1].stop, summary="so far"))
    check_pairs(view)
    assert "so far" in str(view.messages())


async def test_the_middle_is_left_out_when_it_is_too_much() -> None:
    view = view_of(log(20))
    condenser = KeepFirstCondenser(max_events=20, keep_first=2)
    size = Size(messages=len(view.shown), tokens=0)
    condensed = await condenser.condense(view, size)
    assert condensed is not None
    view.apply(10_000, condensed)
    check_pairs(view)
    assert len(view.shown) <= 20
    texts = str(view.messages())
    assert "question 0" in texts, "the first messages stay"
    assert "answer 19" in texts, "the newest messages stay"
    assert "question 5" not in texts
    assert await condenser.condense(view, Size(messages=len(view.shown), tokens=0)) is None


async def test_a_model_makes_the_summary() -> None:
    view = view_of(log(10))
    model = ScriptedModel(["they asked and were answered"])
    condenser = SummarizingCondenser(model=model, max_tokens=100, summarize=partial(summarize, prices={}))
    assert await condenser.condense(view, Size(messages=40, tokens=100)) is None
    condensed = await condenser.condense(view, Size(messages=40, tokens=101))
    assert condensed is not None
    assert "they asked and were answered" in condensed.summary
    assert condensed.usage is not None
    assert condensed.usage.requests == 1
    view.apply(10_000, condensed)
    check_pairs(view)


async def test_the_text_of_skills_survives() -> None:
    events = log(3)
    events.insert(1, SkillActivated(name="s", content_hash="0", trigger="tool", rendered="<skill>do it so</skill>"))
    view = view_of(events + log(10))
    condenser = KeepFirstCondenser(max_events=10, keep_first=0)
    condensed = await condenser.condense(view, Size(messages=len(view.shown), tokens=0))
    assert condensed is not None
    view.apply(10_000, condensed)
    assert "do it so" in str(view.messages())


async def test_a_conversation_goes_on_with_a_summary(start: Any, scripted: Any) -> None:
    spec = scripted(*[f"answer {n}" for n in range(12)])
    conversation = await start(spec, condenser=KeepFirstCondenser(max_events=8, keep_first=2))
    for n in range(12):
        await conversation.send_message(f"question {n}")
        assert (await conversation.run()).output == f"answer {n}"
    assert max(len(asked.messages) for asked in spec.model.asked) <= 10
    said = [stored.event.plain async for stored in conversation.events if stored.kind == "UserMessage"]
    assert said == [f"question {n}" for n in range(12)], "the log keeps every message"
    condensed = [stored.seq async for stored in conversation.events if stored.kind == "Condensed"]
    assert condensed
    before = await conversation.fork(at=condensed[0])
    assert "left out" not in str(await before.messages()), "a condensation after the cut is invisible"


async def test_a_condenser_that_fails_does_not_stop_the_run(start: Any, scripted: Any) -> None:
    spec = scripted(*[f"answer {n}" for n in range(8)])
    failing = SummarizingCondenser(model=ScriptedModel([]), max_events=6)
    conversation = await start(spec, condenser=failing)
    for n in range(8):
        await conversation.send_message(f"question {n}")
        assert (await conversation.run()).output == f"answer {n}"
    errors = [stored.event.message async for stored in conversation.events if stored.kind == "ErrorRaised"]
    assert errors
    assert all("condensing failed" in message for message in errors)


def test_bounds_that_cannot_be() -> None:
    with pytest.raises(InvalidInput):
        KeepFirstCondenser(max_events=3, keep_first=2)
    with pytest.raises(InvalidInput):
        SummarizingCondenser(keep_first=-1)


async def test_no_condenser_never_condenses() -> None:
    view = view_of(log(50))
    assert await NoCondenser().condense(view, Size(messages=10_000, tokens=10**9), force=True) is None
