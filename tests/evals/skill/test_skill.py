"""A skill with and without itself: the documented layout, the benchmark, the triggers."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.errors import Conflict, InvalidInput
from bough.evals import Score, evaluate_skill, read_set
from bough.evals.formats.skill import read_skill_set, read_trigger_set
from bough.evals.metrics.assertions import misspelt_form, parse_check
from bough.evals.run.folder import list_runs
from bough.evals.run.summary import AttemptResult
from bough.evals.skill.benchmark import make_benchmark, summarize_triggers, trigger_pass_rate
from bough.settings import Settings
from bough.skills.new import new_skill
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

CSV = Path(__file__).parents[3] / "examples" / "skills" / "csv-profile"


def skill(folder: Path, evals: object = None, queries: object = None, name: str = "my-skill") -> Path:
    place = folder / name
    (place / "evals").mkdir(parents=True)
    (place / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Does a thing.\n---\nDo it.\n")
    if evals is not None:
        (place / "evals" / "evals.json").write_text(json.dumps({"skill_name": name, "evals": evals}))
    if queries is not None:
        (place / "evals" / "eval_queries.json").write_text(json.dumps(queries))
    return place


async def test_the_bundled_skill_makes_the_difference_and_is_found_when_it_should(
    settings: Settings, tmp_path: Path
) -> None:
    run = await evaluate_skill(CSV, "offline", settings=settings, results=tmp_path / "results", trigger_runs=1)
    summary = run.benchmark["run_summary"]
    assert run.passed, run.benchmark["runs"]
    assert (summary["with_skill"]["pass_rate"]["mean"], summary["without_skill"]["pass_rate"]["mean"]) == (1.0, 0.0)
    assert (summary["delta"]["pass_rate"], run.benchmark["notes"]) == (1.0, [])
    assert trigger_pass_rate(run.triggers) == 1.0
    assert (run.triggers["train"]["queries"], run.triggers["validation"]["queries"]) == (4, 4)
    folder = tmp_path / "results" / "iteration-1"
    assert run.iteration == folder
    assert sorted(path.name for path in folder.iterdir()) == [
        "benchmark.json",
        "eval-missing-price",
        "eval-rain",
        "eval-tabs",
        "report.html",
        "run.json",
    ]
    rain = folder / "eval-rain" / "with_skill"
    assert "5 rows, 3 columns" in (rain / "outputs" / "answer.md").read_text()
    grading = json.loads((rain / "grading.json").read_text())
    assert grading["summary"] == {"passed": 3, "failed": 0, "total": 3, "pass_rate": 1.0}
    assert {each["checked_by"] for each in grading["assertion_results"]} == {"code"}
    timing = json.loads((rain / "timing.json").read_text())
    assert timing["total_tokens"] == 0 and timing["steps"] >= 2 and timing["conversation"]
    copies = list((settings.home / "evals").rglob("SKILL.md"))
    assert copies and not any((copy.parent / "evals").exists() for copy in copies), "no answer is within reach"


async def test_a_worsened_copy_fails_the_threshold(settings: Settings, tmp_path: Path) -> None:
    worse = Path(shutil.copytree(CSV, tmp_path / "csv-profile"))
    script = worse / "scripts" / "profile.py"
    text = script.read_text()
    broken = text.replace("self.total / self.numbers", "self.total / self.numbers + 1").replace("missing {", "lost {")
    assert broken != text
    script.write_text(broken)
    run = await evaluate_skill(worse, "offline", settings=settings, trigger_runs=0, threshold=0.9)
    assert not run.passed and (run.pass_rate or 0) < 0.9
    assert run.iteration == tmp_path / "csv-profile-workspace" / "iteration-1"


async def test_several_attempts_have_folders_of_their_own_and_iterations_are_counted(
    settings: Settings, tmp_path: Path
) -> None:
    place = skill(tmp_path, [{"prompt": "hello", "assertions": ["not contains: impossible words"]}])
    for number in (1, 2):
        run = await evaluate_skill(place, "offline", settings=settings, repeat=2)
        assert run.iteration is not None and run.iteration.name == f"iteration-{number}"
    assert (run.iteration / "eval-1" / "without_skill" / "run-2" / "grading.json").exists()
    assert run.benchmark["notes"] == ["eval 1: passes on both sides: not contains: impossible words"]


async def test_a_skill_without_evals_is_refused_before_a_run_is_made(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        await evaluate_skill(skill(tmp_path), "offline", settings=settings)
    assert list_runs(settings.home / "evals") == []


def result(case: str, side: str, *passed: bool, attempt: int = 1, status: str = "passed") -> AttemptResult:
    assertions = [{"text": f"a{n}", "passed": each} for n, each in enumerate(passed)]
    return AttemptResult(case=case, side=side, attempt=attempt, status=status, data={"assertions": assertions})


def test_the_benchmark_has_means_deviations_and_notes() -> None:
    results = [
        result("1", "with_skill", True, True, True, True),
        result("2", "with_skill", True, False, True, False),
        result("3", "with_skill", True, True, True, False),
        result("1", "without_skill", True, False, False, False),
        result("2", "without_skill", status="error"),
    ]
    found = make_benchmark(results, metadata={}, triggers={})
    summary = found["run_summary"]
    assert summary["with_skill"]["pass_rate"] == {"mean": 0.75, "stddev": 0.25}
    assert summary["without_skill"]["pass_rate"]["mean"] == 0.125, "an error has pass rate 0"
    assert summary["delta"]["pass_rate"] == 0.625
    assert found["notes"] == ["eval 1: passes on both sides: a0"]


def test_triggers_are_summed_by_split_and_failures_of_the_validation_set_are_not_told(tmp_path: Path) -> None:
    queries = [{"query": f"yes {n}", "should_trigger": True} for n in range(5)]
    queries += [{"query": f"no {n}", "should_trigger": False} for n in range(5)]
    found = read_trigger_set(skill(tmp_path, queries=queries))
    assert [case.split for case in found.cases].count("train") == 6, "60 to 40, each label apart"
    results = [
        AttemptResult(
            case=case.id, attempt=n, status="passed", scores={"trigger_score": Score("trigger_score", value, True)}
        )
        for case in found.cases
        for n, value in enumerate((1.0, 1.0, 0.0) if case.input.should_trigger else (0.0, 0.0, 1.0), 1)
    ]
    summary = summarize_triggers(found, results)
    assert (summary["train"]["passed"], summary["train"]["recall"], summary["train"]["precision"]) == (3, 1.0, 0.5)
    assert all(not each["should_trigger"] for each in summary["train"]["failures"])
    assert "failures" not in summary["validation"]
    assert trigger_pass_rate(summary) == 0.5


def test_files_named_for_a_split_keep_it(tmp_path: Path) -> None:
    place = skill(tmp_path)
    for name in ("train", "validation"):
        (place / "evals" / f"{name}_queries.json").write_text(json.dumps([{"query": name, "should_trigger": True}]))
    assert [(case.input.turns[0].user, case.split) for case in read_trigger_set(place).cases] == [
        ("train", "train"),
        ("validation", "validation"),
    ]


def test_faults_of_evals_are_named_and_the_good_cases_are_kept(tmp_path: Path) -> None:
    place = skill(
        tmp_path,
        [
            {"id": 1, "prompt": "good", "assertions": ["contains: x"]},
            {"id": 1, "prompt": "twice"},
            {"id": 2},
            {"id": 3, "prompt": "x", "files": ["evals/files/missing.csv"]},
            {"id": 4, "prompt": "x", "assertions": ["contains : x", "contain: y", "It is good: really"]},
        ],
    )
    found = read_skill_set(place)
    assert [case.id for case in found.cases] == ["1", "4"]
    codes = [(fault.severity, fault.code) for fault in found.faults]
    assert codes.count(("warning", "shape")) == 2
    assert {"duplicate-id", "no-prompt", "file-missing"} <= {code for severity, code in codes if severity == "error"}
    assert read_set(place).format == read_set(place / "evals" / "evals.json").format == "skill"


@pytest.mark.parametrize(
    ("text", "form", "negated"),
    [
        ("contains: a", "contains", False),
        ("not contains: a", "contains", True),
        ("check: evals/checks/x.py 3", "check", False),
        ("The answer contains: a", "judge", False),
        ("contains:", "judge", False),
        ("tool:load_skill", "tool", False),
    ],
)
def test_assertions_have_a_closed_list_of_forms(text: str, form: str, negated: bool) -> None:
    check = parse_check(text)
    assert (check.form, check.negated) == (form, negated)


def test_a_misspelt_form_is_told_and_a_sentence_is_not() -> None:
    assert misspelt_form("contain: x") == "contains"
    assert misspelt_form("file : x") == "file"
    assert misspelt_form("The summary: it is short") is None
    assert misspelt_form("contains: x") is None


def test_a_new_skill_has_first_evals_that_are_well_formed(tmp_path: Path) -> None:
    new_skill(tmp_path, "fresh", description="Does a thing.", script=True)
    cases, queries = read_skill_set(tmp_path / "fresh"), read_trigger_set(tmp_path / "fresh")
    assert (len(cases.cases), len(queries.cases), cases.faults, queries.faults) == (2, 4, (), ())


async def test_a_check_script_of_the_skill_decides_in_the_sandbox(settings: Settings, tmp_path: Path) -> None:
    assertions = ["check: evals/checks/check.py hello", "not check: evals/checks/check.py nothing"]
    place = skill(tmp_path, [{"prompt": "hello", "assertions": assertions}])
    (place / "evals" / "checks").mkdir()
    (place / "evals" / "checks" / "check.py").write_text(
        "import sys\ntext = open('/work/answer.md').read()\nprint(len(text) > 0)\n"
        "open('/work/answer.md', 'w').write('changed')\nsys.exit(0 if sys.argv[1] == 'hello' else 1)\n"
    )
    run = await evaluate_skill(place, "offline", settings=settings)
    assert run.pass_rate == 1.0, run.cases and run.cases.cases


async def test_a_trigger_query_ends_as_soon_as_its_skill_is_in_use(settings: Settings, tmp_path: Path) -> None:
    never = asyncio.Event()

    async def step(asked: Any) -> Any:
        if asked.messages[-1].parts[-1].part_kind == "tool-return":
            await never.wait()  # nobody is interested in what comes now: without an interrupt this test does not end
        return tool_call("load_skill", skill_name="my-skill")

    model = ScriptedModel([step] * 100)
    queries = [{"query": "do the thing", "should_trigger": True}, {"query": "do it not", "should_trigger": False}]
    agent = AgentSpec(name="a", model=model)
    run = await evaluate_skill(skill(tmp_path, queries=queries), agent, settings=settings, trigger_runs=3)
    assert run.queries is not None
    assert [(each.steps, each.scores["trigger_score"].value) for each in run.queries.cases] == [(1, 1.0), (1, 0.0)] * 3
    assert [each.status for each in run.queries.cases] == ["passed", "failed"] * 3
    figures = run.triggers["train"], run.triggers["validation"]
    assert (sum(each["queries"] for each in figures), sum(each["passed"] for each in figures)) == (2, 1)
    assert model.requests <= 12, "at most one request of each run was cut off"


async def test_a_run_that_was_cut_off_is_resumed_with_its_trigger_queries(settings: Settings, tmp_path: Path) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def hang(_: Any) -> str:
        begun.set()
        await never.wait()
        return "never"

    def run(*steps: Any, resume: str | None = None) -> Any:
        agent = AgentSpec(name="a", model=(models.append(ScriptedModel(steps)) or models[-1]))
        return evaluate_skill(place, agent, settings=settings, trigger_runs=1, jobs=1, resume=resume)

    models: list[ScriptedModel] = []
    evals = [{"id": n, "prompt": "hello", "assertions": ["contains: hi"]} for n in (1, 2)]
    place = skill(tmp_path, evals, [{"query": "no", "should_trigger": False}])
    first = asyncio.create_task(run("hi", "hi", hang))
    await begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    done = await run("hi", "hi", "no", resume="-")
    assert (done.pass_rate, trigger_pass_rate(done.triggers), models[1].requests) == (1.0, 1.0, 3)
    again = await run(resume=done.cases.run)
    assert (again.passed, models[2].requests, len(list_runs(settings.home / "evals"))) == (True, 0, 2)
    (place / "SKILL.md").write_text("---\nname: my-skill\ndescription: Another.\n---\n")
    with pytest.raises(Conflict, match="`skill` has changed"):
        await run(resume=done.cases.run)
