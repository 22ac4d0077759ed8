"""Compares two runs by their common cases, with intervals and a significance test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bough.errors import InvalidInput
from bough.evals.run.folder import RunFolder
from bough.evals.run.provenance import find_differences
from bough.evals.run.read import read_run
from bough.evals.run.summary import AttemptResult
from bough.evals.statistics import Interval, bootstrap_mean, mean, newcombe_paired, sign_flip
from bough.types import JsonObject


@dataclass(frozen=True, kw_only=True)
class Paired:
    """One figure of both runs, paired by case.

    Attributes:
        a: Mean of the first run.
        b: Mean of the second run.
        n: Number of cases with the figure in both runs.
        difference: Mean of the differences, second run minus first.
        p: Two-sided p-value of the sign-flip permutation test.
    """

    name: str
    a: float
    b: float
    n: int
    difference: float
    interval: Interval
    p: float

    def as_dict(self) -> JsonObject:
        """Return the figure as JSON, without its name."""
        return {
            "a": self.a,
            "b": self.b,
            "n": self.n,
            "difference": self.difference,
            "low": self.interval.low,
            "high": self.interval.high,
            "p": self.p,
        }


@dataclass(frozen=True, kw_only=True)
class ChangedCase:
    """A case whose share of passed attempts differs.

    Attributes:
        reason: Why an attempt of the second run did not pass; empty if all passed.
    """

    case: str
    a: float
    b: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Comparison of two runs on the cases with equal content in both.

    Attributes:
        a: Id of the first run.
        b: Id of the second run.
        cases: Number of compared cases.
        left_out: Number of cases that only one run has, or whose content changed.
        differs_in: Fields and skills of their configurations that differ.
        figures: `pass`, `cost_usd`, `seconds`, `tokens`; a figure without a known value in both runs is omitted.
        worse: Cases with fewer passes in the second run, the largest difference first.
        better: Cases with more passes in the second run, the largest difference first.
    """

    a: str
    b: str
    cases: int
    left_out: int
    differs_in: tuple[str, ...]
    figures: tuple[Paired, ...]
    worse: tuple[ChangedCase, ...]
    better: tuple[ChangedCase, ...]

    def as_dict(self) -> JsonObject:
        """Return the comparison as JSON."""
        return {
            "a": self.a,
            "b": self.b,
            "cases": self.cases,
            "left_out": self.left_out,
            "differs_in": list(self.differs_in),
            "figures": {figure.name: figure.as_dict() for figure in self.figures},
            "worse": [vars(case) for case in self.worse],
            "better": [vars(case) for case in self.better],
        }


_FIGURES: Sequence[tuple[str, Callable[[AttemptResult], float | None]]] = (
    ("pass", lambda result: float(result.passed)),
    ("cost_usd", lambda result: result.cost_usd),
    ("seconds", lambda result: result.seconds),
    ("tokens", lambda result: float(result.tokens)),
)


async def compare_runs(a: RunFolder, b: RunFolder) -> RunComparison:
    """Return the comparison of two runs, computed from their logs.

    Raises:
        InvalidInput: The runs have no common case.
    """
    first_run, _ = await read_run(a)
    second_run, _ = await read_run(b)
    records = a.read_record(), b.read_record()
    digests = [{case["id"]: case["sha256"] for case in record["cases"]} for record in records]
    common = [id for id in digests[0] if digests[1].get(id) == digests[0][id]]
    if not common:
        raise InvalidInput(f"{a.run} and {b.run} have no case in common", hint="compare runs of the same set")
    attempts = [
        _group_by_case(_select_first_side(run.cases, record), common)
        for run, record in zip((first_run, second_run), records, strict=True)
    ]
    rates = [
        {id: mean([float(result.passed) for result in results]) for id, results in by_case.items()}
        for by_case in attempts
    ]
    changed = [
        ChangedCase(case=id, a=rates[0][id], b=rates[1][id], reason=_find_reason(attempts[1][id]))
        for id in common
        if rates[0][id] != rates[1][id]
    ]
    changed.sort(key=lambda case: case.b - case.a)
    figures = [_pair_figure(name, read_figure, common, *attempts) for name, read_figure in _FIGURES]
    return RunComparison(
        a=a.run,
        b=b.run,
        cases=len(common),
        left_out=len(set(digests[0]) | set(digests[1])) - len(common),
        differs_in=tuple(find_differences(*records)),
        figures=tuple(figure for figure in figures if figure is not None),
        worse=tuple(case for case in changed if case.b < case.a),
        better=tuple(case for case in reversed(changed) if case.b > case.a),
    )


def _select_first_side(results: Sequence[AttemptResult], record: JsonObject) -> Sequence[AttemptResult]:
    """Return the attempts of the first side, which decides the result of a run; the other side is the baseline."""
    sides: list[str] = record.get("sides") or [""]
    return [result for result in results if result.side == sides[0]]


def _group_by_case(results: Sequence[AttemptResult], cases: Sequence[str]) -> dict[str, list[AttemptResult]]:
    by_case: dict[str, list[AttemptResult]] = {id: [] for id in cases}
    for result in results:
        if result.case in by_case:
            by_case[result.case].append(result)
    return by_case


def _pair_figure(
    name: str,
    read_figure: Callable[[AttemptResult], float | None],
    cases: Sequence[str],
    a: dict[str, list[AttemptResult]],
    b: dict[str, list[AttemptResult]],
) -> Paired | None:
    """Return one figure of two runs; None if no case has a known value in both runs.

    Args:
        a: Attempts of the first run by case.
        b: Attempts of the second run by case.
    """
    pairs: list[tuple[float, float]] = []
    for id in cases:
        first = [read_figure(result) for result in a[id]]
        second = [read_figure(result) for result in b[id]]
        if first and second and None not in first and None not in second:
            pairs.append((mean([value or 0.0 for value in first]), mean([value or 0.0 for value in second])))
    if not pairs:
        return None
    differences = [second - first for first, second in pairs]
    return Paired(
        name=name,
        a=round(mean([first for first, _ in pairs]), 9),
        b=round(mean([second for _, second in pairs]), 9),
        n=len(pairs),
        difference=round(mean(differences), 9),
        interval=_interval(name, pairs),
        p=sign_flip(differences),
    )


def _interval(name: str, pairs: Sequence[tuple[float, float]]) -> Interval:
    """Return the 95 % interval of the mean difference over cases.

    A bootstrap resamples the cases, since costs, times and tokens have no upper limit and attempts at a case are not
    independent. For pass rates of only 0 and 1, or with equal differences, a score interval is used, because a
    bootstrap interval could have no width.
    """
    first = [a for a, _ in pairs]
    second = [b for _, b in pairs]
    differences = [b - a for a, b in pairs]
    has_equal_differences = len(set(differences)) == 1
    has_only_0_and_1 = all(value in (0.0, 1.0) for value in first + second)
    if name == "pass" and (has_equal_differences or has_only_0_and_1):
        return newcombe_paired(first, second)
    return bootstrap_mean(differences)


def _find_reason(attempts: Sequence[AttemptResult]) -> str:
    return next((attempt.reason for attempt in attempts if attempt.reason), "")
