"""The skill of the how-to page is made from the page itself, checked and evaluated by the commands it shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "evaluate-a-skill.md"
FILE = re.compile(r"^`([\w/.-]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    files = FILE.findall(PAGE.read_text())
    assert len(files) == 5
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BOUGH_HOME": str(tmp_path / "h"),
    }
    run, look = COMMANDS.findall(PAGE.read_text())
    done = subprocess.run(["sh", "-ec", run], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 with errors" in done.stdout and "difference" in done.stdout
    folder = tmp_path / "line-count-workspace" / "iteration-1"
    summary = json.loads((folder / "benchmark.json").read_text())["run_summary"]
    assert (summary["with_skill"]["pass_rate"]["mean"], summary["without_skill"]["pass_rate"]["mean"]) == (1.0, 0.0)
    assert "has 3 lines" in (folder / "eval-three" / "with_skill" / "outputs" / "answer.md").read_text()
    for name in re.findall(r"^\| `([\w/.-]+)` \|", PAGE.read_text(), re.MULTILINE):
        assert (folder / name).exists(), name
    # The newest run is the one of the trigger queries; the page looks at the cases before it.
    runs = json.loads(subprocess.run(["bough", "eval", "list", "--json"], env=env, capture_output=True).stdout)
    cases = next(run["run"] for run in runs["data"]["runs"] if run["kind"] == "skill")
    done = subprocess.run(
        ["sh", "-ec", look.replace(" - ", f" {cases} ")], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "conv show" in done.stdout and "<testsuite " in done.stdout and "| pass rate |" in done.stdout
