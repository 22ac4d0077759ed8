"""Tasks made by hand, and a run of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from bough.settings import Settings


@pytest.fixture
def settings(bough_home: Path, tmp_path: Path) -> Settings:
    """Settings of a home folder of this test."""
    return Settings.load(home=bough_home, env={}, cwd=tmp_path)


WriteTask = Callable[..., Path]


@pytest.fixture
def write_task(tmp_path: Path) -> WriteTask:
    """Writes a task: its files by path; what is not given is a task that asks for the file `/app/answer` with `42`."""

    def write(name: str, **given: str) -> Path:
        files = {
            "instruction.md": "Write 42 to /app/answer.",
            "task.toml": '[environment]\nworkdir = "/app"\nmemory_mb = 256\n',
            "environment/Dockerfile": "FROM bough-task-base\nWORKDIR /app\n",
            "solution/solve.sh": "echo 42 > /app/answer",
            "tests/test.sh": (
                'if [ "$(cat /app/answer)" = 42 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'
            ),
        } | {path.replace("__", "/").replace("_DOT_", "."): text for path, text in given.items()}
        for path, text in files.items():
            place = tmp_path / "tasks" / name / path
            if text:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(dedent(text))
        return tmp_path / "tasks"

    return write
