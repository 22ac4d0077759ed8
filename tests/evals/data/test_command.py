"""`bough eval data` as a command: the plan of its own set, and what is refused before anything is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BOUGH = Path(sys.executable).with_name("bough")


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [BOUGH, "eval", "data", *args, "--home", str(folder / "home")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_the_plan_has_twelve_cases_and_twelve_rubrics(tmp_path: Path) -> None:
    done = run(tmp_path, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["data"]["plan"]
    assert (len(plan), sum(each["needs_judge"] for each in plan)) == (12, 12)
    assert "schema_discovery_score" in next(each for each in plan if each["case"] == "sql_count_by_island")["metrics"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "12 rubrics in 5 cases need a judge"),
        (("--project", "sales=none.duckdb", "--judge", "none"), "none.duckdb"),
        (("--write-mode", "everything", "--judge", "none"), "everything"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_hint(tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    refused = run(tmp_path, *args, "--model", "offline")
    assert refused.returncode in (2, 3), refused.stderr
    assert message in refused.stderr
    assert "hint:" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list((tmp_path / "home" / "evals").glob("2*")), "no run was begun"
