"""Eval sets of seed 003's form: what is read, and every fault named by file, case and field, the good cases kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bough.errors import InvalidInput, NotFound
from bough.evals import Rubric, ToolUse, read_set


def turn(text: str = "hi", *uses: dict[str, Any], answer: str = "", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"user_content": {"role": "user", "parts": [{"text": text}]}}
    if uses:
        found["intermediate_data"] = {"tool_uses": list(uses)}
    if answer:
        found["final_response"] = {"parts": [{"text": answer}]}
    return found | more


def rubric(id: str, text: str) -> dict[str, Any]:
    return {"rubric_id": id, "rubric_content": {"text_property": text}}


def write(folder: Path, *cases: Any, **top: Any) -> Path:
    path = folder / "set.json"
    path.write_text(json.dumps({"eval_set_id": "s", "eval_cases": list(cases), **top}))
    return path


def faults_of(path: Path) -> list[tuple[str, str, str, str]]:
    return [(f.severity, f.code, f.case, f.field) for f in read_set(path).faults]


def test_a_case_is_read_with_turns_tool_uses_reference_and_rubrics(tmp_path: Path) -> None:
    case = {
        "eval_id": "a",
        "conversation": [
            turn("one", {"name": "load_skill", "args": {"name": "x"}, "id": "c1"}, rubrics=[rubric("t1", "polite")]),
            turn("two", answer="Total"),
        ],
        "rubrics": [rubric("r1", "loads the skill")],
        "session_input": {"app_name": "app", "state": {"k": 1}},
    }
    found = read_set(write(tmp_path, case, name="my set"))
    assert found.faults == ()
    (read,) = found.cases
    assert (found.name, found.format, read.id) == ("my set", "adk", "a")
    assert [each.user for each in read.input.turns] == ["one", "two"]
    assert read.input.tool_uses == (ToolUse("load_skill", {"name": "x"}),)
    assert read.input.all_rubrics == (Rubric("r1", "loads the skill"), Rubric("t1", "polite"))
    assert (read.input.reference, read.input.state) == ("Total", {"k": 1})
    assert read.metadata == {"session_input": {"app_name": "app"}}


def test_camel_case_and_invocation_events_are_read_too(tmp_path: Path) -> None:
    event = {"author": "agent", "content": {"parts": [{"functionCall": {"name": "t", "args": {"path": "p"}}}]}}
    case = {
        "evalId": "a",
        "conversation": [
            {
                "userContent": {"parts": [{"text": "one"}, {"text": "line"}]},
                "intermediateData": {"invocationEvents": [event]},
                "finalResponse": {"parts": [{"text": "ok"}]},
            }
        ],
    }
    path = tmp_path / "set.json"
    path.write_text(json.dumps({"evalSetId": "s", "evalCases": [case]}))
    found = read_set(path)
    assert found.faults == ()
    assert found.cases[0].input.turns[0].user == "one\nline"
    assert found.cases[0].input.tool_uses == (ToolUse("t", {"path": "p"}),)


def test_every_fault_is_named_and_the_good_cases_are_kept(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"eval_id": "good", "conversation": [turn()]},
        {"eval_id": "good", "conversation": [turn()]},
        {"conversation": [turn()]},
        {"eval_id": "no-turns", "conversation": []},
        {"eval_id": "no-text", "conversation": [turn(" ")]},
        {"eval_id": "image", "conversation": [{"user_content": {"parts": [{"inline_data": {}}]}}]},
        {"eval_id": "rubric", "conversation": [turn()], "rubrics": [rubric("r", " ")]},
        {"eval_id": "use", "conversation": [turn("x", {"args": {}})]},
        {"eval_id": "args", "conversation": [turn("x", {"name": "t", "args": []})]},
        {"eval_id": "scenario", "conversation": [turn()], "conversation_scenario": {}},
        {"eval_id": "twice", "conversation": [turn(rubrics=[rubric("r", "x")])], "rubrics": [rubric("r", "y")]},
        {"eval_id": 7, "conversation": [turn()]},
        "not a case",
        {"eval_id": "also-good", "conversation": [turn()], "invocation_id": "kept"},
    )
    found = read_set(path)
    assert [case.id for case in found.cases] == ["good", "also-good"]
    assert faults_of(path) == [
        ("error", "type", "", "eval_cases[12]"),
        ("error", "duplicate-id", "good", "eval_cases[1].eval_id"),
        ("error", "missing", "3", "eval_cases[2].eval_id"),
        ("error", "no-prompt", "no-turns", "eval_cases[3].conversation"),
        ("error", "no-prompt", "no-text", "eval_cases[4].conversation[0].user_content.parts"),
        ("error", "unsupported", "image", "eval_cases[5].conversation[0].user_content.parts[0].inline_data"),
        ("error", "no-prompt", "image", "eval_cases[5].conversation[0].user_content.parts"),
        ("error", "rubric-empty", "rubric", "eval_cases[6].rubrics[0].rubric_content"),
        ("error", "missing", "use", "eval_cases[7].conversation[0].intermediate_data.tool_uses[0].name"),
        ("error", "type", "args", "eval_cases[8].conversation[0].intermediate_data.tool_uses[0].args"),
        ("error", "unsupported", "scenario", "eval_cases[9].conversation_scenario"),
        ("error", "duplicate-id", "twice", "eval_cases[10].conversation[0]"),
        ("error", "type", "12", "eval_cases[11].eval_id"),
        ("note", "unknown-field", "also-good", "eval_cases[13]"),
    ]
    assert all(fault.file == str(path) for fault in found.faults)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"eval_cases": [', "not-json"),
        (b"\xff\xfe{}", "not-utf8"),
        (b'{"eval_cases": []}', "empty"),
        (b'{"eval_cases": 3}', "type"),
        (b"[" * 200 + b"]" * 200, "shape"),
        (b"[" * 200_000, "not-json"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_fault_not_a_crash(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "set.json"
    path.write_bytes(content)
    found = read_set(path)
    assert found.cases == ()
    assert code in [fault.code for fault in found.faults]


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    with open(path, "wb") as file:
        file.truncate((64 << 20) + 1)
    assert [fault.code for fault in read_set(path).faults] == ["too-long"]


def test_of_too_many_cases_the_first_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is made small, for a hundred thousand cases take seconds to read."""
    monkeypatch.setattr("bough.evals.document.MAX_CASES", 2)
    conversation = [{"user_content": {"parts": [{"text": "x"}]}}]
    path = tmp_path / "set.json"
    path.write_text(json.dumps({"eval_cases": [{"eval_id": str(n), "conversation": conversation} for n in range(3)]}))
    found = read_set(path)
    assert [case.id for case in found.cases] == ["0", "1"]
    assert [(fault.code, fault.message) for fault in found.faults] == [("too-many", "has 3 cases, more than 2")]


def test_a_path_that_is_none_of_the_formats_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_set(tmp_path / "missing.json")
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "x.txt").write_text("")
    for name in ("x.json", "x.txt", "."):
        with pytest.raises(InvalidInput):
            read_set(tmp_path / name)


def test_a_digest_changes_with_what_a_case_asks_and_with_nothing_else(tmp_path: Path) -> None:
    a = read_set(write(tmp_path, {"eval_id": "a", "conversation": [turn("x")]})).cases[0].sha256
    (tmp_path / "b").mkdir()
    same = read_set(write(tmp_path / "b", {"eval_id": "a", "conversation": [turn("x")]})).cases[0].sha256
    other = read_set(write(tmp_path / "b", {"eval_id": "a", "conversation": [turn("y")]})).cases[0].sha256
    assert a == same != other
