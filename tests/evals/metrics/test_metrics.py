"""Every metric on hand-made traces, with the numbers that the design page gives for them, edges included."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bough.evals import Rubric, ToolUse, Trace, TraceContext, TracedCall, metrics
from bough.evals.context import AttemptHost
from bough.evals.judge.verdict import Judgement, RubricVerdict
from bough.evals.metrics.evaluators import BOUGH_EVALUATORS, evaluator_named, score_adherence
from bough.evals.score import AT_MOST, METRICS, THRESHOLDS
from bough.events.model import (
    ModelResponded,
    ScriptRan,
    SkillActivated,
    StateChanged,
    ToolCalled,
    ToolRejected,
    ToolReturned,
    Usage,
    UserMessage,
)

EXPECTED = [
    ToolUse("load_skill", {"name": "a"}),
    ToolUse("get_table_info", {"project_id": "p", "dataset_id": "d", "table_id": "t"}),
    ToolUse("execute_sql", {"project_id": "p"}),
    ToolUse("forecast", {"project_id": "p"}),
]


@pytest.fixture
def trace(make: Any) -> Trace:
    return make.trace(
        make.called("load_skill", {"name": "a"}, skill_name="a"),
        make.called("execute_sql", {"status": "ERROR", "error_details": "no"}, id="q1", project_id="p"),
        make.called("get_table_info", {"id": "p:d.t"}, project_id="p", dataset_id="d", table_id="t"),
        make.called("execute_sql", {"status": "SUCCESS", "rows": []}, id="q2", project_id="p"),
        make.answered("Total: 12\nrows 3"),
    )


def test_the_numbers_of_the_page(trace: Trace) -> None:
    assert metrics.tool_invocation_score(trace, EXPECTED).value == 0.75
    assert metrics.tool_args_score(trace, EXPECTED).value == pytest.approx(5 / 6, abs=1e-6)
    assert metrics.tool_usage_score(trace, EXPECTED).value == 0.75
    thrice = [*EXPECTED, ToolUse("execute_sql"), ToolUse("execute_sql")]
    assert metrics.tool_usage_score(trace, thrice).value == pytest.approx(4 / 6, abs=1e-6)
    assert metrics.order(trace, EXPECTED).value == 0.75
    assert metrics.schema_discovery_score(trace).value == 0.0
    assert metrics.skill_discovery_score(trace).value == 1.0
    assert metrics.output_correctness_score(trace, "total: 12\n\nRows 3\nmean 4").value == pytest.approx(
        2 / 3, abs=1e-6
    )
    assert metrics.no_tool_errors(trace).value == 0.0
    assert metrics.no_tool_errors(trace, at_most=1).value == 1.0
    assert metrics.steps(trace).value == 5


def test_thresholds_are_inclusive_and_each_metric_passes_by_its_own(trace: Trace) -> None:
    assert metrics.tool_invocation_score(trace, EXPECTED).passed is False
    assert metrics.tool_invocation_score(trace, EXPECTED, threshold=0.75).passed is True
    assert metrics.tool_usage_score(trace, EXPECTED).passed is True
    assert metrics.tool_usage_score(trace, EXPECTED, threshold=None).passed is None
    assert metrics.steps(trace, 5).passed is True
    assert metrics.steps(trace, 4).passed is False
    assert metrics.steps(trace).passed is None


def test_each_metric_passes_where_its_description_says() -> None:
    """The table of the metrics: 1.0, but half of the calls in any order, and three quarters of the rubrics."""
    told = {name: bound for name, bound in THRESHOLDS.items() if bound != 1.0}
    assert told == {"tool_usage_score": 0.5, "trigger_score": 0.5, "instruction_adherence_score": 0.75}
    assert frozenset({"steps", "cost_usd", "duration_seconds"}) == AT_MOST
    assert {each.metric for each in BOUGH_EVALUATORS} == METRICS, "every metric can be named by a set"


@pytest.mark.parametrize(("made", "value", "passed"), [(0, 0.0, False), (1, 0.5, True), (2, 1.0, True), (9, 1.0, True)])
def test_half_of_the_expected_calls_are_enough_for_usage(make: Any, made: int, value: float, passed: bool) -> None:
    trace = make.trace(*(make.called("t", id=str(n)) for n in range(made)))
    score = metrics.tool_usage_score(trace, [ToolUse("t"), ToolUse("t")])
    assert (score.value, score.passed) == (value, passed)


@pytest.mark.parametrize(
    ("yes", "value", "passed"), [(4, 1.0, True), (3, 0.75, True), (2, 0.5, False), (0, 0.0, False)]
)
def test_three_quarters_of_the_rubrics_are_enough(yes: int, value: float, passed: bool) -> None:
    rubrics = [Rubric(f"r{n}", "p") for n in range(4)]
    words = [RubricVerdict(rubric=rubric, verdict=n < yes, rationale="so") for n, rubric in enumerate(rubrics)]
    ctx = TraceContext.of(Trace(), inputs="x")

    async def judge(*_: Any) -> Judgement:
        return Judgement(verdicts=tuple(words))

    ctx.host = AttemptHost(judge=judge)
    score = asyncio.run(score_adherence(ctx, rubrics, THRESHOLDS["instruction_adherence_score"]))
    assert (score.value, score.passed, score.by) == (value, passed, "judge")


def test_no_rubrics_are_1_and_nobody_is_asked() -> None:
    score = asyncio.run(score_adherence(TraceContext.of(Trace(), inputs="x"), None, 0.75))
    assert (score.value, score.passed, score.error) == (1.0, True, False)
    asked = asyncio.run(score_adherence(TraceContext.of(Trace(), inputs="x"), [Rubric("r", "p")], 0.75))
    assert (asked.value, asked.passed, asked.error) == (0.0, False, True), "without a judge they cannot be decided"


def test_seconds_are_those_of_the_runs_and_their_bound_is_inclusive() -> None:
    begun = datetime(2026, 11, 22, tzinfo=UTC)

    def at(seconds: float, **fields: Any) -> dict[str, Any]:
        return {"ts": begun + timedelta(seconds=seconds), **fields}

    trace = Trace.of([
        UserMessage.text("go", **at(0)),
        StateChanged(changes={"status": "running"}, **at(1)),
        ModelResponded(response={"parts": []}, **at(3)),
        StateChanged(changes={"status": "waiting_for_confirmation"}, **at(4)),
        StateChanged(changes={"status": "running"}, **at(100)),
        StateChanged(changes={"status": "finished"}, **at(101.5)),
    ])  # fmt: skip
    score = metrics.duration_seconds(trace, 4.5)
    assert (score.value, score.passed) == (4.5, True), "a person was waited for in between"
    assert metrics.duration_seconds(trace, 4.4).passed is False
    assert metrics.duration_seconds(trace).passed is None
    assert metrics.duration_seconds(Trace(), 0).passed is True


def test_nothing_expected_is_1() -> None:
    empty = Trace()
    for score in (metrics.tool_invocation_score, metrics.tool_args_score, metrics.tool_usage_score, metrics.order):
        assert score(empty, []).value == 1.0
    assert metrics.tool_args_score(empty, [ToolUse("t", {"query": "not a key"})]).value == 1.0
    assert metrics.output_correctness_score(empty, " \n ").value == 1.0


def test_nothing_done_is_0_where_something_is_expected() -> None:
    empty = Trace()
    assert metrics.tool_invocation_score(empty, EXPECTED).value == 0.0
    assert metrics.tool_args_score(empty, EXPECTED).value == 0.0
    assert metrics.schema_discovery_score(empty).value == 0.0
    assert metrics.skill_discovery_score(empty).value == 0.0
    assert metrics.output_correctness_score(empty, "x").value == 0.0


def test_more_calls_than_expected_are_fine(trace: Trace) -> None:
    assert metrics.tool_invocation_score(trace, EXPECTED[2:3]).value == 1.0
    assert metrics.order(trace, [EXPECTED[0], EXPECTED[2]]).value == 1.0


@pytest.mark.parametrize(
    ("wanted", "given", "same"),
    [
        (5, "5", True),
        ("5", 5, True),
        (5.0, 5, True),
        (True, "true", False),
        (True, 1, False),
        (True, True, True),
        (" a ", "a", True),
        ("A", "a", False),
        ([1, 2], [1, 2], True),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}, True),
        (None, None, True),
        ("", None, False),
    ],
)
def test_values_are_equal_as_json_or_as_text(make: Any, wanted: Any, given: Any, same: bool) -> None:
    trace = make.trace(make.called("t", id="1", table_id=given))
    assert (metrics.tool_args_score(trace, [ToolUse("t", {"table_id": wanted})]).value == 1.0) is same


def test_paths_are_normalised_and_scripts_may_be_named_without_their_folder(make: Any) -> None:
    trace = make.trace(
        make.called("run_skill_script", skill_name="s", script_path="scripts/x.py"),
        make.called("load_skill_resource", skill_name="s", path="./references//a.md"),
    )
    expected = [
        ToolUse("execute_skill_script", {"script_name": "x.py", "name": "s"}),
        ToolUse("load_skill_resource", {"file_path": "references/a.md"}),
    ]
    assert metrics.tool_args_score(trace, expected).value == 1.0
    assert metrics.tool_invocation_score(trace, expected).value == 1.0


def test_two_arguments_may_be_found_in_two_calls_but_not_in_a_call_of_another_tool(make: Any) -> None:
    trace = make.trace(
        make.called("t", id="1", dataset_id="d"), make.called("t", id="2", table_id="x"), make.called("u", path="p")
    )
    assert metrics.tool_args_score(trace, [ToolUse("t", {"dataset_id": "d", "table_id": "x"})]).value == 1.0
    assert metrics.tool_args_score(trace, [ToolUse("t", {"path": "p"})]).value == 0.0


def test_every_expected_argument_is_compared_but_free_text(make: Any) -> None:
    trace = make.trace(make.called("t", city="Bonn", query="select 1", note="a\nb", size=2))
    wrong = [ToolUse("t", {"city": "Rome"}), ToolUse("t", {"size": 3}), ToolUse("t", {"missing": None})]
    assert [metrics.tool_args_score(trace, [use]).value for use in wrong] == [0.0, 0.0, 0.0]
    free = [ToolUse("t", {"city": "Bonn", "query": "select 2", "note": "a\nc"})]
    score = metrics.tool_args_score(trace, free)
    assert (score.value, score.reason) == (
        1.0,
        "all 1 expected arguments were passed; not compared: t(query), t(note)",
    )
    assert metrics.tool_args_score(trace, free, also={"query"}).value == 0.5
    assert metrics.tool_args_score(trace, free, {"query"}).value == 0.0
    assert metrics.tool_args_score(trace, free, {"city"}).value == 1.0


def test_order_drops_what_is_not_expected_and_looks_at_256_at_most(make: Any) -> None:
    trace = make.trace(make.called("b"), make.called("x"), make.called("a"))
    assert metrics.order(trace, [ToolUse("a"), ToolUse("b")]).value == 0.5
    many = [ToolUse("a")] * 300
    assert metrics.order(trace, many).value == pytest.approx(1 / 256, abs=1e-6)


@given(wanted=st.lists(st.sampled_from("abc"), max_size=12), made=st.lists(st.sampled_from("abcd"), max_size=12))
def test_order_is_the_longest_common_subsequence(wanted: list[str], made: list[str]) -> None:
    trace = Trace(calls=tuple(TracedCall(id=str(n), tool=name) for n, name in enumerate(made)))
    longest = max(
        size for size in range(len(wanted) + 1) if any(_is_within(part, made) for part in combinations(wanted, size))
    )
    score = metrics.order(trace, [ToolUse(name) for name in wanted])
    assert score.value == pytest.approx(longest / len(wanted) if wanted else 1.0, abs=1e-6)


def _is_within(part: tuple[str, ...], made: list[str]) -> bool:
    rest = iter(made)
    return all(name in rest for name in part)


def test_a_schema_must_have_been_found_before_the_first_query(make: Any) -> None:
    look, fail = make.called("get_table_info"), make.called("list_table_ids", {"status": "ERROR"})
    query = make.called("execute_sql")
    assert metrics.schema_discovery_score(make.trace(look, query)).value == 1.0
    assert metrics.schema_discovery_score(make.trace(look)).value == 1.0
    assert metrics.schema_discovery_score(make.trace(fail, query)).value == 0.0
    assert metrics.schema_discovery_score(make.trace(query, look)).value == 0.0
    assert metrics.schema_discovery_score(make.trace(look, query), threshold=None).passed is None

    def together(*tools: str) -> Trace:
        calls = [(str(n), tool, {}) for n, tool in enumerate(tools)]
        ended = [
            event
            for id, tool, _ in calls
            for event in (ToolCalled(tool_call_id=id, tool=tool), ToolReturned(tool_call_id=id, tool=tool, result="ok"))
        ]
        return make.trace([make.responded(*calls), *ended])

    assert metrics.schema_discovery_score(together("list_table_ids", "forecast")).value == 1.0, "by their places"
    assert metrics.schema_discovery_score(together("forecast", "list_table_ids")).value == 0.0


def test_looking_skills_up_is_half_of_finding_one(make: Any) -> None:
    looked = make.called("list_skills", [])
    failed = make.called("load_skill", {"error_code": "SKILL_NOT_FOUND"}, skill_name="x")
    assert metrics.skill_discovery_score(make.trace(looked)).value == 0.5
    assert metrics.skill_discovery_score(make.trace(looked, failed)).value == 0.5
    assert metrics.skill_discovery_score(make.trace(failed)).value == 0.0
    loaded = make.trace(make.called("load_skill", {"name": "x"}, skill_name="x"))
    assert metrics.skill_discovery_score(loaded, "x").value == 1.0
    assert metrics.skill_discovery_score(loaded, "y").value == 0.0
    keyword = make.trace(SkillActivated(name="x", content_hash="", trigger="keyword"))
    assert metrics.skill_discovery_score(keyword, "x").value == 1.0


def test_a_skill_triggers_when_it_comes_into_use_by_any_way(make: Any) -> None:
    by_script = make.trace(ScriptRan(skill="s", script="scripts/x.py"))
    by_file = make.trace(make.called("load_skill_resource", "text", skill_name="s", path="a.md"))
    none = make.trace(make.called("load_skill", skill_name="other"))
    two_of_three = [by_script, by_file, none]
    wanted = metrics.trigger_score(two_of_three, "s", True)
    assert (wanted.value, wanted.passed) == (pytest.approx(0.6667, abs=1e-4), True)
    not_wanted = metrics.trigger_score(two_of_three, "s", False)
    assert (not_wanted.value, not_wanted.passed) == (pytest.approx(0.3333, abs=1e-4), False)
    assert metrics.trigger_score([by_script, none], "s", True).passed is False, "above one half, as documented"
    assert metrics.trigger_score([None, none], "s", False).value == 0.5, "a run that failed counts against the case"
    assert metrics.trigger_score([], "s", True).error


def test_refusals_are_no_tool_errors_and_calls_that_failed_validation_are(make: Any) -> None:
    refused = make.trace(
        make.responded(("1", "t", {})), ToolRejected(tool_call_id="1", tool="t", by="policy", reason="no")
    )
    assert metrics.no_tool_errors(refused).value == 1.0
    broken = make.trace(make.called("t", "x", failed=True))
    score = metrics.no_tool_errors(broken)
    assert (score.value, score.reason) == (0.0, "1 failed, first t: x")


def test_a_price_that_nobody_knows_fails_a_bound_and_has_no_value(make: Any) -> None:
    unpriced = make.trace(make.responded(text="a", usage=Usage(input_tokens=5)))
    assert metrics.cost_usd(unpriced).value is None
    bounded = metrics.cost_usd(unpriced, 1.0)
    assert (bounded.value, bounded.passed, bounded.reason) == (None, False, "price unknown")
    assert metrics.cost_usd(make.trace(), 0.0).passed is True
    priced = make.trace(make.responded(text="a", usage=Usage(input_tokens=5, cost_usd=0.02)))
    assert [metrics.cost_usd(priced, bound).passed for bound in (0.02, 0.019, None)] == [True, False, None]


def test_the_answer_is_compared_whatever_case_and_space_and_composition(make: Any) -> None:
    trace = make.trace(make.answered("CAFE\u0301   au  lait\nSTRASSE"))
    assert metrics.output_correctness_score(trace, "café au lait\nstraße").value == 1.0


def test_evaluators_give_the_values_of_the_functions(trace: Trace) -> None:
    ctx = TraceContext.of(trace, inputs="x")
    by_metric = {each.metric: each for each in BOUGH_EVALUATORS}
    found = asyncio.run(by_metric["tool_invocation_score"](expected=EXPECTED).evaluate(ctx))
    assert found["tool_invocation_score"].value == 0.75
    named = asyncio.run(by_metric["order"](expected=["load_skill", {"name": "forecast"}]).evaluate(ctx))
    assert named["order"].value == 0.5
    asyncio.run(evaluator_named("steps", 2).evaluate(ctx))
    assert ctx.scores["steps"].passed is False


def test_pydantic_evals_own_evaluators_see_the_calls(trace: Trace, make: Any) -> None:
    from pydantic_evals.evaluators import (
        ArgumentCorrectness,
        Contains,
        MaxModelRequests,
        MaxToolCalls,
        ToolCorrectness,
        TrajectoryMatch,
    )

    ctx = TraceContext.of(trace)
    tools = ["load_skill", "get_table_info", "execute_sql"]
    assert ToolCorrectness(expected_tools=tools).evaluate(ctx).value is True, "the call that failed is not counted"
    assert ToolCorrectness(expected_tools=[*tools, "forecast"]).evaluate(ctx).value is False
    assert TrajectoryMatch(expected_trajectory=tools, order="exact").evaluate(ctx).value == 1.0
    arguments = ArgumentCorrectness(tool_name="get_table_info", expected_arguments={"table_id": "t"})
    assert arguments.evaluate(ctx).value is True
    assert MaxToolCalls(max_calls=4).evaluate(ctx).value is True
    assert MaxToolCalls(max_calls=3).evaluate(ctx).value is False
    assert MaxModelRequests(max_requests=5).evaluate(ctx).value is True
    assert MaxModelRequests(max_requests=4).evaluate(ctx).value is False
    assert Contains(value="Total").evaluate(ctx).value is True
    rejected = make.trace(
        make.responded(("1", "t", {})), ToolRejected(tool_call_id="1", tool="t", by="policy", reason="no")
    )
    assert MaxToolCalls(max_calls=0).evaluate(TraceContext.of(rejected)).value is True, "it was not executed"
