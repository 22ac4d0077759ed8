"""Scoring a run anew: metrics from the logs, verdicts as they were, nobody asked again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bough.agents.spec import AgentSpec
from bough.errors import Conflict, InvalidInput, NotFound
from bough.evals import CaseInput, EvalSet, Rubric, SetCase, ToolUse, TurnInput, evaluate, read_set, rescore_run
from bough.evals.judge.judge import Judge
from bough.evals.run.folder import RunFolder
from bough.evals.run.note import NAME, write_note
from bough.evals.run.read import read_run
from bough.events import open_store
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

VERDICT = '{"verdicts": [{"rubric_id": "r1", "property": "p", "rationale": "it does", "verdict": "yes"}]}'


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def write_set(path: Path, *cases: SetCase) -> EvalSet:
    EvalSet(name="sums", cases=cases).save(path)
    return read_set(path)


def sum_case(id: str, **fields: Any) -> SetCase:
    turn = TurnInput(user=f"add for {id}", tool_uses=(ToolUse("add", {}),))
    return SetCase(id=id, input=CaseInput(turns=(turn,), rubrics=(Rubric("r", "It adds."),), **fields))


def adder() -> AgentSpec:
    def step(asked: Any) -> Any:
        called = any(part.part_kind == "tool-return" for message in asked.messages for part in message.parts)
        return "3" if called else tool_call("add", a=1, b=2)

    return AgentSpec(name="adder", model=ScriptedModel([step] * 20), tools=(add,), skills=())


async def count_notes(folder: RunFolder, conversation: str) -> int:
    store = await open_store(folder.store_url)
    try:
        kinds = [stored.as_json().get("name") async for stored in store.read(UUID(conversation))]
    finally:
        await store.aclose()
    return kinds.count(NAME)


async def score_as_before(folder: RunFolder, case: str, status: str, metric: str, **score: Any) -> None:
    """Have the last note of an attempt say what an earlier version of a metric said."""
    _, notes = await read_run(folder)
    note = next(each for each in notes if each["case"] == case)
    scores = note["scores"] | {metric: note["scores"][metric] | score}
    reason = "" if status == "passed" else f"{metric}: {score['reason']}"
    data = note | {"scores": scores, "status": status, "passed": status == "passed", "reason": reason}
    store = await open_store(folder.store_url)
    try:
        await write_note(store, UUID(str(note["conversation"])), data)
    finally:
        await store.aclose()


async def test_metrics_are_computed_anew_and_verdicts_stay(settings: Settings, tmp_path: Path) -> None:
    found = write_set(tmp_path / "set.yaml", sum_case("a"), sum_case("b"))
    judge = ScriptedModel([VERDICT, VERDICT])
    run = await evaluate(found, adder(), settings=settings, judge=Judge(judge), jobs=1)
    folder = RunFolder(run.folder)
    assert run.passed
    wrong = {"value": 0.0, "passed": False, "reason": "not called: add"}
    await score_as_before(folder, "a", "failed", "tool_invocation_score", **wrong)
    before, _ = await read_run(folder)
    assert [each.status for each in before.cases] == ["failed", "passed"]

    assert (await rescore_run(folder)).as_dict() == {"attempts": 2, "changed": 1, "left_out": []}
    after, notes = await read_run(folder)
    assert [(each.status, each.reason) for each in after.cases] == [("passed", ""), ("passed", "")]
    assert after.cases[0].scores == run.cases[0].scores
    assert after.cases[0].scores["instruction_adherence_score"].by == "judge" and judge.requests == 2
    assert [verdict["rationale"] for verdict in notes[0]["verdicts"]] == ["it does"]
    assert json.loads((folder.path / "report.json").read_text())["summary"]["passed"] == 2
    written = [await count_notes(folder, str(each.conversation)) for each in after.cases]
    assert written == [3, 1], "what is as it was is not written again"
    assert (await rescore_run(folder)).changed == 0


async def test_what_no_score_decides_stays(settings: Settings, tmp_path: Path) -> None:
    """An attempt that ended by a limit, a verdict that failed, a case that was changed since."""
    path = tmp_path / "set.yaml"
    found = write_set(path, sum_case("limit"), sum_case("verdict"), sum_case("changed"), sum_case("gone"))
    no = VERDICT.replace("yes", "no")
    judge = Judge(ScriptedModel([VERDICT, no, VERDICT, VERDICT]))
    run = await evaluate(found, adder(), settings=settings, judge=judge, jobs=1)
    folder = RunFolder(run.folder)
    store = await open_store(folder.store_url)
    _, notes = await read_run(folder, store)
    limited = notes[0] | {"status": "failed", "passed": False, "reason": "the limit steps was reached"}
    await write_note(store, UUID(str(notes[0]["conversation"])), limited)
    await store.aclose()
    wrong = {"value": 0.0, "passed": False, "reason": "not called: add"}
    await score_as_before(folder, "changed", "failed", "tool_invocation_score", **wrong)

    write_set(path, sum_case("limit"), sum_case("verdict"), sum_case("changed", expect={"steps": 1}))
    rescored = await rescore_run(folder)
    assert (rescored.attempts, rescored.changed, rescored.left_out) == (2, 0, ("changed", "gone"))
    after, _ = await read_run(folder)
    assert {each.case: each.status for each in after.cases} == {
        "limit": "failed", "verdict": "failed", "changed": "failed", "gone": "passed",
    }  # fmt: skip
    assert after.cases[0].reason == "the limit steps was reached"


async def test_a_run_without_its_set_is_refused(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "set.yaml"
    found = write_set(path, sum_case("a"))
    run = await evaluate(found, adder(), settings=settings, judge="none")
    folder = RunFolder(run.folder)
    path.unlink()
    with pytest.raises(NotFound):
        await rescore_run(folder)
    assert (await rescore_run(folder, found)).attempts == 1, "a set in the hands of the program needs no file"
    with folder.hold(), pytest.raises(Conflict):
        await rescore_run(folder, found)
    made = await evaluate(EvalSet(name="made", cases=found.cases), adder(), settings=settings, judge="none")
    with pytest.raises(InvalidInput, match="created in Python"):
        await rescore_run(RunFolder(made.folder))


async def test_the_command_says_what_changed(settings: Settings, tmp_path: Path) -> None:
    found = write_set(tmp_path / "set.yaml", sum_case("a"))
    run = await evaluate(found, adder(), settings=settings, judge="none")
    wrong = {"value": 0.0, "passed": False, "reason": "not called: add"}
    await score_as_before(RunFolder(run.folder), "a", "failed", "tool_invocation_score", **wrong)
    bough = Path(sys.executable).with_name("bough")
    command = [bough, "eval", "report", "-", "--rescore", "--home", str(settings.home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "1 attempts scored again, 1 changed"
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
    assert json.loads(again.stdout)["data"]["rescored"] == {"attempts": 1, "changed": 0, "left_out": []}
