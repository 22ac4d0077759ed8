"""The promises of `docs/concepts/isolation.md`: each names probes that exist, and every probe belongs to a promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bough.execution.gaps import GAPS
from bough.testing.executor_threats import ExecutorThreats

PAGE = Path("docs/concepts/isolation.md").read_text()
ROWS = [line.split(" | ") for line in PAGE.splitlines() if re.search(r"`\w+\.test_\w+` \|$", line)]
COLUMNS = {"bubblewrap": 1, "sandlock": 2, "container": 3}
DIFFERENCES = [
    line.split(" | ")
    for line in PAGE.partition("## What the others let through")[2].splitlines()
    if line.count("|") == 4
][2:]
NO_ATTACKS = {"processes.test_bounding_oneself_works"}


def probes() -> set[str]:
    """Return the tests of the suite by module and name."""
    return {
        f"{vars(kind)[name].__module__.rpartition('.')[2]}.{name}"
        for kind in ExecutorThreats.__mro__
        for name in vars(kind)
        if name.startswith("test_")
    }


def test_every_promise_names_probes_that_exist_and_none_is_left_out() -> None:
    named = {name for row in ROWS for name in re.findall(r"`(\w+\.test_\w+)`", row[-1])}
    assert named - probes() == set()
    assert probes() - named == NO_ATTACKS


def test_every_rung_says_something_about_every_promise() -> None:
    assert len(ROWS) > 20
    assert [row for row in ROWS if len(row) != 5 or not all(cell.strip(" |") for cell in row)] == []


@pytest.mark.parametrize("rung", COLUMNS)
def test_bough_doctor_says_what_a_rung_does_not_promise_in_the_words_of_the_page(rung: str) -> None:
    written = {row[0].removeprefix("| "): row[COLUMNS[rung]] for row in ROWS if "**no**" in row[COLUMNS[rung]]}
    said = {gap.promise: gap.text for gap in GAPS[rung] if gap.promise}
    assert {promise: cell.partition("**no**: ")[2] for promise, cell in written.items()} == said


@pytest.mark.parametrize("rung", COLUMNS)
def test_what_a_rung_lets_through_is_said_in_the_words_of_the_page(rung: str) -> None:
    written = [row[0].removeprefix("| ") for row in DIFFERENCES if rung in row[1].split(", ")]
    assert written == [gap.text for gap in GAPS[rung] if not gap.promise]
