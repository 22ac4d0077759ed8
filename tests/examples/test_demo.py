"""The demo: it runs to its end, on its own copy, and what it shows was computed there and then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_runs_real_skills_forks_and_draws_the_tree(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "examples" / "workspace" / "README.md").write_text("one two three\n")
    done = subprocess.run([sys.executable, tmp_path / "examples" / "demo.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sales.csv: 180 rows" in done.stdout
    assert "1  3 14 README.md" in done.stdout
    assert "no such heading" in done.stdout
    assert "└─ @1" in done.stdout
    assert done.stderr.count("executor sandbox (") == 3
    home = {"BOUGH_HOME": str(tmp_path / ".demo" / "home")}
    shown = subprocess.run(
        [Path(sys.executable).with_name("bough"), "conv", "list", "--json"],
        env=os.environ | home,
        capture_output=True,
        text=True,
    )
    conversations = json.loads(shown.stdout)["data"]["conversations"]
    assert [each["status"] for each in conversations] == ["finished"] * 3
