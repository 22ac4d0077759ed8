"""Files of pydantic-evals: read case by case, evaluators from a closed list, written back in the same form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bough.evals import EvalSet, ToolUse, read_set

GOOD = """
name: mine
cases:
- name: plain
  inputs: say hi
  expected_output: hi
  evaluators:
  - EqualsExpected
  - Contains: {value: h, case_sensitive: false}
  - ToolInvocation: {expected: [load_skill]}
- inputs:
    turns: [{user: one, tool_uses: [{name: t, args: {path: p}}]}, {user: two}]
    expect: {steps: 3}
evaluators:
- MaxDuration: {seconds: 60}
"""


def read(tmp_path: Path, text: str, name: str = "set.yaml") -> EvalSet:
    (tmp_path / name).write_text(text)
    return read_set(tmp_path / name)


def test_a_file_is_read_with_its_evaluators(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    assert found.faults == ()
    plain, turns = found.cases
    assert (plain.id, plain.input.reference) == ("plain", "hi")
    assert [type(each).__name__ for each in plain.evaluators] == ["EqualsExpected", "Contains", "ToolInvocation"]
    assert (turns.id, turns.input.tool_uses) == ("case-2", (ToolUse("t", {"path": "p"}),))
    assert [type(each).__name__ for each in found.evaluators] == ["MaxDuration"]


def test_each_case_that_is_wrong_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
cases:
- {name: a, inputs: x}
- {name: a, inputs: y}
- {name: none}
- {name: unknown, inputs: x, evaluators: [NoSuchThing]}
- {name: arguments, inputs: x, evaluators: [{Contains: {nonsense: 1}}]}
- {name: list, inputs: [1]}
- {name: field, inputs: {turns: [{user: x}], nonsense: 1}}
- {name: metric, inputs: {turns: [{user: x}], expect: {nonsense: 1}}}
- {name: file, inputs: {turns: [{user: x}], files: [{source: ../../etc/passwd, target: a}]}}
- {name: extra, inputs: x, nonsense: 1}
- {name: b, inputs: x}
""",
    )
    assert [case.id for case in found.cases] == ["a", "b"]
    assert [(fault.case, fault.code) for fault in found.faults] == [
        ("a", "duplicate-id"),
        ("none", "no-prompt"),
        ("unknown", "evaluator-unknown"),
        ("arguments", "evaluator-arguments"),
        ("list", "type"),
        ("field", "unknown-field"),
        ("metric", "threshold"),
        ("file", "file-outside"),
        ("extra", "unknown-field"),
    ]


def test_yaml_that_is_none_is_a_fault(tmp_path: Path) -> None:
    assert [fault.code for fault in read(tmp_path, "cases: [").faults] == ["not-yaml"]
    assert [fault.code for fault in read(tmp_path, "a: &a [*a]\ncases: []").faults] != []


def test_what_is_saved_is_read_back_as_it_was(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    for name in ("copy.yaml", "copy.json"):
        found.save(tmp_path / name)
        again = read_set(tmp_path / name)
        assert again.faults == ()
        assert [case.sha256 for case in again.cases] == [case.sha256 for case in found.cases]


def test_the_dataset_has_the_metrics_that_a_case_has_material_for(tmp_path: Path) -> None:
    dataset = read(tmp_path, GOOD).dataset({"order": 0.5})
    names: list[list[Any]] = [
        [each.get_default_evaluation_name() for each in case.evaluators] for case in dataset.cases
    ]
    assert "tool_args_score" in names[1] and "steps" in names[1] and "order" in names[1]
    assert "tool_args_score" not in names[0] and "output_correctness_score" in names[0]
    assert names[0].count("tool_invocation_score") == 1
