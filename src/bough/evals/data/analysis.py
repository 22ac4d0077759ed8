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


def check_contribution(
    metric: str, dimensions: Sequence[str], *, max_insights: int, pruning: str
) -> ContributionMetric:
    """Parse the metric and check the other arguments of a contribution analysis.

    Raises:
        QueryError: The metric, the dimensions or an option is invalid.
    """
    parsed = ContributionMetric.parse(metric)
    has_duplicates = len(set(dimensions)) < len(dimensions)
    if has_duplicates or not 1 <= len(dimensions) <= MAX_DIMENSIONS:
        raise QueryError("INVALID_ARGUMENT", f"give 1 to {MAX_DIMENSIONS} different dimension_id_cols")
    if pruning not in ("PRUNE_REDUNDANT_INSIGHTS", "NO_PRUNING"):
        raise QueryError("INVALID_ARGUMENT", "pruning_method is PRUNE_REDUNDANT_INSIGHTS or NO_PRUNING")
    if max_insights < 1:
        raise QueryError("INVALID_ARGUMENT", f"top_k_insights is {max_insights}: give 1 or more")
    return parsed


def check_features(features: Sequence[str]) -> None:
    """Raise `QueryError` if there are no feature columns."""
    if not features:
        raise QueryError("INVALID_ARGUMENT", "feature_cols is empty: name columns of numbers")


class LocalWarehouse(DataSession, Warehouse):
    """A session whose analyses are computed in this process."""

    @override
    def forecast(
        self, project: str, history: str, time_column: str, value_column: str, horizon: int, id_columns: Sequence[str]
    ) -> JsonObject:
        check_horizon(horizon)
        from bough.evals.data.series import forecast_series

        series = _read_series(self, project, history, time_column, value_column, id_columns)
        rows: list[JsonObject] = []
        for key, points in series.items():
            rows += [dict(zip(id_columns, key, strict=True)) | row for row in forecast_series(points, horizon)]
        return _limit_rows(self, rows)

    @override
    def detect_anomalies(
        self,
        project: str,
        data: tuple[str, str | None],
        time_column: str,
        value_column: str,
        id_columns: Sequence[str],
        *,
        horizon: int,
        threshold: float,
    ) -> JsonObject:
        """Return the result of the tool `detect_anomalies`; a truncated result has the most probable anomalies."""
        check_probability(threshold)
        from bough.evals.data.series import compare_to_history, find_anomalies

        history, target = data
        series = _read_series(self, project, history, time_column, value_column, id_columns)
        target_series = (
            None if target is None else _read_series(self, project, target, time_column, value_column, id_columns)
        )
        rows: list[JsonObject] = []
        for key, points in series.items():
            if target_series is None:
                points_with_bounds = find_anomalies(points, threshold)
            else:
                points_with_bounds = compare_to_history(points, target_series.get(key, [])[:horizon], threshold)
            for point in points_with_bounds:
                rows.append(
                    dict(zip(id_columns, key, strict=True))
                    | {
                        time_column: point.time,
                        value_column: point.value,
                        "is_anomaly": point.is_anomaly,
                        "lower_bound": point.lower_bound,
                        "upper_bound": point.upper_bound,
                        "anomaly_probability": point.anomaly_probability,
                    }
                )
        # Sorted only if the result will be truncated, so that a complete result stays in time order.
        if len(rows) > self.max_rows:
            rows.sort(key=lambda row: -row["anomaly_probability"])
        return _limit_rows(self, rows)

    @override
    def analyze_contribution(
        self,
        project: str,
        data: str,
        metric: str,
        dimensions: Sequence[str],
        is_test: str,
        *,
        max_insights: int,
        pruning: str,
    ) -> JsonObject:
        """Return the result of the tool `analyze_contribution`; the database computes all sums."""
        parsed = check_contribution(metric, dimensions, max_insights=max_insights, pruning=pruning)
        columns = [*dimensions, is_test, parsed.numerator, *([parsed.denominator] if parsed.denominator else [])]
        source = self.source(project, data, columns)
        all_segments = _sum_segments(self, source, parsed, dimensions, is_test)
        total = next((segment for segment in all_segments if not segment.values), None)
        if total is None:
            return {"status": "SUCCESS", "rows": []}
        segments = [segment for segment in all_segments if segment.values]
        prune = pruning == "PRUNE_REDUNDANT_INSIGHTS"
        rows = analyze_segments(total, segments, dimensions, max_rows=max_insights, prune=prune)
        return _limit_rows(self, rows)

    @override
    def cluster_data(
        self, project: str, data: str, features: Sequence[str], clusters: int, id_columns: Sequence[str]
    ) -> JsonObject:
        """Return the result of the tool `cluster_data`; rows with a null feature are omitted."""
        check_features(features)
        source = self.source(project, data, [*features, *id_columns])
        columns = ", ".join(quote_column(name) for name in [*id_columns, *features])
        # k-means cannot process nulls, so the database filters rows without a value for every feature.
        has_all_features = " and ".join(f"{quote_column(feature)} is not null" for feature in features)
        records = self.analyse(f"select {columns} from ({source}) as q where {has_all_features} order by all").rows
        values = [_read_numbers(row[len(id_columns) :], features) for row in records]
        clustering = cluster_rows(features, values, clusters)
        rows = [
            # The record begins with the id columns; zip stops before its features.
            dict(zip(id_columns, record, strict=False)) | assignment
            for record, assignment in zip(records, clustering["rows"], strict=True)
        ]
        result = _limit_rows(self, rows)
        return {
            "status": "SUCCESS",
            "centroids": clustering["centroids"],
            **result,
            "evaluation": clustering["evaluation"],
        }


