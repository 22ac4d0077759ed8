"""Whatever the log holds and wherever it is cut, what the model sees is in order and every call is answered once."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart

from bough.conversation.log.state import State
from bough.conversation.log.view import View, encode_response
from bough.events.model import (
    Event,
    ModelResponded,
    SkillActivated,
    ToolCalled,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
    UserMessage,
)


def responded(*parts: Any, seen: int) -> ModelResponded:
    return ModelResponded(response=encode_response(ModelResponse(parts=list(parts))), seen=seen)


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """A log as a run may write it: messages at any time, responses, their calls and outcomes in any order."""
    events: list[Event] = [UserMessage.text("start")]
    for step in range(draw(st.integers(1, 6))):
        seen = len(events)
        if draw(st.booleans()):
            events.append(UserMessage.text(f"meanwhile {step}"))
        names = [f"c{step}-{n}" for n in range(draw(st.integers(0, 3)))]
        parts = [ToolCallPart("t", {}, tool_call_id=name) for name in names] or [TextPart(f"answer {step}")]
        events.append(responded(*parts, seen=seen))
        for name in draw(st.permutations(names)):
            events.append(ToolCalled(tool_call_id=name, tool="t"))
            if draw(st.booleans()):
                events.append(SkillActivated(name="s", content_hash="0", trigger="keyword", rendered="text of s"))
            events.append(draw(outcomes(name)))
        if draw(st.booleans()):
            events.append(UserMessage.text(f"after {step}"))
    return events


def outcomes(call: str) -> st.SearchStrategy[Event]:
    return st.sampled_from(
        [
            ToolReturned(tool_call_id=call, tool="t", result={"n": 1}),
            ToolFailed(tool_call_id=call, tool="t", error="broke"),
            ToolFailed(tool_call_id=call, tool="t", error="bad", retry=True),
            ToolRejected(tool_call_id=call, tool="t", by="user", reason="no"),
            ToolInterrupted(tool_call_id=call, tool="t"),
        ]
    )


@given(logs())
def test_every_cut_renders_in_order(events: list[Event]) -> None:
    for cut in range(len(events) + 1):
        view, state = View(), State()
        for seq, event in enumerate(events[:cut]):
            view.apply(seq, event)
            state.apply(seq, event)
        messages = view.messages()
        for before, after in itertools.pairwise(messages):
            assert not (isinstance(before, ModelRequest) and isinstance(after, ModelRequest))
        calls = [p.tool_call_id for m in messages for p in m.parts if p.part_kind == "tool-call"]
        answers = [p.tool_call_id for m in messages for p in m.parts if p.part_kind == "tool-return"]
        open_calls = [call.id for call in state.open_calls]
        assert answers == calls[: len(calls) - len(state.calls) if open_calls else None]
        assert bool(open_calls) == (bool(messages) and bool(calls) and len(answers) < len(calls))


@given(logs())
def test_no_message_is_lost_or_shown_twice(events: list[Event]) -> None:
    view = View()
    for seq, event in enumerate(events):
        view.apply(seq, event)
    shown = [p.content for m in view.messages() for p in m.parts if p.part_kind == "user-prompt"]
    said = [event.plain for event in events if isinstance(event, UserMessage)]
    assert [text for text in shown if text != "text of s"] == said


@given(logs(), st.data())
def test_a_copy_goes_on_by_itself(events: list[Event], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(events)))
    view = View()
    for seq, event in enumerate(events[:cut]):
        view.apply(seq, event)
    before, copy = view.messages(), view.copy()
    for seq, event in enumerate(events[cut:], cut):
        copy.apply(seq, event)
    assert view.messages() == before


def test_a_message_that_came_too_late_for_a_response_is_still_unanswered() -> None:
    state = State()
    for seq, event in enumerate([UserMessage.text("a"), UserMessage.text("b"), responded(TextPart("to a"), seen=1)]):
        state.apply(seq, event)
    assert state.unanswered
