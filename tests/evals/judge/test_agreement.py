"""Agreement of a judge with a person: the numbers of the page, and the file of labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bough.errors import InvalidInput
from bough.evals.judge.agreement import JudgedLabel, measure_agreement
from bough.evals.judge.label import read_labels
from bough.evals.statistics import cohen_kappa


def test_the_example_of_the_page() -> None:
    judged = [
        JudgedLabel(id=str(n), label=label, judged=said)
        for n, (label, said) in enumerate(
            [(True, True)] * 40 + [(False, True)] * 5 + [(True, False)] * 10 + [(False, False)] * 45
        )
    ]
    found = measure_agreement([*judged, JudgedLabel(id="x", label=True, judged=None)])
    assert found.kappa == pytest.approx(0.70)
    assert (found.accuracy, found.failed, len(found.differing)) == (0.85, 1, 15)
    assert found.precision == pytest.approx(40 / 45) and found.recall == pytest.approx(0.8)
    assert 0.5 < found.interval.low < 0.7 < found.interval.high < 0.85
    assert measure_agreement(judged).interval == measure_agreement(judged).interval, "the same every time"


def test_kappa_where_chance_agrees_always() -> None:
    assert cohen_kappa(10, 0, 0, 0) == 1.0
    assert cohen_kappa(0, 0, 0, 10) == 1.0
    assert cohen_kappa(5, 5, 0, 0) == 0.0
    with pytest.raises(InvalidInput):
        cohen_kappa(0, 0, 0, 0)


def test_each_line_that_is_wrong_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    good = {"id": "a", "request": "x", "answer": "y", "property": "p", "label": "yes"}
    lines = [
        good,
        good,
        good | {"id": "b", "label": "maybe"},
        good | {"id": "c", "property": " "},
        {"id": "d"},
        good | {"id": "e", "trace": [{"tool": "t", "arguments": {"n": 1}, "result": "ok"}]},
    ]
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\nnot json\n\n[]\n")
    labels, faults = read_labels(path)
    assert [label.id for label in labels] == ["a", "e"]
    assert labels[1].calls[0].arguments == {"n": 1}
    assert [(fault.case, fault.code) for fault in faults.items] == [
        ("2", "duplicate-id"),
        ("3", "type"),
        ("4", "rubric-empty"),
        *[("5", "missing")] * 4,
        ("7", "not-json"),
        ("9", "type"),
    ]
