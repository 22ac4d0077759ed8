"""Scoring logs that are there: nothing is run again, and nothing of them changes but the note."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.errors import InvalidInput
from bough.evals import CaseInput, EvalSet, Rubric, SetCase, ToolUse, TurnInput, score_logs
from bough.evals.judge.judge import Judge
from bough.evals.report.write import render_report
from bough.evals.run.folder import RunFolder, list_runs
from bough.evals.run.read import read_run
from bough.events import open_store
from bough.settings import Settings
from bough.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.anyio

VERDICT = '{"verdicts": [{"rubric_id": "r1", "property": "p", "rationale": "it does", "verdict": "yes"}]}'


async def converse(settings: Settings, calls: list[str]) -> AsyncConversation:
    """Return a conversation of somebody, which called `add` and answered."""

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        calls.append(f"{a}+{b}")
        return a + b

    model = ScriptedModel([tool_call("add", a=1, b=2), "The sum is 3."])
    conversation = await AsyncConversation.create(
        AgentSpec(name="a", model=model, tools=(add,), skills=()), settings=settings, title="sums"
    )
    async with conversation:
        await conversation.send_message("add 1 and 2")
        await conversation.run()
    return conversation


async def test_a_log_is_held_against_a_case_and_nothing_is_run_again(settings: Settings) -> None:
    calls: list[str] = []
    conversation = await converse(settings, calls)
    rubrics = (Rubric("r", "It says the sum."),)
    turn = TurnInput(user="x", tool_uses=(ToolUse("add"), ToolUse("multiply")), reference="The sum is 3.")
    expected = SetCase(id="sum", input=CaseInput(turns=(turn,), rubrics=rubrics, expect={"tool_invocation_score": 0.5}))
    run = await score_logs(
        [conversation.id], case=expected, judge=Judge(ScriptedModel([VERDICT]), 1), settings=settings
    )
    (result,) = run.cases
    assert (result.status, result.conversation) == ("passed", str(conversation.id)), result.reason
    assert {name: result.scores[name].value for name in ("tool_invocation_score", "instruction_adherence_score")} == {
        "tool_invocation_score": 0.5,
        "instruction_adherence_score": 1.0,
    }
    assert calls == ["1+2"], "the tool ran in the conversation and not again"
    store = await open_store(settings.store)
    kinds = [stored.kind async for stored in store.read(conversation.id)]
    tags = [record.tags for record in (await store.list()).items]
    await store.aclose()
    assert (kinds.count("ModelResponded"), kinds.count("TaskNoted"), kinds[-1]) == (2, 1, "TaskNoted")
    assert len(tags) == 1, "the judge's conversation is in the folder of the run"
    again, notes = await read_run(RunFolder(run.folder))
    assert (again.cases[0].status, notes[0]["run"]) == ("passed", run.run)
    assert "add" in await render_report(RunFolder(run.folder), again, notes, "html")


async def test_without_a_case_the_metrics_that_need_none_are_shown(settings: Settings) -> None:
    conversation = await converse(settings, [])
    run = await score_logs([conversation.id], metrics={"steps": 1}, settings=settings)
    (result,) = run.cases
    assert (result.status, result.scores["steps"].value) == ("failed", 2)
    assert "tool_invocation_score" not in result.scores, "what was done is not an expectation of itself"


async def test_what_cannot_be_scored_is_refused_before_anything_is_written(settings: Settings) -> None:
    conversation = await converse(settings, [])
    case = SetCase(id="c", input=CaseInput(turns=(TurnInput(user="x"),), rubrics=(Rubric("r", "p"),)))
    with pytest.raises(InvalidInput, match="need a judge"):
        await score_logs([conversation.id], case=case, settings=settings)
    with pytest.raises(InvalidInput, match="no conversation"):
        await score_logs([], settings=settings)


async def test_the_command_scores_by_id_and_case(settings: Settings, tmp_path: Path) -> None:
    conversation = await converse(settings, [])
    turn = TurnInput(user="x", tool_uses=(ToolUse("add", {"a": 1}),))
    EvalSet(name="s", cases=(SetCase(id="sum", input=CaseInput(turns=(turn,))),)).save(tmp_path / "set.yaml")
    bough = Path(sys.executable).with_name("bough")

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [bough, "eval", "score", *args, "--home", str(settings.home)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    done = run(str(conversation.id), "--case", f"{tmp_path / 'set.yaml'}#sum")
    assert done.returncode == 0, done.stderr
    assert run("-", "--metric", "steps=1").returncode == 1
    for wrong in (("--case", "set.yaml"), ("--case", "set.yaml#none")):
        refused = run("-", *wrong)
        assert (refused.returncode, "Traceback" in refused.stderr) == (2, False)
    assert len(list_runs(settings.home / "evals")) == 2
