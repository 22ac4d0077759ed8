"""What runs for a request is bounded: a change that makes a request walk through more of the code fails here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

BOUNDS = {
    "POST fork": (480, 55),
    "Conversation.fork()": (240, 30),
    "GET conversation": (96, 32),
    "send_message": (154, 45),
}
"""The most calls and files of each walk."""


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="calls are counted on Python 3.11")
def test_a_request_walks_through_no_more_than_its_bound() -> None:
    done = subprocess.run([sys.executable, BENCHMARKS / "walk.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure["value"] for figure in map(json.loads, done.stdout.splitlines())}
    counts = {name: (figures[f"walk: calls of {name}"], figures[f"walk: files of {name}"]) for name in BOUNDS}
    beyond = {name: count for name, count in counts.items() if count[0] > BOUNDS[name][0] or count[1] > BOUNDS[name][1]}
    assert not beyond, f"bounds: {BOUNDS}"
