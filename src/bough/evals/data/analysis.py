"""Forecasts, anomalies, contributions and clusters over the rows of a table or query."""

# ruff: noqa: S608 - sources are checked, and names are quoted

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from bough.evals.data.cluster import cluster_rows
from bough.evals.data.fault import QueryError
from bough.evals.data.session import DataSession, quote_column
from bough.evals.data.warehouse import Warehouse
from bough.types import JsonObject

MAX_HORIZON = 10_000


def check_horizon(horizon: int) -> None:
    """Raise `QueryError` if the number of steps is out of range."""
    if not 1 <= horizon <= MAX_HORIZON:
        raise QueryError("INVALID_ARGUMENT", f"horizon is {horizon}: give 1 to {MAX_HORIZON}")


def check_probability(threshold: float) -> None:
    """Raise `QueryError` if the threshold is not between 0 and 1."""
    if not 0 < threshold < 1:
        raise QueryError("INVALID_ARGUMENT", f"anomaly_prob_threshold is {threshold}: give a number between 0 and 1")


def check_contribution(metric: str, dimensions: Sequence[str], *, top: int, pruning: str) -> ContributionMetric:
    """Parse the metric and check the other arguments of a contribution analysis.

    Raises:
        QueryError: The metric, the dimensions or an option is invalid.
    """
    parsed = ContributionMetric.parse(metric)
    if not 1 <= len(set(dimensions)) == len(dimensions) <= MAX_DIMENSIONS:
        raise QueryError("INVALID_ARGUMENT", f"give 1 to {MAX_DIMENSIONS} different dimension_id_cols")
    if pruning not in ("PRUNE_REDUNDANT_INSIGHTS", "NO_PRUNING"):
        raise QueryError("INVALID_ARGUMENT", "pruning_method is PRUNE_REDUNDANT_INSIGHTS or NO_PRUNING")
    if top < 1:
        raise QueryError("INVALID_ARGUMENT", f"top_k_insights is {top}: give 1 or more")
    return parsed


def check_features(features: Sequence[str]) -> None:
    """Raise `QueryError` if there are no feature columns."""
    if not features:
        raise QueryError("INVALID_ARGUMENT", "feature_cols is empty: name columns of numbers")


class LocalWarehouse(DataSession, Warehouse):
    """A session whose analyses are computed in this process."""

    @override
    def forecast(
        self, project: str, history: str, time: str, value: str, horizon: int, ids: Sequence[str]
    ) -> JsonObject:
        check_horizon(horizon)
        from bough.evals.data.series import forecast_series

        series = _read_series(self, project, history, time, value, ids)
        rows: list[JsonObject] = []
        for key, points in series.items():
            rows += [dict(zip(ids, key, strict=True)) | row for row in forecast_series(points, horizon)]
        return _limit(self, rows)

    @override
    def detect_anomalies(
        self,
        project: str,
        data: tuple[str, str | None],
        time: str,
        value: str,
        ids: Sequence[str],
        *,
        horizon: int,
        threshold: float,
    ) -> JsonObject:
        """Return the answer of `detect_anomalies`; a truncated answer keeps the most probable anomalies."""
        check_probability(threshold)
        from bough.evals.data.series import compare_to_history, find_anomalies

        history, target = data
        series = _read_series(self, project, history, time, value, ids)
        compared = None if target is None else _read_series(self, project, target, time, value, ids)
        rows: list[JsonObject] = []
        for key, points in series.items():
            if compared is None:
                points_found = find_anomalies(points, threshold)
            else:
                points_found = compare_to_history(points, compared.get(key, [])[:horizon], threshold)
            for point in points_found:
                rows.append(
                    dict(zip(ids, key, strict=True))
                    | {
                        time: point.time,
                        value: point.value,
                        "is_anomaly": point.is_anomaly,
                        "lower_bound": point.lower_bound,
                        "upper_bound": point.upper_bound,
                        "anomaly_probability": point.anomaly_probability,
                    }
                )
        # Sorted only when rows will be cut: a complete answer stays in time order.
        if len(rows) > self.max_rows:
            rows.sort(key=lambda row: -row["anomaly_probability"])
        return _limit(self, rows)

    @override
    def analyze_contribution(
        self,
        project: str,
        data: str,
        metric: str,
        dimensions: Sequence[str],
        is_test: str,
        *,
        top: int,
        pruning: str,
    ) -> JsonObject:
        """Return the answer of `analyze_contribution`; the database computes all sums."""
        parsed = check_contribution(metric, dimensions, top=top, pruning=pruning)
        columns = [*dimensions, is_test, parsed.numerator, *([parsed.denominator] if parsed.denominator else [])]
        source = self.source(project, data, columns)
        segments = _sum_segments(self, source, parsed, dimensions, is_test)
        total = next((segment for segment in segments if not segment.values), None)
        if total is None:
            return {"status": "SUCCESS", "rows": []}
        parts = [segment for segment in segments if segment.values]
        rows = analyze_segments(total, parts, dimensions, top=top, prune=pruning == "PRUNE_REDUNDANT_INSIGHTS")
        return _limit(self, rows)

    @override
    def cluster_data(
        self, project: str, data: str, features: Sequence[str], clusters: int, ids: Sequence[str]
    ) -> JsonObject:
        """Return the answer of `cluster_data`; rows with a null feature are omitted."""
        check_features(features)
        source = self.source(project, data, [*features, *ids])
        columns = ", ".join(quote_column(name) for name in [*ids, *features])
        # k-means takes no nulls, so rows without a value for every feature are filtered by the database.
        present = " and ".join(f"{quote_column(feature)} is not null" for feature in features)
        records = self.analyse(f"select {columns} from ({source}) as q where {present} order by all").rows
        values = [_numbers(row[len(ids) :], features) for row in records]
        answer = cluster_rows(features, values, clusters)
        rows = [dict(zip(ids, row, strict=False)) | label for row, label in zip(records, answer["rows"], strict=True)]
        limited = _limit(self, rows)
        return {"status": "SUCCESS", "centroids": answer["centroids"]} | limited | {"evaluation": answer["evaluation"]}


