"""Forecasts, anomalies, contributions and clusters over the rows of a table or query."""

# ruff: noqa: S608 - sources are checked, and names are quoted
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from bough.evals.data.cluster import cluster_rows
from bough.evals.data.contribution import MAX_DIMENSIONS, ContributionMetric, Segment, analyze_segments
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
