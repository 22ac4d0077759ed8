"""The statistics of evals: intervals, pass@k, a paired test, agreement. Deterministic: all seeds are 0.

Source: Wilson 1927 (score interval); Chen et al. 2021, "Evaluating Large Language Models Trained on Code" (pass@k);
Yao et al. 2024, tau-bench (pass^k); Cohen 1960 (kappa).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import comb, fsum, sqrt
from random import Random
from typing import NamedTuple

from bough.errors import InvalidInput

Z95 = 1.959964
RESAMPLES = 10_000
MAX_EXACT = 16
"""Maximum number of differences for the exact test."""


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


def wilson(k: float, n: int) -> Interval:
    """Return the Wilson score interval of k passes in n attempts; 0 to 1 for n = 0.

    Args:
        k: The number of passes; fractional if passes are shares of attempts.
    """
    if not 0 <= k <= n:
        raise InvalidInput(f"{k} of {n} is not a proportion", hint="k must be from 0 to n")
    if n == 0:
        return Interval(0.0, 1.0)
    share = k / n
    square = Z95 * Z95
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = Z95 * sqrt(share * (1 - share) / n + square / (4 * n * n)) / (1 + square / n)
    low = 0.0 if k == 0 else centre - half
    high = 1.0 if k == n else centre + half
    return Interval(max(0.0, low), min(1.0, high))


def newcombe_paired(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the interval of the difference of two paired proportions, second minus first.

    Newcombe's hybrid score interval: the limits of both Wilson intervals, combined with the correlation of the pairs.
    Unlike a bootstrap interval, it has a width even if every pair has the same difference. A positive correlation is
    corrected for continuity; the correlation is 0 if all values of a side are equal.

    Source: Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions based on
    paired data", Statistics in Medicine 17.

    Args:
        first: The first share of each pair, from 0 to 1.
        second: The second share of each pair, in the same order.
    """
    n = len(first)
    if n != len(second):
        raise InvalidInput(
            f"{n} and {len(second)} values cannot be paired", hint="give both sides with the same number of values"
        )
    if n == 0:
        return Interval(-1.0, 1.0)
    a, b = mean(first), mean(second)
    low_a, high_a = wilson(min(fsum(first), n), n)
    low_b, high_b = wilson(min(fsum(second), n), n)
    variances = fsum((x - a) ** 2 for x in first) * fsum((y - b) ** 2 for y in second)
    covariance = fsum((x - a) * (y - b) for x, y in zip(first, second, strict=True))
    if covariance > 0:
        covariance = max(covariance - 0.5, 0.0)
    correlation = covariance / sqrt(variances) if variances > 0 else 0.0

    def combine(first_deviation: float, second_deviation: float) -> float:
        """Return the deviation of a difference from the deviations of its two correlated terms."""
        product_term = 2 * correlation * first_deviation * second_deviation
        return sqrt(max(0.0, first_deviation**2 - product_term + second_deviation**2))

    low = b - a - combine(b - low_b, high_a - a)
    high = b - a + combine(high_b - b, a - low_a)
    return Interval(max(-1.0, low), min(1.0, high))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the probability that at least one of k attempts passes, estimated from n attempts of which c passed."""
    _check_attempts(n, c, k)
    return 1 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return the probability that all of k attempts pass, estimated from n attempts of which c passed."""
    _check_attempts(n, c, k)
    return comb(c, k) / comb(n, k)


def _check_attempts(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise InvalidInput(f"k={k} of n={n} attempts with {c} passes is invalid", hint="1 <= k <= n, 0 <= c <= n")


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 for no values."""
    return fsum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1); 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    average = mean(values)
    return sqrt(fsum((value - average) ** 2 for value in values) / (len(values) - 1))


def bootstrap_mean(values: Sequence[float]) -> Interval:
    """Return the percentile bootstrap interval of a mean, from 10,000 resamples."""
    if not values:
        return Interval(0.0, 0.0)
    if len(set(values)) == 1:
        return Interval(values[0], values[0])
    import numpy

    data = numpy.asarray(values, dtype=float)
    random = numpy.random.default_rng(0)
    # In 20 batches, because all resamples of 10,000 cases at once need 800 MB.
    means = [data[random.integers(0, len(data), (RESAMPLES // 20, len(data)))].mean(axis=1) for _ in range(20)]
    low, high = numpy.percentile(numpy.concatenate(means), [2.5, 97.5])
    return Interval(float(low), float(high))


def sign_flip(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of paired differences: how often random signs give a sum at least as far from 0.

    Zeros are ignored. Exact for up to 16 differences, and for differences of equal size (the binomial test); otherwise
    estimated from 10,000 draws.
    """
    changed = [value for value in differences if value != 0]
    if not changed:
        return 1.0
    size = abs(changed[0])
    if all(abs(value) == size for value in changed):
        return _binomial_p_value(sum(value > 0 for value in changed), len(changed))
    # The tolerance prevents rounding from excluding the observed signs.
    observed = abs(fsum(changed)) - 1e-12
    if len(changed) <= MAX_EXACT:
        hits = 0
        for signs in product((1, -1), repeat=len(changed)):
            hits += abs(fsum(sign * value for sign, value in zip(signs, changed, strict=True))) >= observed
        return hits / 2 ** len(changed)
    random = Random(0)  # noqa: S311 - for a permutation test, not for a secret
    hits = 0
    for _ in range(RESAMPLES):
        hits += abs(fsum(value if random.random() < 0.5 else -value for value in changed)) >= observed
    # The observed signs count as a draw, so that p is never 0.
    return (hits + 1) / (RESAMPLES + 1)


def _binomial_p_value(better: int, n: int) -> float:
    """Return the two-sided p-value of `better` positive differences among n of equal size."""
    fewer = min(better, n - better)
    return min(1.0, 2 * sum(comb(n, k) for k in range(fewer + 1)) / 2**n)


def cohen_kappa(yes_yes: int, no_yes: int, yes_no: int, no_no: int) -> float:
    """Return Cohen's kappa of a person and a judge.

    Args:
        yes_yes: How often person and judge say yes.
        no_yes: How often the person says no and the judge yes.
        yes_no: How often the person says yes and the judge no.
        no_no: How often person and judge say no.

    Raises:
        InvalidInput: All counts are 0.
    """
    total = yes_yes + no_yes + yes_no + no_no
    if total == 0:
        raise InvalidInput("there are no labels to compare", hint="give a file with at least one line")
    observed = (yes_yes + no_no) / total
    person_yes = yes_yes + yes_no
    judge_yes = yes_yes + no_yes
    expected = (person_yes * judge_yes + (total - person_yes) * (total - judge_yes)) / (total * total)
    if expected == 1:
        return 1.0 if observed == 1 else 0.0
    return (observed - expected) / (1 - expected)
