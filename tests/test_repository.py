"""The repository itself: it can be set up anywhere, and pins what it says it needs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PINS = {name: (ROOT / name).read_text() for name in ("requirements.txt", "requirements-dev.txt")}


def names(requirements: list[str]) -> set[str]:
    """The names of packages in requirement strings, as an index spells them."""
    return {re.split(r"[\[<>=;\s]", each, maxsplit=1)[0].lower().replace("_", "-") for each in requirements}


@pytest.mark.parametrize("name", PINS)
def test_pins_are_versions_only_without_any_address(name: str) -> None:
    for line in PINS[name].splitlines():
        assert re.fullmatch(r"[a-z0-9.-]+(\[[a-z,]+\])?==[\w.]+( ; .+)?", line), line


def test_everything_the_project_needs_is_pinned_and_alike_in_both_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    users, developers = ({line.split(" ;")[0] for line in PINS[name].splitlines()} for name in PINS)
    assert names(project["project"]["dependencies"]) <= names(list(users))
    assert names(project["dependency-groups"]["dev"]) <= names(list(developers))
    assert users <= developers


def test_the_oldest_supported_release_of_pydantic_ai_is_the_one_that_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (bound,) = (each for each in project["project"]["dependencies"] if each.startswith("pydantic-ai-slim"))
    oldest = re.search(r">=([\d.]+)", bound)
    assert oldest
    assert f"pydantic-ai-slim=={oldest[1]}" in PINS["requirements.txt"]


HANGS = """
import time
import pytest

@pytest.fixture
def server(tmp_path_factory):
    yield
    print("torn down")

@pytest.mark.timeout(1)
def test_hangs(server):
    time.sleep(1000)

def test_after():
    pass
"""


def test_a_test_that_hangs_fails_alone_and_what_it_started_is_torn_down(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        ROOT / "pyproject.toml",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    done = subprocess.run([*command, "--rootdir", tmp_path, tmp_path], capture_output=True, text=True)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Timeout (>1.0s)" in done.stdout
    assert "torn down" in done.stdout