def _sum_segments(
    session: DataSession, source: str, metric: ContributionMetric, dimensions: Sequence[str], is_test: str
) -> list[Segment]:
    """Return a segment for each combination of dimension values, and one without values for all rows."""
    columns = [quote_column(dimension) for dimension in dimensions]
    is_test_row = f"coalesce(try_cast({quote_column(is_test)} as boolean), false)"
    numerator = f"coalesce(sum({quote_column(metric.numerator)}) filter (where {{}}), 0)::double"
    if metric.denominator is None:
        denominator = "1.0::double"
    elif metric.distinct:
        denominator = f"count(distinct {quote_column(metric.denominator)}) filter (where {{}})::double"
    else:
        denominator = f"coalesce(sum({quote_column(metric.denominator)}) filter (where {{}}), 0)::double"
    row_filters = (is_test_row, f"not {is_test_row}")
    sums = [template.format(row_filter) for row_filter in row_filters for template in (numerator, denominator)]
    grouping_flags = [f"grouping({column})" for column in columns]
    selected = ", ".join([*columns, *grouping_flags, *sums])
    result = session.analyse(f"select {selected} from ({source}) as q group by cube ({', '.join(columns)})")
    dimension_count = len(columns)
    segments: list[Segment] = []
    for row in result.rows:
        # grouping() is 1 for a column that is summed over, whose null must not look like a null of the data.
        is_summed_over = row[dimension_count : 2 * dimension_count]
        values = tuple((name, row[i]) for i, name in enumerate(dimensions) if not is_summed_over[i])
        test_numerator, test_denominator, control_numerator, control_denominator = row[2 * dimension_count :]
        segments.append(Segment(values, (test_numerator, test_denominator), (control_numerator, control_denominator)))
    return segments


def _read_series(
    session: DataSession, project: str, data: str, time_column: str, value_column: str, id_columns: Sequence[str]
) -> dict[tuple[Any, ...], list[tuple[Any, float]]]:
    """Return the (time, value) rows of each series in time order, by the values of its id columns; omits nulls."""
    source = session.source(project, data, [*id_columns, time_column, value_column])
    columns = ", ".join(quote_column(name) for name in [*id_columns, time_column, value_column])
    result = session.analyse(f"select {columns} from ({source}) as q order by all")
    series: defaultdict[tuple[Any, ...], list[tuple[Any, float]]] = defaultdict(list)
    for row in result.rows:
        *key, time, value = row
        if time is not None and value is not None:
            (number,) = _read_numbers([value], [value_column])
            series[tuple(key)].append((time, number))
    if not series:
        raise QueryError("INVALID_ARGUMENT", "the table or query has no rows with a time and a value")
    return dict(series)


