"""The storm on the web page, with fewer events and arrivals than `make bench` makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STORM = Path(__file__).parents[2] / "benchmarks" / "storm.py"


@pytest.mark.slow
@pytest.mark.needs("chromium")
@pytest.mark.timeout(300)
def test_a_storm_moves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(STORM), "--events", "20000", "--arrivals", "60"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line)["name"] for line in done.stdout.splitlines()]
    assert figures == ["web: a jump in the page, to the route of its rows"]
