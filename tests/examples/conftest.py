"""Running the scripts of the example skills as what they are: programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SKILLS = Path(__file__).parents[2] / "examples" / "skills"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def script(tmp_path: Path) -> Run:
    """Run `SKILL/scripts/NAME ARGS` in `tmp_path` and return what happened."""

    def run(name: str, *args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        path = SKILLS / name
        command = [sys.executable, str(path)] if path.suffix == ".py" else [str(path)]
        return subprocess.run(
            [*command, *map(str, args)],
            cwd=tmp_path,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    return run
