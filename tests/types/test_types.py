"""Public names have types that mypy accepts too; pyright reads the same files in `make check`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("tests/types/output_types.py",)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypy_accepts_programs_that_use_the_public_names(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", f"--cache-dir={tmp_path}", *FILES]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
