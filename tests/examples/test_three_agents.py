"""The example of three agents: its configuration is right, and each question goes to the agent that fits, offline."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_agents"


def _run(folder: Path, *command: str) -> str:
    keyless = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    env = {**keyless, "BOUGH_HOME": str(folder / "home"), "BOUGH_EXECUTOR": "unsafe"}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_question_goes_to_the_agent_that_fits(tmp_path: Path) -> None:
    said = _run(tmp_path, str(EXAMPLE / "run.py"))
    assert "analyst answers:" in said
    assert "librarian answers:" in said
