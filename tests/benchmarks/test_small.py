"""Benchmarks with a small form run to their end over little; what they measure is left to `make bench`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_the_benchmark_of_tasks_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "tasks.py", "--small"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line)["name"] for line in done.stdout.splitlines()]
    assert "tasks: what a delegation adds to its agent" in figures
    assert len(figures) == 6


@pytest.mark.slow
def test_the_benchmark_of_a_batch_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "batch.py", "--small"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (figure,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert figure["name"] == "batch: 8 forks of one conversation, to the model's own time"