def _sum_segments(
    session: DataSession, source: str, metric: ContributionMetric, dimensions: Sequence[str], is_test: str
) -> list[Segment]:
    """Return the sums of every combination of dimension values, and of all rows (a segment without values)."""
    columns = [quote_column(dimension) for dimension in dimensions]
    test = f"coalesce(try_cast({quote_column(is_test)} as boolean), false)"
    numerator = f"coalesce(sum({quote_column(metric.numerator)}) filter (where {{}}), 0)::double"
    below = None if metric.denominator is None else quote_column(metric.denominator)
    if below is None:
        denominator = "1.0::double"
    elif metric.distinct:
        denominator = f"count(distinct {below}) filter (where {{}})::double"
    else:
        denominator = f"coalesce(sum({below}) filter (where {{}}), 0)::double"
    sums = [part.format(side) for side in (test, f"not {test}") for part in (numerator, denominator)]
    groups = [f"grouping({column})" for column in columns]
    result = session.analyse(
        f"select {', '.join([*columns, *groups, *sums])} from ({source}) as q group by cube ({', '.join(columns)})"
    )
    width = len(columns)
    segments: list[Segment] = []
    for row in result.rows:
        # grouping() is 1 for a column summed over; without it a null value would look like a total.
        grouped = row[width : 2 * width]
        values = tuple((name, row[i]) for i, name in enumerate(dimensions) if not grouped[i])
        a, b, c, d = row[2 * width :]
        segments.append(Segment(values, (a, b), (c, d)))
    return segments


def _read_series(
    session: DataSession, project: str, data: str, time: str, value: str, ids: Sequence[str]
) -> dict[tuple[Any, ...], list[tuple[Any, float]]]:
    """Return (time, value) rows by series, in time order."""
    source = session.source(project, data, [*ids, time, value])
    columns = ", ".join(quote_column(name) for name in [*ids, time, value])
    result = session.analyse(f"select {columns} from ({source}) as q order by all")
    series: defaultdict[tuple[Any, ...], list[tuple[Any, float]]] = defaultdict(list)
    for row in result.rows:
        if row[-1] is not None and row[-2] is not None:
            series[tuple(row[: len(ids)])].append((row[-2], _numbers(row[-1:], [value])[0]))
    if not series:
        raise QueryError("INVALID_ARGUMENT", "there are no rows")
    return dict(series)


def _numbers(row: Sequence[Any], names: Sequence[str]) -> list[float]:
    """Convert values to floats; decimals arrive as text."""
    try:
        return [float(value) for value in row]
    except (TypeError, ValueError):
        raise QueryError("INVALID_ARGUMENT", f"{', '.join(names)} must be numbers") from None


def _limit(session: DataSession, rows: list[JsonObject]) -> JsonObject:
    answer: JsonObject = {"status": "SUCCESS", "rows": rows[: session.max_rows]}
    return answer | ({"result_is_likely_truncated": True} if len(rows) > session.max_rows else {})


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
