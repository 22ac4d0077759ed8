"""The benchmark harness: fair turns, medians, one JSON line a figure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The harness, imported as a benchmark imports it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import harness

    return harness


def test_both_sides_take_turns_the_first_round_does_not_count_and_the_order_alternates(harness: ModuleType) -> None:
    calls: list[str] = []
    numbers = iter(range(100))

    def side(name: str) -> float:
        calls.append(name)
        return next(numbers)

    values, floors = harness.in_turns(lambda: side("w"), lambda: side("f"), rounds=5)
    assert (len(values), len(floors)) == (5, 5)
    assert "".join(calls) == "fwwffwwffwwf"
    assert 0 not in values + floors


def test_a_figure_is_a_line_of_json_with_medians_and_their_ratio(
    harness: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.Figure.of("x", [5.0, 1.0, 3.0, 2.0, 4.0], [2.0] * 4 + [100.0], unit="ms").report()
    assert json.loads(capsys.readouterr().out) == {
        "name": "x", "value": 3.0, "unit": "ms", "floor": 2.0, "ratio": 1.5, "n": 5,
    }  # fmt: skip


def test_too_few_rounds_are_refused(harness: ModuleType) -> None:
    with pytest.raises(ValueError, match="at least 5"):
        harness.Figure.of("x", [1.0] * 4, [1.0] * 4, unit="ms")


def test_rates_grow_where_times_shrink(harness: ModuleType) -> None:
    figure = harness.compare("x", lambda: None, lambda: sum(range(20_000)), unit="1/s", per=10, rounds=5)
    assert figure.value > figure.floor
    assert figure.ratio > 1


def test_an_unknown_benchmark_is_told_with_those_there_are() -> None:
    done = subprocess.run([sys.executable, BENCHMARKS, "nope"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "startup" in done.stderr
    assert "harness" not in done.stderr
