"""The trace is a fold of the log: calls, their ends, answers, skills, usage, time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from bough.evals import Trace
from bough.events.model import (
    ConversationStarted,
    ErrorRaised,
    ScriptRan,
    SkillActivated,
    StateChanged,
    TaskLinked,
    ToolCalled,
    ToolFailed,
    ToolInterrupted,
    ToolRejected,
    ToolReturned,
    Usage,
    UserMessage,
)


def test_an_empty_log_has_an_empty_trace() -> None:
    trace = Trace.of([])
    assert (trace.calls, trace.answer, trace.steps, trace.cost_usd) == ((), "", 0, 0.0)


def test_a_call_is_joined_with_how_it_ended(make: type) -> None:
    trace = make.trace(
        make.called("a", {"x": 1}, n=1),
        make.called("b", "boom", failed=True),
        make.answered("done"),
    )
    assert [(c.tool, c.arguments, c.ended, c.error) for c in trace.calls] == [
        ("a", {"n": 1}, "ToolReturned", None),
        ("b", {}, "ToolFailed", "boom"),
    ]
    assert (trace.answer, trace.steps, trace.status) == ("done", 3, "finished")


def test_arguments_that_ran_count_and_a_rejected_call_has_those_it_was_made_with(make: type) -> None:
    trace = make.trace(
        make.responded(("1", "a", {"n": 1}), ("2", "b", {"m": 2}), ("3", "c", {})),
        ToolCalled(tool_call_id="1", tool="a", arguments={"n": 9}),
        ToolReturned(tool_call_id="1", tool="a", result=1),
        ToolRejected(tool_call_id="2", tool="b", by="policy", reason="no"),
        ToolFailed(tool_call_id="3", tool="c", error="not valid", retry=True),
    )
    assert [(c.tool, c.arguments, c.error) for c in trace.calls] == [("a", {"n": 9}, None), ("b", {"m": 2}, None)]
    assert trace.errors == ("c: not valid",), "a call that failed validation is not a call"


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({"error_code": "NOT_FOUND", "error": "no such skill"}, "NOT_FOUND: no such skill"),
        ({"status": "ERROR", "error_details": "bad sql"}, "bad sql"),
        ({"status": "success"}, None),
        ("error", None),
        (["error"], None),
    ],
)
def test_a_result_that_reports_an_error_is_one(make: type, result: object, error: str | None) -> None:
    (call,) = make.trace(make.called("t", result)).calls
    assert (call.error, call.has_succeeded) == (error, error is None)


def test_a_script_that_failed_is_the_error_of_its_call(make: type) -> None:
    ran = ScriptRan(tool_call_id="1", skill="s", script="scripts/x.py", status="error", exit_code=2)
    trace = make.trace(
        make.responded(("1", "run_skill_script", {})),
        ToolCalled(tool_call_id="1", tool="run_skill_script"),
        ran,
        ToolReturned(tool_call_id="1", tool="run_skill_script", result={"stdout": ""}),
    )
    assert trace.calls[0].error == "s/scripts/x.py: exit code 2"
    assert [(script.skill, script.status) for script in trace.scripts] == [("s", "error")]


def test_what_ends_twice_keeps_its_first_end_and_an_open_call_has_none(make: type) -> None:
    trace = make.trace(
        make.responded(("1", "a", {}), ("2", "b", {})),
        ToolCalled(tool_call_id="1", tool="a"),
        ToolCalled(tool_call_id="2", tool="b"),
        ToolInterrupted(tool_call_id="1", tool="a"),
        ToolReturned(tool_call_id="1", tool="a", result="late"),
    )
    assert [(call.ended, call.error) for call in trace.calls] == [("ToolInterrupted", "interrupted"), ("", None)]


def test_each_message_has_a_turn_and_a_message_during_a_run_belongs_to_its_turn(make: type) -> None:
    running, done = StateChanged(changes={"status": "running"}), StateChanged(changes={"status": "finished"})
    trace = Trace.of(
        [
            ConversationStarted(instructions="be good"),
            UserMessage.text("one"),
            running,
            make.responded(text="first"),
            UserMessage.text("wait"),
            make.responded(text="1"),
            done,
            UserMessage.text("two"),
            running,
            make.responded(text="2"),
            done,
        ]
    )
    assert [turn.requests for turn in trace.turns] == [("one", "wait"), ("two",)]
    assert [turn.answer for turn in trace.turns] == ["1", "2"]
    assert (trace.answer, trace.steps, trace.instructions) == ("2", 3, "be good")


def test_skills_that_are_always_there_do_not_count(make: type) -> None:
    trace = make.trace(
        SkillActivated(name="rules", content_hash="", trigger="always"),
        SkillActivated(name="csv", content_hash="", trigger="keyword"),
        SkillActivated(name="csv", content_hash="", trigger="tool"),
    )
    assert trace.skills == ("csv",)


def test_cost_is_unknown_as_soon_as_one_response_with_tokens_has_no_price(make: type) -> None:
    priced = make.responded(text="a", usage=Usage(input_tokens=10, output_tokens=1, cost_usd=0.5))
    unpriced = make.responded(text="b", usage=Usage(input_tokens=10))
    assert make.trace(priced, make.responded(text="free")).cost_usd == 0.5
    mixed = make.trace(priced, unpriced)
    assert (mixed.cost_usd, mixed.usage.input_tokens) == (None, 20)


def test_time_between_runs_does_not_count(make: type) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def at(seconds: int) -> datetime:
        return start + timedelta(seconds=seconds)

    trace = Trace.of(
        [
            UserMessage.text("a", ts=at(0)),
            StateChanged(changes={"status": "running"}, ts=at(1)),
            make.responded(text="x", ts=at(3)),
            StateChanged(changes={"status": "finished"}, ts=at(4)),
            UserMessage.text("b", ts=at(100)),
            StateChanged(changes={"status": "running"}, ts=at(101)),
            make.responded(text="y", ts=at(103)),
        ]
    )
    assert trace.duration_seconds == 5.0
    assert [turn.duration_seconds for turn in trace.turns] == [3.0, 2.0]


def test_calls_of_sub_agents_stand_after_the_call_that_started_them(make: type) -> None:
    child = uuid4()
    log = [
        *make.called("before"),
        make.responded(("d", "delegate", {})),
        ToolCalled(tool_call_id="d", tool="delegate"),
        TaskLinked(task_id="t", conversation=child, tool_call_id="d"),
        ToolReturned(tool_call_id="d", tool="delegate", result="ok"),
        *make.called("after"),
    ]
    events = [UserMessage.text("go"), *log]
    inner = [UserMessage.text("do"), *make.called("inner"), ErrorRaised(code="x", message="y")]
    assert [call.tool for call in Trace.of(events).calls] == ["before", "delegate", "after"]
    with_child = Trace.of(events, children={child: inner})
    assert [call.tool for call in with_child.calls] == ["before", "delegate", "inner", "after"]


def test_every_event_is_visited_once(make: type) -> None:
    events = [UserMessage.text("go"), *[event for n in range(50) for event in make.called("t", n=n)]]
    visits = 0

    def counted():
        nonlocal visits
        for event in events:
            visits += 1
            yield event

    assert len(Trace.of(counted()).calls) == 50
    assert visits == len(events)
