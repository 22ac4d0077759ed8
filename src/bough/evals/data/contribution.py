"""Contribution analysis: how much every segment adds to the difference between two groups of rows.

Source: BigQuery's CONTRIBUTION_ANALYSIS models for the names of the columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bough.evals.data.fault import QueryError

MAX_DIMENSIONS = 5
_NAME = r"([A-Za-z_]\w*)"
_METRIC = re.compile(
    rf"\s*SUM\(\s*{_NAME}\s*\)\s*(?:/\s*(?:SUM\(\s*{_NAME}\s*\)|COUNT\(\s*DISTINCT\s+{_NAME}\s*\))\s*)?", re.IGNORECASE
)


@dataclass(frozen=True)
class ContributionMetric:
    """`SUM(a)`, `SUM(a)/SUM(b)` or `SUM(a)/COUNT(DISTINCT c)`, by the columns it names."""

    numerator: str
    denominator: str | None
    distinct: bool

    @classmethod
    def parse(cls, text: str) -> ContributionMetric:
        """Return a metric from its text.

        Raises:
            QueryError: The text has none of the three forms.
        """
        match = _METRIC.fullmatch(text)
        if match is None:
            raise QueryError(
                "INVALID_ARGUMENT", "contribution_metric must be SUM(a), SUM(a)/SUM(b) or SUM(a)/COUNT(DISTINCT c)"
            )
        return cls(match[1], match[2] or match[3], match[3] is not None)


@dataclass(frozen=True)
class Segment:
    """A combination of dimension values: sums of the test and of the control rows as (numerator, denominator)."""

    values: tuple[tuple[str, Any], ...]
    test: tuple[float, float]
    control: tuple[float, float]

    @property
    def contributors(self) -> list[str]:
        """`name=value` of each dimension, sorted."""
        return sorted(f"{name}={value}" for name, value in self.values)


def analyze_segments(
    total: Segment, segments: Sequence[Segment], dimensions: Sequence[str], *, top: int, prune: bool
) -> list[dict[str, Any]]:
    """Return the segments as rows, sorted by support, then contribution, then name.

    Args:
        total: All rows.
        prune: Omit a segment whose metrics equal those of a segment that contains it.
    """
    rows = [_row(segment, total, dimensions) for segment in (_prune(segments) if prune else segments)]
    rows.sort(key=lambda row: (-(row["apriori_support"] or 0), -(row["contribution"] or 0), row["contributors"]))
    return rows[:top]


def _row(segment: Segment, total: Segment, dimensions: Sequence[str]) -> dict[str, Any]:
    test, control = _divide(*segment.test), _divide(*segment.control)
    difference = None if test is None or control is None else test - control
    rest_test = _metric_without(total.test, segment.test)
    rest_control = _metric_without(total.control, segment.control)
    ratio = None if rest_test is None or rest_control is None else _divide(rest_test, rest_control)
    expected = None if control is None or ratio is None else control * ratio
    unexpected = None if test is None or expected is None else test - expected
    supports = (_divide(segment.test[0], total.test[0]), _divide(segment.control[0], total.control[0]))
    values = dict(segment.values)
    return {name: values.get(name) for name in dimensions} | {
        "contributors": segment.contributors,
        "metric_test": test,
        "metric_control": control,
        "difference": difference,
        "relative_difference": None if difference is None or control is None else _divide(difference, control),
        "unexpected_difference": unexpected,
        "relative_unexpected_difference": (
            None if unexpected is None or expected is None else _divide(unexpected, expected)
        ),
        "apriori_support": max((support for support in supports if support is not None), default=None),
        "contribution": None if difference is None else abs(difference),
    }


def _metric_without(total: tuple[float, float], part: tuple[float, float]) -> float | None:
    """Return the metric of the rows outside `part`; None for a zero denominator."""
    if total[1] == part[1] == 1.0:  # a plain sum has the denominator 1
        return total[0] - part[0]
    return _divide(total[0] - part[0], total[1] - part[1])


def _divide(a: float, b: float) -> float | None:
    return None if b == 0 else a / b


def _prune(segments: Sequence[Segment]) -> list[Segment]:
    """Omit each segment that has the same sums as a segment with a subset of its values."""
    by_sums: dict[tuple[Any, ...], list[frozenset[tuple[str, Any]]]] = {}
    pruned: list[Segment] = []
    for candidate in sorted(segments, key=lambda segment: len(segment.values)):
        shorter = by_sums.setdefault((candidate.test, candidate.control), [])
        values = frozenset(candidate.values)
        if not any(other < values for other in shorter):
            shorter.append(values)
            pruned.append(candidate)
    return pruned
