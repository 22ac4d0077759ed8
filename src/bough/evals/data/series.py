"""Fits a trend and a season to a time series by least squares; deterministic.

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
"""Steps of a season by the seconds of a step."""

_MONTH_SEASONS = {1: 12, 3: 4}
"""Steps of a season by the months of a step."""

_DAYS_OF_MONTHS = {1: range(28, 32), 3: range(89, 93), 12: range(365, 367)}
"""Possible days of a step by its months."""


@dataclass(frozen=True)
class TimeAxis:
    """Converts times to numbers of steps after the first time, and back.

    Attributes:
        start: The first time: a datetime, or a number.
        months: Length of a step in months; 0 for a step of fixed length.
        step: Length of a step in seconds, or the difference of two numbers.
        season: Number of steps of a season; 0 if this step length has no season.
        is_date: Whether the times are dates without a time of day.
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
            gap = _most_frequent(later - earlier for earlier, later in pairwise(times))
            return cls(times[0], 0, gap, 0, False)
        step = _most_frequent((later - earlier).total_seconds() for earlier, later in pairwise(times))
        months = next((months for months, lengths in _DAYS_OF_MONTHS.items() if step / 86_400 in lengths), 0)
        season = _MONTH_SEASONS.get(months, 0) if months else _SEASONS.get(step, 0)
        is_date = len(str(values[0])) == len("2026-01-01")
        return cls(times[0], months, step, season, is_date)

    def index_at(self, value: Any) -> float:
        """Return the number of steps from the first time to a time.

        Raises:
            QueryError: The value is a number and the first time is not, or the reverse.
        """
        time = _read_time(value)
        if isinstance(time, float) != isinstance(self.start, float):
            raise QueryError("INVALID_ARGUMENT", f"{str(value)[:40]!r} and the first time are not of the same type")
        if self.months:
            return ((time.year - self.start.year) * 12 + time.month - self.start.month) / self.months
        offset = time - self.start
        return (offset if isinstance(offset, float) else offset.total_seconds()) / self.step

    def time_at(self, index: float) -> Any:
        """Return the time at a number of steps after the first, in the form of the input times."""
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
    """Return the most frequent difference; on a tie, the smallest."""
    counts = Counter(gaps)
    return min(counts, key=lambda gap: (-counts[gap], gap))


@dataclass(frozen=True)
class SeriesFit:
    """A trend and a season fitted to one series.

    Attributes:
        index: Steps after the first time, aligned with `values`.
        inverse: Inverse of the normal matrix, for the width of intervals.
        residuals: Values minus fitted values.
        leverage: Influence of each value on its fitted value, 0 to 1.
        freedom: Degrees of freedom.
        season: Number of steps of the fitted season; 0 without one.
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
        """Return the fit of rows of (time, value); values of the same time are averaged.

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
        design = _design_matrix(index, season)
        # A seasonal fit needs more values than columns, or every residual would be zero.
        if len(times) - design.shape[1] < 1:
            season, design = 0, _design_matrix(index, 0)
        inverse = np.linalg.pinv(design.T @ design)
        coefficients = inverse @ design.T @ values
        # Clipped below 1, since callers divide by 1 - leverage.
        leverage = np.clip(np.einsum("ij,jk,ik->i", design, inverse, design), 0, 1 - 1e-12)
        freedom = len(times) - int(np.linalg.matrix_rank(design))
        residuals = values - design @ coefficients
        residuals[np.abs(residuals) < 1e-9 * max(1.0, float(np.abs(values).max()))] = 0.0  # differences by rounding
        return cls(axis, times, index, values, coefficients, inverse, residuals, leverage, freedom, season)

    def predict(self, index: Any, confidence: float) -> tuple[Any, Any, Any]:
        """Return (values, lower bounds, upper bounds) at numbers of steps.

        Raises:
            QueryError: There are too few values for an interval.
        """
        if self.freedom < 1:
            raise QueryError("INVALID_ARGUMENT", "the series has too few values for an interval")
        design = _design_matrix(np.asarray(index, dtype=float), self.season)
        points = design @ self.coefficients
        spread = np.sqrt(float(self.residuals @ self.residuals) / self.freedom)
        standard_errors = spread * np.sqrt(1 + np.einsum("ij,jk,ik->i", design, self.inverse, design))
        half_widths = float(stats.t.ppf((1 + confidence) / 2, self.freedom)) * standard_errors
        return points, points - half_widths, points + half_widths

    def spreads_without_value(self) -> Any:
        """Return, for each value, the standard deviation of the residuals of a fit without that value."""
        squared_sums = float(self.residuals @ self.residuals) - self.residuals**2 / (1 - self.leverage)
        return np.sqrt(np.maximum(squared_sums, 0.0) / (self.freedom - 1))


def forecast_series(rows: Iterable[tuple[Any, float]], horizon: int) -> list[dict[str, Any]]:
    """Return a forecast row, with its interval, for each of the `horizon` time steps after the series.

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
    """A value with the interval it is expected in, and its probability of being an anomaly."""

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
        raise QueryError("INVALID_ARGUMENT", "the series has too few values to find anomalies")
    spreads = fit.spreads_without_value()
    expected = fit.values - fit.residuals / (1 - fit.leverage)
    standard_errors = spreads / np.sqrt(1 - fit.leverage)
    return _compare(fit.times, fit.values, expected, standard_errors, fit.freedom - 1, threshold)


def compare_to_history(
    history: Iterable[tuple[Any, float]], target: Sequence[tuple[Any, float]], threshold: float
) -> list[SeriesPoint]:
    """Return the target values, compared with the forecast from their history, in time order.

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
    standard_errors = (points - lower) / quantile if quantile else points * 0
    values = np.array([float(value) for _, value in rows])
    return _compare([time for time, _ in rows], values, points, standard_errors, fit.freedom, threshold)


def _compare(
    times: Sequence[Any], values: Any, expected: Any, standard_errors: Any, freedom: int, threshold: float
) -> list[SeriesPoint]:
    """Return the values with their probabilities of being anomalies; above the threshold, they are anomalies."""
    quantile = float(stats.t.ppf((1 + threshold) / 2, freedom))
    points: list[SeriesPoint] = []
    for i, time in enumerate(times):
        distance = abs(float(values[i] - expected[i]))
        standard_error = float(standard_errors[i])
        if standard_error > 0:
            probability = 1 - 2 * float(stats.t.sf(distance / standard_error, freedom))
        else:
            probability = 1.0 if distance > 1e-9 * max(1.0, abs(float(values[i]))) else 0.0
        lower = float(expected[i]) - quantile * standard_error
        upper = float(expected[i]) + quantile * standard_error
        points.append(SeriesPoint(time, float(values[i]), probability > threshold, lower, upper, probability))
    return points


def _design_matrix(index: Any, season: int) -> Any:
    """Return the design matrix: a constant, the step number, and an indicator for all but one season position."""
    columns = [np.ones(len(index)), index]
    if season:
        positions = np.mod(np.rint(index), season)
        columns += [(positions == position).astype(float) for position in range(1, season)]
    return np.column_stack(columns)


def _read_time(value: Any) -> Any:
    """Return a number as a float, or a text as a datetime."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        raise QueryError("INVALID_ARGUMENT", f"{str(value)[:40]!r} is neither a time nor a number") from None
