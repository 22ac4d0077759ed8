"""The plan as a whole: whatever the tools answer, a turn ends, and no call is made twice in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.agents.models.planner.plan import PlannedCall, plan
from bough.agents.models.planner.prompt import read_prompt
from bough.agents.models.planner.rank import RankedSkill
from bough.agents.models.planner.skill import pick_script, read_skill
from bough.agents.models.planner.view import Active, Done, PlannerTurn, Used

TOOLS = ["list_skills", "search_skills", "load_skill", "activate_skill", "load_skill_resource", "run_skill_script"]
ENTRIES = (
    RankedSkill(name="word-count", text="Counts words in files."),
    RankedSkill(name="notes", text="House style."),
)
TEXT = "Run `scripts/count.py FILE`."

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.just(TEXT),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
RESULTS = JSON | st.fixed_dictionaries(
    {"status": st.sampled_from(["success", "warning", "error"])},
    optional={
        "stdout": JSON,
        "stderr": JSON,
        "exit_code": JSON,
        "error_code": JSON,
        "output_files": JSON,
        "error": JSON,
    },
)
OUTCOMES = st.sampled_from(["success", "failed", "denied", "interrupted", "retried"])
MESSAGES = st.text(max_size=40) | st.sampled_from(
    [
        "count the words in a.md",
        "count the words in a.md and look up the house style",
        "/word-count a.md",
        "/notes",
        "/nothing",
        "and b.md?",
        "the house style",
        "hello",
    ]
)
TURNS = st.builds(
    PlannerTurn,
    message=MESSAGES,
    entries=st.sampled_from([(), ENTRIES]),
    names=st.sampled_from([frozenset(), frozenset({"word-count", "notes"})]),
    tools=st.frozensets(st.sampled_from(TOOLS)),
    active=st.sampled_from([(), (Active(name="word-count", text=TEXT),), (Active(name="notes", text="words"),)]),
    used=st.none() | st.just(Used(skill="word-count", script="scripts/count.py")),
)


@given(TURNS, st.data())
def test_a_turn_ends_and_repeats_no_call(turn: PlannerTurn, data: st.DataObject) -> None:
    calls: list[tuple[str, str]] = []
    for _ in range(8):
        step = plan(turn)
        assert step == plan(turn), "the same turn gives the same step"
        if isinstance(step, str):
            assert step.strip()
            break
        assert step.tool in turn.tools
        calls.append((step.tool, repr(step.args)))
        result = data.draw(RESULTS)
        done = Done(tool=step.tool, args=step.args, result=result, outcome=data.draw(OUTCOMES))
        turn = replace(turn, done=(*turn.done, done))
    else:
        pytest.fail(f"no answer after {calls}")
    assert len(calls) <= 5, "one search, then two calls a skill"
    assert len(set(calls)) == len(calls)


def ran(**result: Any) -> str:
    args = {"skill_name": "word-count", "script_path": "scripts/count.py", "args": ["a b.md"]}
    done = Done(tool="run_skill_script", args=args, result=result, outcome="success")
    answer = plan(PlannerTurn(message="/word-count 'a b.md'", done=(done,)))
    assert isinstance(answer, str)
    return answer


def test_output_is_given_whole_up_to_a_bound_that_is_told() -> None:
    assert ran(status="success", stdout="\n3 words\n") == "3 words"
    long = ran(status="success", stdout="x" * 30_000)
    assert long.endswith("… (10000 more characters)")
    assert long.startswith("x" * 20_000)


def test_silence_warnings_and_files_are_told_as_they_are() -> None:
    assert ran(status="success", stdout="") == "scripts/count.py of the skill word-count succeeded without output."
    warned = ran(status="warning", stdout="3", stderr="skipped b.md")
    assert warned == "3\n\nscripts/count.py of the skill word-count also printed to stderr:\nskipped b.md"
    files = ran(status="success", stdout="", output_files=[{"path": "out.txt", "size_bytes": 3}, "b.txt"])
    assert files == "Files it created: out.txt, b.txt"


@pytest.mark.parametrize(
    ("result", "parts"),
    [
        (
            {"exit_code": 2, "stderr": "usage: count.py FILE"},
            ["exit code 2", "usage: count.py FILE", "/word-count ARG"],
        ),
        ({"timed_out": True, "error_code": "TIMEOUT"}, ["timed out", "(TIMEOUT)", "more time"]),
        ({"error_code": "NO_CODE_EXECUTOR", "error": "no executor"}, ["no executor", "No executor is configured"]),
        ({"exit_code": 1, "stderr": "boom", "stdout": "half"}, ["boom", "Before that it printed:\nhalf", "'a b.md'"]),
    ],
)
def test_a_failure_says_which_script_how_and_what_to_try(result: dict[str, Any], parts: list[str]) -> None:
    answer = ran(status="error", **result)
    assert answer.startswith("scripts/count.py of the skill word-count ")
    for part in parts:
        assert part in answer


def test_an_error_that_repeats_the_error_stream_is_said_once() -> None:
    answer = ran(status="error", exit_code=1, stderr="no such file", error="exit code 1: no such file")
    assert answer.count("no such file") == 1


def test_an_error_text_keeps_its_end_where_the_reason_stands() -> None:
    assert "ValueError: the reason" in ran(status="error", exit_code=1, stderr="x\n" * 5000 + "ValueError: the reason")


def test_inputs_that_a_skill_asks_for_are_asked_before_anything_runs() -> None:
    text = f"{TEXT}\n\nBefore you start, ask the user for these inputs by name:\n- issue: Its number\n"
    turn = PlannerTurn(
        message="/fix", names=frozenset({"fix"}), active=(Active(name="fix", text=text),), tools=frozenset(TOOLS)
    )
    assert (
        plan(turn) == "The skill fix needs these inputs first:\n- issue: Its number\n\nPass them as /fix name=value …"
    )


def test_scripts_named_in_the_instructions_come_before_those_only_listed() -> None:
    listing = "<skill_resources>\n<file>scripts/lib.py</file>\n<file>scripts/count.py</file>\n</skill_resources>"
    loaded = read_skill(f"# Count\n\n{TEXT} Never mind scripts/gone.py or scripts/data.csv.\n\n{listing}")
    assert loaded.scripts == ("scripts/count.py",)
    assert "skill_resources" not in loaded.text
    assert read_skill(f"# Count\n\n{listing}").scripts == ("scripts/lib.py", "scripts/count.py")


def test_a_result_with_fields_is_read_like_a_text() -> None:
    loaded = read_skill({"instructions": TEXT, "resources": {"scripts": ["scripts/count.py"]}})
    assert pick_script(loaded, read_prompt("count words")) == "scripts/count.py"


def test_the_other_name_of_the_loading_tool_is_used_where_only_that_is_there() -> None:
    turn = PlannerTurn(message="count words in a.md", entries=ENTRIES, tools=frozenset({"activate_skill"}))
    assert plan(turn) == PlannedCall(tool="activate_skill", args={"skill_name": "word-count"})


def test_inputs_that_a_message_gives_by_name_go_to_the_skill_that_asks_for_them() -> None:
    asks = "Count.\n\nBefore you start, ask the user for these inputs by name:\n- note: What to note\n"
    loaded = Done(tool="load_skill", args={"skill_name": "word-count"}, result=asks, outcome="success")
    turn = PlannerTurn(
        message="count words note=brief", entries=ENTRIES, tools=frozenset({"load_skill"}), done=(loaded,)
    )
    step = plan(turn)
    assert step == PlannedCall(tool="load_skill", args={"skill_name": "word-count", "inputs": {"note": "brief"}})
    again = replace(loaded, args={**step.args})
    assert "needs these inputs first" in str(plan(replace(turn, done=(loaded, again))))
    assert "needs these inputs first" in str(plan(replace(turn, message="count words")))
