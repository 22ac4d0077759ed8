"""`bough eval`: from a file of cases to a table, an exit code, and commands that show what happened."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bough.testing import OpenAIServer
from bough.testing.openai_server import Hang

BOUGH = Path(sys.executable).parent / "bough"


def write_set(folder: Path, *cases: dict[str, Any]) -> Path:
    path = folder / "set.json"
    path.write_text(json.dumps({"eval_set_id": "demo", "eval_cases": list(cases)}))
    return path


def case(id: str, text: str, *uses: dict[str, Any], rubric: str = "") -> dict[str, Any]:
    turn: dict[str, Any] = {"user_content": {"parts": [{"text": text}]}}
    if uses:
        turn["intermediate_data"] = {"tool_uses": list(uses)}
    found: dict[str, Any] = {"eval_id": id, "conversation": [turn]}
    if rubric:
        found["rubrics"] = [{"rubric_id": "r", "rubric_content": {"text_property": rubric}}]
    return found


COUNT = {"name": "run_skill_script", "args": {"skill_name": "word-count", "script_path": "scripts/count.sh"}}
OTHER = {"name": "run_skill_script", "args": {"skill_name": "git-digest"}}


def test_a_set_runs_offline_and_its_exit_code_follows_the_threshold(cli: Any, tmp_path: Path) -> None:
    path = write_set(
        tmp_path,
        case("good", "/word-count README.md", COUNT),
        case("bad", "/word-count README.md", OTHER),
    )
    done = cli("eval", "run", str(path), "-m", "offline", "--threshold", "0.5")
    assert done.returncode == 0, done.stderr
    assert "0.500 pass rate" in done.stdout and "pass  good#1" in done.stderr
    again = cli("eval", "run", str(path), "-m", "offline", "--json")
    assert again.returncode == 1
    data = json.loads(again.stdout)["data"]
    assert {each["case"]: each["status"] for each in data["cases"]} == {"good": "passed", "bad": "failed"}
    assert data["metrics"]["tool_args_score"]["threshold"] == 1.0
    assert [run["pass_rate"] for run in cli.data("eval", "list")["runs"]] == [0.5, 0.5]
    shown = cli("eval", "show", "-", "good")
    assert "conv show" in shown.stdout
    assert "run_skill_script" in shown.stdout, "what happened stands there, too"
    command = next(line for line in shown.stdout.splitlines() if " conv show " in line).split()[1:]
    assert "word-count" in cli(*command).stdout


def test_faults_are_told_and_a_dry_run_asks_no_model(cli: Any, tmp_path: Path) -> None:
    path = write_set(tmp_path, case("a", "x", rubric="polite"), {"eval_id": "b", "conversation": []})
    done = cli("eval", "run", str(path), "--dry-run")
    assert done.returncode == 1
    assert "no-prompt" in done.stderr and "1 statements for a judge" in done.stdout
    assert cli.data("eval", "list")["runs"] == []
    refused = cli("eval", "run", str(path), "-m", "offline")
    assert refused.returncode == 2 and "1 rubrics in 1 cases need a judge" in refused.stderr
    assert cli.data("eval", "list")["runs"] == [], "nothing was made"


def test_a_set_without_a_case_is_refused(cli: Any, tmp_path: Path) -> None:
    assert cli("eval", "run", str(write_set(tmp_path)), "-m", "offline").returncode == 2
    assert cli("eval", "run", str(tmp_path / "missing.json")).returncode == 3
    assert cli("eval", "show", "nothing").returncode == 3


@pytest.mark.parametrize("option", ["--metric=nonsense", "--metric=order=x", "--jobs=0", "--threshold=2", "--votes=2"])
def test_options_that_make_no_sense_are_refused(cli: Any, tmp_path: Path, option: str) -> None:
    path = write_set(tmp_path, case("a", "x", rubric="p"))
    done = cli("eval", "run", str(path), "-m", "offline", "--judge", "openai:x", option)
    assert done.returncode == 2, done.stdout + done.stderr


def test_the_judge_of_a_server_is_really_asked_and_two_runs_are_compared(cli: Any, tmp_path: Path) -> None:
    path = write_set(tmp_path, case("a", "/word-count README.md", rubric="It names the file"))
    words = iter(["yes", "no"])

    def verdict(_: object) -> str:
        return json.dumps({"verdicts": [{"rubric_id": "r1", "rationale": "so", "verdict": next(words)}]})

    with OpenAIServer([verdict, verdict]) as server:
        judged = ["-m", "offline", "--judge", "openai:test", "--base-url", server.url]
        first = cli("eval", "run", str(path), *judged)
        second = cli("eval", "run", str(path), *judged)
        assert len(server.received) == 2
    assert (first.returncode, second.returncode) == (0, 1), first.stderr + second.stderr
    runs = [run["run"] for run in cli.data("eval", "list")["runs"]]
    compared = cli.data("eval", "compare", runs[-1], runs[0])
    assert sorted([len(compared["worse"]), len(compared["better"])]) == [0, 1]
    page = cli("eval", "report", "-", "--format", "html").stdout
    assert page.startswith("<!doctype html>")
    assert cli("eval", "report", "-", "--format", "pdf").returncode == 2


def test_a_judge_is_measured_against_labels(cli: Any, tmp_path: Path) -> None:
    labels = [
        {"id": str(n), "request": "hi", "answer": "hello", "property": "greets", "label": label}
        for n, label in enumerate(["yes", "no"])
    ]
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, labels)))
    yes = json.dumps({"verdicts": [{"rubric_id": "r1", "rationale": "so", "verdict": "yes"}]})
    with OpenAIServer([yes, yes]) as server:
        options = ["--judge", "openai:test", "--base-url", server.url, "--jobs", "1"]
        done = cli("eval", "judge", str(path), *options, "--threshold", "0.5")
    assert done.returncode == 1 and "0.000 kappa" in done.stdout, done.stderr


def test_listing_runs_imports_neither_pydantic_evals_nor_a_model(cli: Any) -> None:
    done = cli("eval", "list", PYTHONPROFILEIMPORTTIME="1")
    for name in ("pydantic_evals", "pydantic_ai", "ibis", "sklearn", "jinja2"):
        assert f" {name}\n" not in done.stderr, name
    assert done.stdout.strip() == "no runs yet"


def test_a_run_that_is_interrupted_has_a_report_and_goes_on(cli: Any, tmp_path: Path) -> None:
    path = write_set(tmp_path, case("a", "one"), case("b", "two"))
    with OpenAIServer(["first", Hang()]) as server:
        command = [BOUGH, "eval", "run", str(path), "-m", "openai:test", "--base-url", server.url, "--jobs", "1"]
        process = subprocess.Popen(
            command, cwd=cli.folder, env=cli.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        while "pass " not in process.stderr.readline():
            assert process.poll() is None
        while len(server.received) < 2:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert (process.returncode, out) == (130, ""), err
    shown = cli.data("eval", "show", "-")
    assert {each["case"]: each["status"] for each in shown["cases"]} == {"a": "passed", "b": "skipped"}
    with OpenAIServer(["second"]) as server:
        # Another address is another agent: a run continues only as it was begun.
        refused = cli("eval", "run", str(path), "-m", "openai:test", "--base-url", server.url, "--resume", "-")
        assert (refused.returncode, len(server.received)) == (7, 0), refused.stderr


def test_the_cases_of_a_skill_run_with_that_skill(cli: Any) -> None:
    skill = Path(__file__).parents[2] / "examples" / "skills" / "csv-profile"
    done = cli("eval", "run", str(skill), "-m", "offline", "--filter", "rain", BOUGH_SKILL_ROOTS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cli("skills", "check", str(skill)).returncode == 0


def test_a_conversation_becomes_a_case_that_passes(cli: Any, tmp_path: Path) -> None:
    assert cli("run", "/word-count README.md", "-m", "offline", "--title", "count").returncode == 0
    path = tmp_path / "mine.yaml"
    added = cli("eval", "add", "-", str(path))
    assert added.returncode == 0, added.stderr
    assert cli("eval", "add", "-", str(path)).returncode == 2, "the name is taken"
    assert "count" in path.read_text()
    done = cli("eval", "run", str(path), "-m", "offline", "--metric", "output_correctness_score=0")
    assert done.returncode == 0, done.stdout + done.stderr
