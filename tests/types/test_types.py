"""Public names have types that mypy accepts too; pyright reads the same files in `make check`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(ROOT.glob("examples/programs/*/main.py"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypy_accepts_programs_that_use_the_public_names(tmp_path: Path) -> None:
    # As modules of names of their own: mypy reads one `main` only.
    for program in PROGRAMS:
        (tmp_path / f"{program.parent.name}.py").write_bytes(program.read_bytes())
    files = ["tests/types/output_types.py", *map(str, sorted(tmp_path.glob("*.py")))]
    command = [sys.executable, "-m", "mypy", f"--cache-dir={tmp_path / 'cache'}", *files]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
