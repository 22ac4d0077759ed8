"""The repository itself: it can be set up anywhere, and pins what it says it needs."""

from __future__ import annotations

import re
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
