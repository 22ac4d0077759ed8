"""What the commands of `bough eval` print with `--json`."""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from bough.cli.schemas.shared import OPEN


class EvalListData(TypedDict):
    """Eval runs."""

    runs: list[dict[str, Any]]
    """run, kind, set, model, started, pass_rate, passed, attempts and threshold of each."""


@with_config(OPEN)
class EvalRunData(TypedDict):
    """The report of a run, as in its report.json."""

    run: NotRequired[str | dict[str, Any]]
    """Id of the run, or with a CASE its record."""
    folder: NotRequired[str]
    """The folder of the run."""
    summary: NotRequired[dict[str, Any]]
    """Figures of all attempts."""
    cases: NotRequired[list[dict[str, Any]]]
    """Each attempt with its status, scores and conversation."""
    faults: NotRequired[list[dict[str, Any]]]
    """Mistakes in the set."""
    threshold: NotRequired[float]
    """The least share of passed attempts."""
    passed: NotRequired[bool]
    """Whether the share was reached."""


class EvalPlanData(TypedDict):
    """What a run would do."""

    set: str
    """Name of the set."""
    plan: list[dict[str, Any]]
    """case, attempts, turns, metrics and needs_judge of each."""
    faults: list[dict[str, Any]]
    """Mistakes in the set."""


class EvalAddData(TypedDict):
    """A case that was added to a set."""

    set: str
    """The file."""
    case: str
    """Id of the new case."""
    cases: int
    """Number of cases in the file."""


class EvalCompareData(TypedDict):
    """Two runs compared."""

    a: str
    """The first run."""
    b: str
    """The second."""
    cases: int
    """Number of cases in both."""
    left_out: int
    """Number of cases in one only."""
    differs_in: list[str]
    """Settings that differ."""
    figures: dict[str, dict[str, float]]
    """a, b, n, difference, low, high and p of each figure."""
    worse: list[dict[str, Any]]
    """case, a, b and reason of each that got worse."""
    better: list[dict[str, Any]]
    """The same of each that got better."""


class EvalReportData(TypedDict):
    """Reports that were written."""

    run: str
    """Id of the run."""
    files: list[str]
    """The files that were written."""
    rescored: dict[str, Any] | None
    """What --rescore changed."""
