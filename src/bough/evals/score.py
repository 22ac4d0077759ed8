"""Scores of metrics, their thresholds, and results of assertions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bough.types import JsonObject

THRESHOLDS: Mapping[str, float] = {
    "tool_invocation_score": 1.0,
    "tool_args_score": 1.0,
    "tool_usage_score": 0.5,
    "order": 1.0,
    "schema_discovery_score": 1.0,
    "skill_discovery_score": 1.0,
    "output_correctness_score": 1.0,
    "trigger_score": 0.5,
    "no_tool_errors": 1.0,
    "instruction_adherence_score": 0.75,
    "assertions": 1.0,
}
"""The default threshold of each metric."""

AT_MOST = frozenset({"steps", "cost_usd", "duration_seconds"})
"""Metrics that pass at or below their threshold; all others pass at or above it."""

METRICS = frozenset(THRESHOLDS) | AT_MOST
"""The names of all metrics of bough."""


@dataclass(frozen=True, slots=True)
class Score:
    """The value of a metric and whether it passes.

    Attributes:
        value: The value; None if there is nothing to measure.
        passed: Whether the metric passes; None without a threshold.
        reason: Explanation in one sentence.
        threshold: The applied threshold.
        by: Origin of the value: `trace`, `judge`, `verifier`, or the name of an evaluator.
        error: Whether the computation failed; the value is then 0.
    """

    name: str
    value: float | int | None
    passed: bool | None
    reason: str = ""
    threshold: float | None = None
    by: str = "trace"
    error: bool = False

    def as_dict(self) -> JsonObject:
        """Return the score as the JSON of a result note, without its name."""
        return {
            "value": self.value,
            "threshold": self.threshold,
            "passed": self.passed,
            "reason": self.reason,
            "by": self.by,
            **({"error": True} if self.error else {}),
        }

    @classmethod
    def of(cls, name: str, data: JsonObject) -> Score:
        """Return the score that `as_dict` wrote."""
        return cls(
            name=name,
            value=data.get("value"),
            passed=data.get("passed"),
            reason=data.get("reason", ""),
            threshold=data.get("threshold"),
            by=data.get("by", "trace"),
            error=bool(data.get("error")),
        )


def at_least(name: str, value: float, threshold: float | None, reason: str = "") -> Score:
    """Return a score that passes at or above a threshold; without a threshold, `passed` is None."""
    passed = None if threshold is None else value >= threshold - 1e-9
    return Score(name, round(value, 6), passed, reason, threshold)


def at_most(name: str, value: float | int, threshold: float | None, reason: str = "") -> Score:
    """Return a score that passes at or below a threshold; without a threshold, `passed` is None."""
    return Score(name, value, None if threshold is None else value <= threshold, reason, threshold)


@dataclass(frozen=True, slots=True)
class AssertionResult:
    """The result of one assertion about an outcome.

    Attributes:
        evidence: Why the assertion passed or not.
        checked_by: `code` or `judge`.
        error: Whether the assertion could not be decided; it then counts as not passed.
    """

    text: str
    passed: bool
    evidence: str
    checked_by: str = "code"
    error: bool = False

    def as_dict(self) -> JsonObject:
        """Return the result as an entry of `assertion_results`."""
        return {"text": self.text, "passed": self.passed, "evidence": self.evidence, "checked_by": self.checked_by}
