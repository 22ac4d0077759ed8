"""What `conftest.py` does to a run as a whole: on a machine that lacks something, and when a test never ends."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

NEEDS = """
import pytest

@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("n", range(3))
def test_of_bubblewrap(n):
    pass

@pytest.fixture
def zygote():
    pass

def test_by_a_fixture(zygote):
    pass

def test_without_needs():
    pass
"""

HANGS_FOR_GOOD = """
import asyncio, os, threading
import pytest

@pytest.fixture(scope="session")
def server():
    yield
    open(os.environ["OUT"], "w").write("torn down")

@pytest.mark.anyio
async def test_hangs(server):
    await asyncio.get_running_loop().run_in_executor(None, wait_for_nobody)

def wait_for_nobody():
    threading.Event().wait()
"""

HANGS = """
import os, time
import pytest

@pytest.fixture(scope="session")
def server():
    yield
    open(os.environ["OUT"], "w").write("torn down")

def test_hangs(server):
    time.sleep(1000)
"""


def run_tests(folder: Path, source: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run tests as this project's are, and return exit code and output."""
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "test_it.py").write_text(source)
    options = ["-q", "-c", ROOT / "pyproject.toml", "--rootdir", folder, "-p", "no:cacheprovider", *arguments]
    kept = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, folder],
        env=kept | environment | {"OUT": str(folder / "out")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_the_machine_lacks_is_left_out_and_named_in_one_line(tmp_path: Path, workers: str) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    code, output = run_tests(tmp_path, NEEDS, "-n", workers, PATH=str(empty))
    assert code == 0, output
    assert re.search(r"\b1 passed", output), output
    (line,) = (line for line in output.splitlines() if line.startswith("left out"))
    assert line.startswith("left out: 4 tests that need bubblewrap (The program bwrap is not in PATH)")
    assert line.endswith("To get it: apt-get install bubblewrap")


def test_what_the_machine_lacks_fails_in_ci(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    code, output = run_tests(tmp_path, NEEDS, "-n", "0", PATH=str(empty), CI="true")
    assert code == 1, output
    assert "1 passed, 4 errors" in output
    assert "bubblewrap is needed: The program bwrap is not in PATH. (apt-get install bubblewrap)" in output


def test_an_unknown_component_is_refused(tmp_path: Path) -> None:
    code, output = run_tests(tmp_path, NEEDS.replace("bubblewrap", "bubblegum"), "-n", "0")
    assert code != 0
    assert "needs bubblegum, which COMPONENTS does not list" in output


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize("source", [HANGS, HANGS_FOR_GOOD], ids=["can-be-interrupted", "cannot"])
def test_a_run_that_does_not_end_shows_its_stacks_and_is_ended(tmp_path: Path, source: str, workers: str) -> None:
    """The second cannot be torn down, so it uses up its grace: at its end the event loop waits for the thread."""
    grace = "5" if source is HANGS_FOR_GOOD else "20"
    code, output = run_tests(tmp_path, source, "-n", workers, TEST_RUN_SECONDS="3", TEST_GRACE_SECONDS=grace)
    assert code != 0
    assert "the tests took longer than 3 s (TEST_RUN_SECONDS)" in output
    assert ("in wait_for_nobody" if source is HANGS_FOR_GOOD else "in test_hangs") in output
    assert (tmp_path / "out").exists() == (source is HANGS), output
