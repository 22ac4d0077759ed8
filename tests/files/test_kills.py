"""A process is killed at each step of a checkpoint, a restore and a collection; what is left is whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.files import kills, log_kills


@pytest.mark.parametrize(("operation", "steps"), [("checkpoint", 4), ("restore", 13), ("collect", 5)])
def test_a_kill_at_each_step_leaves_the_folder_as_before_or_as_after(
    operation: str, steps: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", kills.__file__, operation, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= steps


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "steps"), [("run", 8), ("restore", 11), ("apply", 8)])
def test_a_kill_at_each_step_leaves_a_log_that_names_whole_trees(operation: str, steps: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", log_kills.__file__, operation, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= steps
