"""Summarizes a run: pass rate with its interval, metrics with their coverage, cost and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum
from statistics import median
from typing import Any, Literal, TypeAlias

from bough.evals.score import Score
from bough.evals.statistics import Interval, bootstrap_mean, deviation, mean, pass_at_k, pass_hat_k, wilson
from bough.types import JsonObject

SIDE_FIGURES = ("pass_rate", "time_seconds", "tokens")
"""Figures by which sides are compared."""

RateBy: TypeAlias = Literal["attempts", "assertions", "queries"]
"""How the pass rate of a case is computed: the share of attempts that passed, the mean share of assertions
that passed, or, for a trigger query, 1 if more than half of its attempts were right."""


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """The result of one attempt at a case, stored in its result note.

    Attributes:
        status: `passed`, `failed`, `error` (not caused by the agent) or `skipped` (not run).
        reason: Why the attempt did not pass; empty if it passed.
        conversation: Id of its conversation; None if none was started.
        seconds: Working time of the agent, without waiting.
        judge: Ids of the judge's conversations.
    """

    case: str
    attempt: int = 1
    side: str = ""
    status: str = "skipped"
    reason: str = ""
    scores: dict[str, Score] = field(default_factory=dict[str, Score])
    conversation: str | None = None
    cost_usd: float | None = 0.0
    tokens: int = 0
    judge_cost_usd: float | None = 0.0
    seconds: float = 0.0
    steps: int = 0
    judge: tuple[str, ...] = ()
    error: JsonObject | None = None
    data: JsonObject = field(default_factory=dict[str, Any])

    @property
    def passed(self) -> bool:
        """Whether the attempt passed: every metric with a threshold did."""
        return self.status == "passed"

    @property
    def assertion_rate(self) -> float | None:
        """The share of the judged assertions that passed; 0 for an error, None without judged assertions."""
        if self.status == "error":
            return 0.0
        assertions: list[JsonObject] = self.data.get("assertions") or []
        if not assertions:
            return None
        return sum(bool(assertion["passed"]) for assertion in assertions) / len(assertions)


@dataclass(frozen=True, kw_only=True)
class MetricSummary:
    """One metric over a run.

    Attributes:
        n: Number of attempts with a value.
        of: Number of attempts with the metric; those with a threshold and without a value count as 0.
        threshold: The threshold of all attempts; None if they differ.
        passed: Number of attempts that passed; None without a threshold.
    """

    name: str
    mean: float | None
    median: float | None
    min: float | None
    n: int
    of: int
    threshold: float | None
    passed: int | None

    def as_dict(self) -> JsonObject:
        """Return the metric as JSON, without its name."""
        return {
            "mean": self.mean,
            "median": self.median,
            "min": self.min,
            "n": self.n,
            "of": self.of,
            "threshold": self.threshold,
            "passed": self.passed,
        }


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The figures of a run.

    Attributes:
        pass_rate: Mean of the cases' rates, see `RateBy`; errors and skipped attempts count as not passed.
        repeat: Maximum number of attempts per case.
        pass_at: pass@k by k, for k up to the smallest number of attempts of a case.
        pass_hat: pass^k by k, for the same k.
        not_judged: Statements skipped because the run had no judge.
        judge_errors: Attempts whose judge failed.
        cost_usd: Cost of agent and judge; None if a price is unknown.
    """

    attempts: int
    cases: int
    passed: int
    failed: int
    errors: int
    skipped: int
    pass_rate: float
    interval: Interval
    repeat: int
    pass_at: dict[int, float]
    pass_hat: dict[int, float]
    judge_errors: int
    not_judged: int
    cost_usd: float | None
    seconds: float
    metrics: tuple[MetricSummary, ...]

    def as_dict(self) -> JsonObject:
        """Return the figures as JSON, without metrics."""
        return {
            "attempts": self.attempts,
            "cases": self.cases,
            "passed": self.passed,
            "failed": self.failed,
            "errors": self.errors,
            "skipped": self.skipped,
            "pass_rate": round(self.pass_rate, 6),
            "low": round(self.interval.low, 6),
            "high": round(self.interval.high, 6),
            "repeat": self.repeat,
            "pass_at": {str(k): round(value, 6) for k, value in self.pass_at.items()},
            "pass_hat": {str(k): round(value, 6) for k, value in self.pass_hat.items()},
            "judge_errors": self.judge_errors,
            "not_judged": self.not_judged,
            "cost_usd": self.cost_usd,
            "seconds": round(self.seconds, 6),
        }


