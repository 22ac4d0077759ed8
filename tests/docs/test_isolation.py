"""The promises of `docs/concepts/isolation.md`: each names probes that exist, and every probe belongs to a promise."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import re
from pathlib import Path

from bough.execution.sandbox import bubblewrap, landlock
from bough.testing.executor_threats import ExecutorThreats

PAGE = Path("docs/concepts/isolation.md").read_text()
ROWS = [line.split(" | ") for line in PAGE.splitlines() if re.search(r"`\w+\.test_\w+` \|$", line)]
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


def test_what_a_rung_does_not_promise_is_said_by_it() -> None:
    """`bough doctor` prints these; the page has a "no" in the rung's column for each kind of gap."""
    columns = {"bubblewrap": 1, "sandlock": 2}
    gaps = {"bubblewrap": bubblewrap._GAPS_OF_USERS, "sandlock": (*landlock._GAPS, *landlock._GAPS_WITHOUT_MOUNTS)}
    for name, column in columns.items():
        denied = [row for row in ROWS if "**no**" in row[column]]
        assert denied
        assert len(gaps[name]) >= len(denied)
