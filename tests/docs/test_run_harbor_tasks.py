"""The task of the how-to page is made from the page itself, and run by the commands it shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-harbor-tasks.md"
FILE = re.compile(r"^`([\w/.-]+)`:\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.needs("bubblewrap")
def test_the_commands_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    files = FILE.findall(PAGE.read_text())
    assert len(files) == 6
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "BOUGH_HOME": str(tmp_path / "h"),
    }
    (commands,) = COMMANDS.findall(PAGE.read_text())
    done = subprocess.run(["sh", "-ec", commands], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"solved (\d) of 1", done.stdout) == ["1", "0"], "the oracle is paid, who does nothing is not"
    listed = subprocess.run(["bough", "eval", "list", "--json"], env=env, capture_output=True, check=True).stdout
    assert [run["kind"] for run in json.loads(listed)["data"]["runs"]] == ["harbor", "harbor"]
