"""The result of a run: whether it passed, its figures and its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bough.evals.document import Fault
from bough.evals.run.summary import AttemptResult, MetricSummary, RunSummary
from bough.evals.statistics import Interval
from bough.types import JsonObject


@dataclass(frozen=True, kw_only=True)
class EvalRun:
    """A run of an eval set.

    Attributes:
        cases: One result for each attempt of all sides, in the order of the plan.
        summary: The figures; if sides are compared, those of the first side.
        sides: Mean and deviation of each side, and their difference; empty if no sides are compared.
        threshold: The required pass rate.
        is_over_budget: Whether attempts were skipped because the cost limit was reached.
    """

    run: str
    folder: Path
    cases: tuple[AttemptResult, ...]
    summary: RunSummary
    threshold: float
    sides: JsonObject = field(default_factory=dict[str, Any])
    faults: tuple[Fault, ...] = ()
    is_over_budget: bool = False

    @property
    def passed(self) -> bool:
        """Whether the pass rate is at or above the threshold."""
        return bool(self.cases) and self.summary.pass_rate >= self.threshold - 1e-9

    @property
    def pass_rate(self) -> float:
        """The mean pass rate over cases, see `RunSummary`."""
        return self.summary.pass_rate

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the pass rate."""
        return self.summary.interval

    @property
    def metrics(self) -> Sequence[MetricSummary]:
        """Each metric over all attempts."""
        return self.summary.metrics

    @property
    def cost_usd(self) -> float | None:
        """Cost of agent and judge; None if a price is unknown."""
        return self.summary.cost_usd

    def folder_report(self) -> JsonObject:
        """Return the content of `report.json` in the run's folder.

        Raises:
            NotFound: The file does not exist.
        """
        from bough.evals.run.folder import RunFolder

        return RunFolder(self.folder).read_report() or {}

    def as_dict(self, notes: Sequence[JsonObject]) -> JsonObject:
        """Return the run as JSON, for `--json` and `report.json`.

        Args:
            notes: The result notes, in the order of `cases`.
        """
        return {
            "run": self.run,
            "folder": str(self.folder),
            "summary": self.summary.as_dict(),
            **({"sides": self.sides} if self.sides else {}),
            "metrics": {metric.name: metric.as_dict() for metric in self.metrics},
            "cases": list(notes),
            "faults": [fault.as_dict() for fault in self.faults],
            "threshold": self.threshold,
            "passed": self.passed,
        }
