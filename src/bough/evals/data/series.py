"""Time series by least squares: a trend and a season; deterministic.

Source: BigQuery's AI.FORECAST and ML.DETECT_ANOMALIES for the names of the columns.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from calendar import monthrange
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from bough.evals.data.fault import QueryError

MIN_ROWS = 3
CONFIDENCE = 0.95
_SEASONS = {3600.0: 24, 86_400.0: 7, 604_800.0: 52}
_MONTH_SEASONS = {1: 12, 3: 4}
_DAYS_OF_MONTHS = {1: range(28, 32), 3: range(89, 93), 12: range(365, 367)}


@dataclass(frozen=True)
class TimeAxis:
    """Converts times to numbers of steps and back.

    Attributes:
        start: A datetime, or a number.
        months: Step in months; 0 for a step of fixed length.
        step: Seconds, or the difference of numbers.
        season: Steps of a season; 0 if this step length has no season.
    """

    start: Any
    months: int
    step: float
    season: int
    is_date: bool

    @classmethod
    def of(cls, values: Sequence[Any]) -> TimeAxis:
        """Return the axis for sorted, distinct times in their JSON form.

        Raises:
            QueryError: The values are neither times nor numbers.
        """
        times = [_read_time(value) for value in values]
        if isinstance(times[0], float):
            return cls(times[0], 0, _most_frequent(b - a for a, b in pairwise(times)), 0, False)
        step = _most_frequent((b - a).total_seconds() for a, b in pairwise(times))
        months = next((months for months, lengths in _DAYS_OF_MONTHS.items() if step / 86_400 in lengths), 0)
        season = _MONTH_SEASONS.get(months, 0) if months else _SEASONS.get(step, 0)
        return cls(times[0], months, step, season, len(str(values[0])) == len("2026-01-01"))

    def index_at(self, value: Any) -> float:
        """Return how many steps a time is after the first.

        Raises:
            QueryError: The value is not of the axis's kind, time or number.
        """
        time = _read_time(value)
        if isinstance(time, float) != isinstance(self.start, float):
            raise QueryError("INVALID_ARGUMENT", f"{str(value)[:40]!r} is not a time like the first")
        if self.months:
            return ((time.year - self.start.year) * 12 + time.month - self.start.month) / self.months
        offset = time - self.start
        return (offset if isinstance(offset, float) else offset.total_seconds()) / self.step

    def time_at(self, index: float) -> Any:
        """Return the time at a number of steps, in the form of the input times."""
        if isinstance(self.start, float):
            return self.start + index * self.step
        if self.months:
            year, month = divmod(self.start.year * 12 + self.start.month - 1 + round(index) * self.months, 12)
            day = min(self.start.day, monthrange(year, month + 1)[1])
            time = self.start.replace(year=year, month=month + 1, day=day)
        else:
            time = self.start + timedelta(seconds=index * self.step)
        return time.date().isoformat() if self.is_date else time.isoformat()


def _most_frequent(gaps: Iterable[float]) -> float:
    """Return the most frequent difference; the smallest one on a tie."""
    counts = Counter(gaps)
    return min(counts, key=lambda gap: (-counts[gap], gap))


@dataclass(frozen=True)
class SeriesFit:
    """A trend and a season fitted to one series.

    Attributes:
        index: Steps after the first time, aligned with `values`.
        residuals: Values minus the fit.
        leverage: Influence of each value on its own fit, 0 to 1.
    """

    axis: TimeAxis
    times: tuple[Any, ...]
    index: Any
    values: Any
    coefficients: Any
    inverse: Any
    residuals: Any
    leverage: Any
    freedom: int
    season: int

    @classmethod
    def of(cls, rows: Iterable[tuple[Any, float]]) -> SeriesFit:
        """Fit rows of (time, value); values of one time are averaged.

        Raises:
            QueryError: There are fewer than three times.
        """
        grouped: defaultdict[Any, list[float]] = defaultdict(list)
        for time, value in rows:
            grouped[time].append(float(value))
        if len(grouped) < MIN_ROWS:
            raise QueryError("INVALID_ARGUMENT", f"a series needs {MIN_ROWS} times; there are {len(grouped)}")
        times = tuple(sorted(grouped, key=_read_time))
        axis = TimeAxis.of(times)
        index = np.array([axis.index_at(time) for time in times])
        values = np.array([sum(grouped[time]) / len(grouped[time]) for time in times])
        season = axis.season if axis.season and index[-1] + 1 >= 2 * axis.season else 0
        design = _design(index, season)
        # A seasonal fit needs more values than columns; otherwise every residual would be zero.
        if len(times) - design.shape[1] < 1:
            season, design = 0, _design(index, 0)
        inverse = np.linalg.pinv(design.T @ design)
        coefficients = inverse @ design.T @ values
        # Clipped below 1, since callers divide by 1 - leverage.
        leverage = np.clip(np.einsum("ij,jk,ik->i", design, inverse, design), 0, 1 - 1e-12)
        freedom = len(times) - int(np.linalg.matrix_rank(design))
        residuals = values - design @ coefficients
        residuals[np.abs(residuals) < 1e-9 * max(1.0, float(np.abs(values).max()))] = 0.0  # rounding is not an error
        return cls(axis, times, index, values, coefficients, inverse, residuals, leverage, freedom, season)

    def predict(self, index: Any, confidence: float) -> tuple[Any, Any, Any]:
        """Return (values, lower, upper) at numbers of steps.

        Raises:
            QueryError: There are too few values for an interval.
        """
        if self.freedom < 1:
            raise QueryError("INVALID_ARGUMENT", "the series has too few values for an interval")
        design = _design(np.asarray(index, dtype=float), self.season)
        points = design @ self.coefficients
        spread = np.sqrt(float(self.residuals @ self.residuals) / self.freedom)
        widths = spread * np.sqrt(1 + np.einsum("ij,jk,ik->i", design, self.inverse, design))
        width = float(stats.t.ppf((1 + confidence) / 2, self.freedom)) * widths
        return points, points - width, points + width

    def spread_without(self) -> Any:
        """Return the standard deviation of the fit without each of its values."""
        remaining = float(self.residuals @ self.residuals) - self.residuals**2 / (1 - self.leverage)
        return np.sqrt(np.maximum(remaining, 0.0) / (self.freedom - 1))


def forecast_series(rows: Iterable[tuple[Any, float]], horizon: int) -> list[dict[str, Any]]:
    """Return one row for each of the next `horizon` times, with its interval.

    Raises:
        QueryError: The series is too short.
    """
    fit = SeriesFit.of(rows)
    index = fit.index[-1] + np.arange(1, horizon + 1)
    points, lower, upper = fit.predict(index, CONFIDENCE)
    return [
        {
            "forecast_timestamp": fit.axis.time_at(float(step)),
            "forecast_value": float(points[i]),
            "confidence_level": CONFIDENCE,
            "prediction_interval_lower_bound": float(lower[i]),
            "prediction_interval_upper_bound": float(upper[i]),
            "ai_forecast_status": "",
        }
        for i, step in enumerate(index)
    ]


@dataclass(frozen=True)
class SeriesPoint:
    """A value with its expected interval and its probability of being an anomaly."""

    time: Any
    value: float
    is_anomaly: bool
    lower_bound: float
    upper_bound: float
    anomaly_probability: float


def find_anomalies(rows: Iterable[tuple[Any, float]], threshold: float) -> list[SeriesPoint]:
    """Return every value with its probability of being an anomaly, computed from the fit without that value.

    Raises:
        QueryError: The series is too short.
    """
    fit = SeriesFit.of(rows)
    if fit.freedom < 2:
        raise QueryError("INVALID_ARGUMENT", "the series has too few values to find anomalies in it")
    without = fit.spread_without()
    expected = fit.values - fit.residuals / (1 - fit.leverage)
    width = without / np.sqrt(1 - fit.leverage)
    return _compare(fit.times, fit.values, expected, width, fit.freedom - 1, threshold)


def compare_to_history(
    history: Iterable[tuple[Any, float]], target: Sequence[tuple[Any, float]], threshold: float
) -> list[SeriesPoint]:
    """Return the target values compared with the forecast from their history.

    Raises:
        QueryError: The history is too short.
    """
    fit = SeriesFit.of(history)
    rows = sorted(target, key=lambda row: _read_time(row[0]))
    if not rows:
        return []
    index = np.array([fit.axis.index_at(time) for time, _ in rows])
    points, lower, _ = fit.predict(index, threshold)
    quantile = float(stats.t.ppf((1 + threshold) / 2, fit.freedom))
    width = (points - lower) / quantile if quantile else points * 0
    values = np.array([float(value) for _, value in rows])
    return _compare([time for time, _ in rows], values, points, width, fit.freedom, threshold)


def _compare(
    times: Sequence[Any], values: Any, expected: Any, width: Any, freedom: int, threshold: float
) -> list[SeriesPoint]:
    bound = float(stats.t.ppf((1 + threshold) / 2, freedom))
    points: list[SeriesPoint] = []
    for i, time in enumerate(times):
        distance, spread = abs(float(values[i] - expected[i])), float(width[i])
        if spread > 0:
            probability = 1 - 2 * float(stats.t.sf(distance / spread, freedom))
        else:
            probability = 1.0 if distance > 1e-9 * max(1.0, abs(float(values[i]))) else 0.0
        lower, upper = float(expected[i]) - bound * spread, float(expected[i]) + bound * spread
        points.append(SeriesPoint(time, float(values[i]), probability > threshold, lower, upper, probability))
    return points


def _design(index: Any, season: int) -> Any:
    """Return the design matrix: a constant, the step number, and an indicator for all but one season position."""
    columns = [np.ones(len(index)), index]
    if season:
        positions = np.mod(np.rint(index), season)
        columns += [(positions == position).astype(float) for position in range(1, season)]
    return np.column_stack(columns)


def _read_time(value: Any) -> Any:
    """Return a number or a datetime."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise QueryError("INVALID_ARGUMENT", f"{str(value)[:40]!r} is neither a time nor a number") from None