def summarize(results: Sequence[AttemptResult], *, not_judged: int = 0, rate_by: RateBy = "attempts") -> RunSummary:
    """Compute the figures of a run. O(attempts).

    Args:
        rate_by: How the pass rate of a case is computed.
    """
    by_case: dict[tuple[str, str], list[AttemptResult]] = {}
    for result in results:
        by_case.setdefault((result.case, result.side), []).append(result)
    counts = [(len(group), sum(result.passed for result in group)) for group in by_case.values()]
    case_rates = [_rate_case(group, rate_by) for group in by_case.values()]
    rates = [rate for rate in case_rates if rate is not None]
    repeat = max((count for count, _ in counts), default=0)
    ks = range(1, min((count for count, _ in counts), default=0) + 1) if repeat > 1 else range(0)
    costs = [cost for result in results for cost in (result.cost_usd, result.judge_cost_usd)]
    return RunSummary(
        attempts=len(results),
        cases=len(by_case),
        passed=sum(result.passed for result in results),
        failed=sum(result.status == "failed" for result in results),
        errors=sum(result.status == "error" for result in results),
        skipped=sum(result.status == "skipped" for result in results),
        pass_rate=mean(rates),
        interval=_interval(rates, 1 if rate_by == "queries" else repeat),
        repeat=repeat,
        pass_at={k: mean([pass_at_k(n, c, k) for n, c in counts]) for k in ks},
        pass_hat={k: mean([pass_hat_k(n, c, k) for n, c in counts]) for k in ks},
        judge_errors=sum(_has_judge_error(result) for result in results),
        not_judged=not_judged,
        cost_usd=None if None in costs else round(sum(cost or 0.0 for cost in costs), 9),
        seconds=sum(result.seconds for result in results),
        metrics=tuple(_summarize_metrics(results)),
    )


def _has_judge_error(result: AttemptResult) -> bool:
    return any(score.error and score.by == "judge" for score in result.scores.values())


def summarize_sides(results: Sequence[AttemptResult], sides: Sequence[str]) -> JsonObject:
    """Return mean and deviation of each side over its attempts, and `delta`: the first side minus the second."""
    figures: JsonObject = {}
    for side in sides:
        group = [result for result in results if result.side == side]
        values = {
            "pass_rate": [rate for result in group if (rate := result.assertion_rate) is not None],
            "time_seconds": [result.seconds for result in group],
            "tokens": [float(result.tokens) for result in group],
        }
        figures[side] = {
            name: {"mean": round(mean(numbers), 6), "stddev": round(deviation(numbers), 6)}
            for name, numbers in values.items()
        }
    first, second = (figures[side] for side in sides)
    return figures | {"delta": {name: round(first[name]["mean"] - second[name]["mean"], 6) for name in SIDE_FIGURES}}


def rate_query(attempts: Sequence[AttemptResult]) -> float:
    """Return the trigger score of a query over all its attempts; attempts without a score count as 0."""
    scores = [None if attempt.status == "error" else attempt.scores.get("trigger_score") for attempt in attempts]
    return mean([0.0 if score is None else float(score.value or 0.0) for score in scores])


def _rate_case(attempts: Sequence[AttemptResult], rate_by: RateBy) -> float | None:
    """Return the pass rate of a case; None if no assertion was judged."""
    match rate_by:
        case "attempts":
            return sum(attempt.passed for attempt in attempts) / len(attempts)
        case "queries":
            return float(rate_query(attempts) > 0.5)
        case "assertions":
            rates = [rate for attempt in attempts if (rate := attempt.assertion_rate) is not None]
            return mean(rates) if rates else None


def _interval(rates: Sequence[float], repeat: int) -> Interval:
    """Return the 95 % interval of the mean over cases.

    Attempts of a case are not independent, so a bootstrap resamples the cases. If all cases have the same rate, its
    interval would have no width, so a score interval is used.
    """
    if repeat > 1 and len(set(rates)) > 1:
        return bootstrap_mean(rates)
    trials = len(rates) * max(repeat, 1)
    return wilson(min(fsum(rates) * max(repeat, 1), trials), trials)


def _summarize_metrics(results: Sequence[AttemptResult]) -> list[MetricSummary]:
    names = dict.fromkeys(name for result in results for name in result.scores)
    return [_summarize_metric(name, results) for name in names]


def _summarize_metric(name: str, results: Sequence[AttemptResult]) -> MetricSummary:
    """Return the figures of one metric over the attempts that have it."""
    scores = [result.scores[name] for result in results if name in result.scores]
    measured = [float(score.value) for score in scores if score.value is not None]
    thresholds = {score.threshold for score in scores}
    decided = [score for score in scores if score.passed is not None]
    # A metric that failed without a value counts as 0: omitting it would raise the mean.
    values = measured + [0.0] * sum(score.value is None for score in decided)
    return MetricSummary(
        name=name,
        mean=round(mean(values), 6) if values else None,
        median=round(median(values), 6) if values else None,
        min=min(values) if values else None,
        n=len(measured),
        of=len(scores),
        threshold=next(iter(thresholds)) if len(thresholds) == 1 else None,
        passed=sum(score.passed is True for score in decided) if decided else None,
    )
