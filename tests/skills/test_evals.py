"""Evals that a skill brings, in the specification's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bough.skills import Skill, read_skill
from bough.skills.evals import EvalCase, TriggerQuery, read_evals


def skill(tmp_path: Path, evals: Any = None, queries: Any = None) -> Skill:
    folder = tmp_path / "csv"
    (folder / "evals" / "files").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: csv\ndescription: x\n---\nx\n")
    (folder / "evals" / "files" / "a.csv").write_text("a\n")
    for name, data in {"evals.json": evals, "eval_queries.json": queries}.items():
        if data is not None:
            (folder / "evals" / name).write_text(data if isinstance(data, str) else json.dumps(data))
    return read_skill(folder)


def test_the_documented_format_is_read(tmp_path: Path) -> None:
    evals = {
        "skill_name": "csv",
        "evals": [
            {"id": 1, "prompt": "Chart it", "expected_output": "A chart", "files": ["evals/files/a.csv"],
             "expectations": ["It is a PNG"]},
            {"id": "two", "prompt": "Clean it", "assertions": ["No blanks"]},
            {"prompt": "Third"},
        ],
    }  # fmt: skip
    queries = [{"query": "chart my csv", "should_trigger": True}, {"query": "hello", "should_trigger": False}]

    found = read_evals(skill(tmp_path, evals, queries))

    assert found.cases == (
        EvalCase("1", "Chart it", "A chart", ("evals/files/a.csv",), ("It is a PNG",)),
        EvalCase("two", "Clean it", "", (), ("No blanks",)),
        EvalCase("3", "Third"),
    )
    assert found.queries == (TriggerQuery("chart my csv", True), TriggerQuery("hello", False))
    assert found.diagnostics == ()


def test_a_skill_without_evals_has_none(tmp_path: Path) -> None:
    assert read_evals(skill(tmp_path)) == read_evals(Skill(name="code"))
    assert read_evals(skill(tmp_path / "b")).cases == ()


@pytest.mark.parametrize(
    ("evals", "queries", "code", "cases"),
    [
        ("{", None, "evals-not-json", 0),
        ("[" * 100_000, None, "evals-not-json", 0),
        ([], None, "evals-shape", 0),
        ({"evals": {}}, None, "evals-shape", 0),
        ({"evals": [{"prompt": "x"}], "skill_name": "other"}, None, "evals-skill-name", 1),
        ({"evals": [{"prompt": " "}, {"prompt": "x"}, 7]}, None, "evals-prompt", 1),
        ({"evals": [{"prompt": "x", "expected_output": 7}]}, None, "evals-shape", 1),
        ({"evals": [{"prompt": "x", "files": "a"}]}, None, "evals-shape", 1),
        ({"evals": [{"prompt": "x", "files": ["absent"]}]}, None, "evals-file", 1),
        ({"evals": [{"prompt": "x", "files": ["../../etc/passwd"]}]}, None, "evals-file", 1),
        ({"evals": [{"prompt": "x", "expectations": [1]}]}, None, "evals-shape", 1),
        ({"evals": [{"id": 1, "prompt": "x"}, {"id": 1, "prompt": "y"}]}, None, "evals-duplicate-id", 2),
        (None, {}, "evals-query", 0),
        (None, [{"query": "x"}], "evals-query", 0),
        (None, [{"query": "x", "should_trigger": "yes"}], "evals-query", 0),
    ],
)
def test_what_is_wrong_is_named_and_left_out(tmp_path: Path, evals: Any, queries: Any, code: str, cases: int) -> None:
    found = read_evals(skill(tmp_path, evals, queries))
    assert code in {each.code for each in found.diagnostics}
    assert len(found.cases) == cases and found.queries == ()