def _read_numbers(values: Sequence[Any], columns: Sequence[str]) -> list[float]:
    """Convert the values of columns to floats; the query process sends decimals as text."""
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        raise QueryError("INVALID_ARGUMENT", f"{', '.join(columns)} must be numbers") from None


def _limit_rows(session: DataSession, rows: list[JsonObject]) -> JsonObject:
    """Return a tool's result with the rows up to the session's limit."""
    result: JsonObject = {"status": "SUCCESS", "rows": rows[: session.max_rows]}
    return result | ({"result_is_likely_truncated": True} if len(rows) > session.max_rows else {})


MAX_DIMENSIONS = 5
_NAME = r"([A-Za-z_]\w*)"
_METRIC = re.compile(
    rf"\s*SUM\(\s*{_NAME}\s*\)\s*(?:/\s*(?:SUM\(\s*{_NAME}\s*\)|COUNT\(\s*DISTINCT\s+{_NAME}\s*\))\s*)?", re.IGNORECASE
)


@dataclass(frozen=True)
class ContributionMetric:
    """The columns of `SUM(a)`, `SUM(a)/SUM(b)` or `SUM(a)/COUNT(DISTINCT c)`.

    Attributes:
        denominator: None for a plain sum.
        distinct: Whether the denominator counts distinct values.
    """

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
    """The rows with a combination of dimension values.

    Attributes:
        values: (dimension, value) pairs; empty for all rows.
        test: Sums of the test rows as (numerator, denominator).
        control: Sums of the control rows as (numerator, denominator).
    """

    values: tuple[tuple[str, Any], ...]
    test: tuple[float, float]
    control: tuple[float, float]

    @property
    def contributors(self) -> list[str]:
        """`name=value` of each dimension, sorted."""
        return sorted(f"{name}={value}" for name, value in self.values)


def analyze_segments(
    total: Segment, segments: Sequence[Segment], dimensions: Sequence[str], *, max_rows: int, prune: bool
) -> list[dict[str, Any]]:
    """Return the segments as rows of the tool's result, sorted by support, then contribution, then name.

    Args:
        total: The segment of all rows.
        prune: Omit a segment whose metrics equal those of a segment that contains it.
    """
    rows = [
        _describe_segment(segment, total, dimensions)
        for segment in (_remove_redundant(segments) if prune else segments)
    ]
    rows.sort(key=lambda row: (-(row["apriori_support"] or 0), -(row["contribution"] or 0), row["contributors"]))
    return rows[:max_rows]


def _describe_segment(segment: Segment, total: Segment, dimensions: Sequence[str]) -> dict[str, Any]:
    """Return a segment as a row; a figure whose denominator is zero is None.

    The expected test value is the control value, scaled by the change of the metric outside the segment.
    """
    test, control = _divide(*segment.test), _divide(*segment.control)
    difference = None if test is None or control is None else test - control
    outside_test = _metric_without(total.test, segment.test)
    outside_control = _metric_without(total.control, segment.control)
    ratio = None if outside_test is None or outside_control is None else _divide(outside_test, outside_control)
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


def _metric_without(total: tuple[float, float], segment: tuple[float, float]) -> float | None:
    """Return the metric of the rows outside a segment; None for a zero denominator."""
    if total[1] == segment[1] == 1.0:  # a plain sum has the denominator 1
        return total[0] - segment[0]
    return _divide(total[0] - segment[0], total[1] - segment[1])


def _divide(a: float, b: float) -> float | None:
    return None if b == 0 else a / b


def _remove_redundant(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments without those whose sums equal the sums of a segment with a subset of their values."""
    values_by_sums: dict[tuple[Any, ...], list[frozenset[tuple[str, Any]]]] = {}
    remaining_segments: list[Segment] = []
    for candidate in sorted(segments, key=lambda segment: len(segment.values)):
        values_with_same_sums = values_by_sums.setdefault((candidate.test, candidate.control), [])
        values = frozenset(candidate.values)
        if not any(other < values for other in values_with_same_sums):
            values_with_same_sums.append(values)
            remaining_segments.append(candidate)
    return remaining_segments
