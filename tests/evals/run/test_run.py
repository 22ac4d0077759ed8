"""A set runs from its file to its results: conversations of their own, traces from their logs, notes in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.errors import Conflict, InvalidInput
from bough.evals import CaseInput, EvalSet, Rubric, SetCase, ToolUse, TurnInput, evaluate
from bough.evals.case import FileInput
from bough.evals.judge.judge import Judge
from bough.evals.run.folder import RunFolder, find_run, list_runs, plain_name
from bough.evals.run.note import last_note
from bough.evals.run.read import read_run
from bough.evals.statistics import wilson
from bough.events import open_store
from bough.settings import Settings
from bough.testing import OpenAIServer, ScriptedModel, tool_call
from bough.testing.openai_server import Answer, Failure, ServerCall

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def set_of(*cases: CaseInput | str, **fields: Any) -> EvalSet:
    return EvalSet(
        name="made",
        cases=tuple(SetCase(id=f"c{n}", input=CaseInput.of(each)) for n, each in enumerate(cases, 1)),
        **fields,
    )


def adder(*steps: Any) -> AgentSpec:
    return AgentSpec(name="adder", model=ScriptedModel(steps), tools=(add,), skills=())


SUM = CaseInput(turns=(TurnInput(user="add 1 and 2", tool_uses=(ToolUse("add"),), reference="3"),))


async def test_a_case_is_a_conversation_whose_log_holds_its_result(settings: Settings) -> None:
    run = await evaluate(set_of(SUM), adder(tool_call("add", a=1, b=2), "it is 3"), settings=settings)
    assert (run.passed, run.pass_rate) == (True, 1.0)
    (result,) = run.cases
    assert {name: score.value for name, score in result.scores.items() if name != "duration_seconds"} == {
        "tool_invocation_score": 1.0,
        "tool_args_score": 1.0,
        "tool_usage_score": 1.0,
        "output_correctness_score": 1.0,
        "no_tool_errors": 1.0,
        "steps": 2,
        "cost_usd": 0.0,
    }
    folder = RunFolder(run.folder)
    store = await open_store(folder.store_url)
    try:
        assert result.conversation is not None
        cid = await store.resolve(result.conversation)
        events = [stored async for stored in store.read(cid)]
        record = await store.get(cid)
    finally:
        await store.aclose()
    note = last_note(events, run.run)
    assert note is not None and note["status"] == "passed" and note["scores"]["steps"]["value"] == 2
    assert record.tags == {"eval.run": run.run, "eval.case": "c1", "eval.attempt": "1", "eval.role": "attempt"}
    assert sum(stored.kind == "TaskNoted" for stored in events) == 1


async def test_turns_are_sent_when_the_one_before_is_answered(settings: Settings) -> None:
    model = ScriptedModel(["first", lambda asked: f"second after {len(asked.messages)}"])
    case = CaseInput(turns=(TurnInput(user="one"), TurnInput(user="two", reference="second after 3")))
    agent = AgentSpec(name="a", model=model, skills=())
    run = await evaluate(set_of(case), agent, settings=settings, metrics={"output_correctness_score": 1.0})
    assert run.passed


async def test_a_case_fails_by_its_first_metric_below_its_threshold(settings: Settings) -> None:
    run = await evaluate(set_of(SUM, "hello"), adder("no idea", "hi"), settings=settings, jobs=1, threshold=0.5)
    assert [each.status for each in run.cases] == ["failed", "passed"]
    assert run.cases[0].reason == "tool_invocation_score: not called: add"
    assert (run.pass_rate, run.passed) == (0.5, True)


async def test_bounds_of_a_case_and_metrics_of_the_caller_decide(settings: Settings) -> None:
    bounded = SUM.model_copy(update={"expect": {"steps": 1}})
    steps = (tool_call("add", a=1, b=2), "3")
    assert not (await evaluate(set_of(bounded), adder(*steps), settings=settings)).passed
    assert (await evaluate(set_of(bounded), adder(*steps), settings=settings, metrics={"steps": 2})).passed


async def test_a_model_that_fails_is_an_error_and_the_other_cases_go_on(settings: Settings) -> None:
    run = await evaluate(set_of("a", "b"), adder("fine"), settings=settings, jobs=1)
    assert [each.status for each in run.cases] == ["passed", "error"]
    assert run.cases[1].error is not None and run.cases[1].error["code"] == "model_error"
    assert run.summary.errors == 1 and run.pass_rate == 0.5, "an error counts as not passed"


async def test_files_and_state_are_in_the_workspace_and_what_is_new_is_found(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "data.csv").write_text("a,b\n")
    seen: list[str] = []

    def look() -> str:
        """Look around."""
        return "ok"

    case = CaseInput(
        turns=(TurnInput(user="x"),),
        files=(FileInput(source=tmp_path / "data.csv", target="in/data.csv"),),
        state={"k": 1},
        checks=("contains: done", "not file: *", "tool: look", "matches: ^do.e$"),
    )
    agent = AgentSpec(name="a", model=ScriptedModel([tool_call("look"), "done"]), tools=(look,), skills=())
    run = await evaluate(set_of(case), agent, settings=settings, keep=True)
    assert run.passed, run.cases[0].reason
    work = run.folder / "work" / "c1" / "1"
    assert (work / "in" / "data.csv").read_text() == "a,b\n"
    assert json.loads((work / "state.json").read_text()) == {"k": 1}
    assert [each["passed"] for each in run.cases[0].data["assertions"]] == [True] * 4
    assert seen == []


async def test_attempts_are_spread_in_whole_rounds_and_counted_by_case(settings: Settings) -> None:
    agent = AgentSpec(name="a", model=ScriptedModel(["yes", "no", "no", "yes", "yes", "no"]), skills=())
    case = CaseInput(turns=(TurnInput(user="x", reference="yes"),))
    run = await evaluate(
        set_of(case, case), agent, settings=settings, repeat=3, jobs=1, metrics={"output_correctness_score": 1.0}
    )
    assert [(each.case, each.attempt, each.passed) for each in run.cases] == [
        ("c1", 1, True),
        ("c2", 1, False),
        ("c1", 2, False),
        ("c2", 2, True),
        ("c1", 3, True),
        ("c2", 3, False),
    ]
    assert run.summary.pass_at == pytest.approx({1: 0.5, 2: (1 + 2 / 3) / 2, 3: 1.0})
    assert run.summary.pass_hat == pytest.approx({1: 0.5, 2: (1 / 3) / 2, 3: 0.0})


async def test_a_run_that_is_resumed_runs_no_finished_case_again(settings: Settings) -> None:
    first = ScriptedModel(["one", "two"])
    cases = set_of("a", "b", "c")
    agent = AgentSpec(name="a", model=first, skills=())
    run = await evaluate(cases, agent, settings=settings, jobs=1)
    assert [each.status for each in run.cases] == ["passed", "passed", "error"]
    second = ScriptedModel(["three"])
    agent = AgentSpec(name="a", model=second, skills=())
    same = await evaluate(cases, agent, settings=settings, resume=run.run)
    assert second.requests == 0, "an error is a result, too"
    again = await evaluate(cases, agent, settings=settings, resume="-", retry_errors=True)
    assert (same.run, again.run, second.requests) == (run.run, run.run, 1)
    assert [(each.case, each.attempt, each.status) for each in again.cases] == [
        ("c1", 1, "passed"),
        ("c2", 1, "passed"),
        ("c3", 2, "passed"),
    ], "a later try replaces the error"
    assert (again.pass_rate, again.summary.errors) == (1.0, 0)
    (replaced,) = again.cases[2].data["replaced"]
    assert (replaced["attempt"], replaced["status"]) == (1, "error")


async def test_tries_at_several_errors_of_one_case_are_told_apart(settings: Settings) -> None:
    cases = set_of("a")
    agent = AgentSpec(name="a", model=ScriptedModel(["one"]), skills=())
    run = await evaluate(cases, agent, settings=settings, jobs=1, repeat=3)
    assert [each.status for each in run.cases] == ["passed", "error", "error"]
    for answers, expected in (
        (["two"], [(1, "passed"), (4, "passed"), (5, "error")]),
        (["three"], [(1, "passed"), (4, "passed"), (6, "passed")]),
    ):
        agent = AgentSpec(name="a", model=ScriptedModel(answers), skills=())
        again = await evaluate(cases, agent, settings=settings, jobs=1, repeat=3, resume=run.run, retry_errors=True)
        assert [(each.attempt, each.status) for each in again.cases] == expected
    assert again.interval == wilson(3, 3), "three of three leave more than one rate possible"


async def test_a_run_goes_on_only_with_what_it_was_begun_with(settings: Settings) -> None:
    run = await evaluate(set_of("a"), adder("x"), settings=settings)
    with pytest.raises(Conflict, match="`cases` has changed"):
        await evaluate(set_of("b"), adder("x"), settings=settings, resume=run.run)
    with pytest.raises(Conflict, match="`agent` has changed"):
        agent = AgentSpec(name="else", model=ScriptedModel(["x"]), skills=())
        await evaluate(set_of("a"), agent, settings=settings, resume=run.run)
    with RunFolder(run.folder).hold(), pytest.raises(Conflict, match="in use"):
        await evaluate(set_of("a"), adder("x"), settings=settings, resume=run.run)


async def test_no_attempt_starts_once_the_bound_of_cost_is_reached(settings: Settings) -> None:
    run = await evaluate(set_of("a", "b"), adder("x", "y"), settings=settings, max_cost_usd=0.0)
    assert [each.status for each in run.cases] == ["skipped", "skipped"]
    assert run.is_over_budget and not run.passed


@pytest.mark.parametrize(
    "wrong", [{"jobs": 0}, {"repeat": 0}, {"threshold": 1.5}, {"metrics": {"nonsense": 1.0}}, {"filter": "z*"}]
)
async def test_options_that_make_no_sense_are_refused_before_a_run_is_made(
    settings: Settings, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        await evaluate(set_of("a"), adder(), settings=settings, **wrong)
    assert list_runs(settings.home / "evals") == []


async def test_evaluators_of_others_count_and_one_that_breaks_is_an_error(settings: Settings) -> None:
    from dataclasses import dataclass

    from pydantic_evals.evaluators import Contains, Evaluator, EvaluatorContext, ToolCorrectness

    @dataclass
    class Broken(Evaluator[Any, Any, Any]):
        def evaluate(self, ctx: EvaluatorContext[Any, Any, Any]) -> bool:
            raise ValueError("cannot")

    good = SetCase(id="good", input=SUM, evaluators=(Contains(value="3"), ToolCorrectness(expected_tools=["add"])))
    bad = SetCase(id="bad", input=CaseInput.of("x"), evaluators=(Contains(value="nothing"),))
    broken = SetCase(id="broken", input=CaseInput.of("x"), evaluators=(Broken(),))
    cases = EvalSet(name="s", cases=(good, bad, broken))
    agent = adder(tool_call("add", a=1, b=2), "3", "x", "x")
    run = await evaluate(cases, agent, settings=settings, jobs=1)
    assert [(each.case, each.status) for each in run.cases] == [
        ("good", "passed"),
        ("bad", "failed"),
        ("broken", "error"),
    ]
    assert run.cases[2].reason == "Broken: ValueError: cannot"


async def test_a_real_server_is_asked_and_its_failure_is_an_error(settings: Settings) -> None:
    call = Answer(calls=(ServerCall(tool="add", arguments={"a": 1, "b": 2}),))
    refused = Failure(status=400, message="no", headers={"x-should-retry": "false"})
    with OpenAIServer([call, "3", refused]) as server:
        agent = AgentSpec(name="a", model="openai:test", base_url=server.url, tools=(add,), skills=())
        run = await evaluate(set_of(SUM, "x"), agent, settings=settings, jobs=1)
    assert [each.status for each in run.cases] == ["passed", "error"]
    assert run.cost_usd is None, "nobody knows what the test model costs"


async def test_results_are_read_back_from_the_logs_alone(settings: Settings) -> None:
    run = await evaluate(set_of(SUM), adder(tool_call("add", a=1, b=2), "3"), settings=settings)
    (run.folder / "report.json").unlink()
    again, notes = await read_run(RunFolder(run.folder))
    assert (again.cases, again.summary) == (run.cases, run.summary)
    assert notes[0]["case"] == "c1"


def test_runs_are_found_by_a_unique_part_of_their_id(tmp_path: Path) -> None:
    for name in ("20260101-000000-aaaaaa", "20260102-000000-bbbbbb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    assert find_run(tmp_path, "aaa").run == "20260101-000000-aaaaaa"
    assert find_run(tmp_path, "-").run == "20260102-000000-bbbbbb"
    with pytest.raises(InvalidInput):
        find_run(tmp_path, "2026")
    assert find_run(tmp_path, f"{tmp_path}/20260101-000000-aaaaaa").run == "20260101-000000-aaaaaa"


@pytest.mark.parametrize("id", ["../../etc", "a/b", "..", "", "x" * 500, "ä", "con\x00trol"])
def test_an_id_never_names_a_path_outside(id: str) -> None:
    name = plain_name(id)
    assert "/" not in name and name not in ("", ".", "..") and len(name) <= 64
    assert plain_name("plain-1.0") == "plain-1.0"


async def test_a_run_is_recorded_and_answered_again_without_a_network(settings: Settings, tmp_path: Path) -> None:
    verdict = json.dumps({"verdicts": [{"rubric_id": "r1", "rationale": "so", "verdict": "yes"}]})
    judged = SUM.model_copy(update={"rubrics": (Rubric("r", "It adds"),)})
    call = Answer(calls=(ServerCall(tool="add", arguments={"a": 1, "b": 2}),))
    with OpenAIServer([call, "3", verdict]) as server:
        agent = AgentSpec(name="a", model="openai:test", base_url=server.url, tools=(add,), skills=())
        judge = Judge("openai:test", base_url=server.url)
        first = await evaluate(set_of(judged), agent, settings=settings, judge=judge, record_to=tmp_path / "rec")
    assert first.passed
    assert sorted(path.name for path in (tmp_path / "rec").iterdir()) == ["c1.bough", "c1.judge-1.bough"]
    again = await evaluate(
        set_of(judged, "not recorded"),
        AgentSpec(name="a", model=ScriptedModel([]), tools=(add,), skills=()),
        settings=settings,
        recorded=tmp_path / "rec",
    )
    assert [each.status for each in again.cases] == ["passed", "error"]
    assert again.cases[0].scores["instruction_adherence_score"].value == 1.0
    assert again.cases[1].error is not None and again.cases[1].error["code"] == "not_found"
