"""The statistics of evals: intervals, pass@k, a paired test, agreement. Deterministic: every seed is 0.

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
        k: May be a fraction: the sum of shares.
    """
    if not 0 <= k <= n:
        raise InvalidInput(f"{k} of {n} is not a share", hint="k is from 0 to n")
    if n == 0:
        return Interval(0.0, 1.0)
    share, square = k / n, Z95 * Z95
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = Z95 * sqrt(share * (1 - share) / n + square / (4 * n * n)) / (1 + square / n)
    low = 0.0 if k == 0 else centre - half
    high = 1.0 if k == n else centre + half
    return Interval(max(0.0, low), min(1.0, high))


def newcombe_paired(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the interval of the difference of two paired proportions, second minus first.

    Newcombe's hybrid score interval: the limits of both Wilson intervals, combined with the correlation of the pairs.
    Unlike a bootstrap it stays wide if every pair has the same difference. A positive correlation is corrected for
    continuity; it is 0 if one side never varies.

    Source: Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions based on
    paired data", Statistics in Medicine 17.

    Args:
        first: One share for each pair, from 0 to 1; `second` likewise, in the same order.
    """
    n = len(first)
    if n != len(second):
        raise InvalidInput(f"{n} and {len(second)} values make no pairs", hint="give both sides in the same order")
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

    def combine(one: float, other: float) -> float:
        """Return the length of the difference of two correlated deviations."""
        return sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))

    low = b - a - combine(b - low_b, high_a - a)
    high = b - a + combine(high_b - b, a - low_a)
    return Interval(max(-1.0, low), min(1.0, high))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that at least one of k attempts passes, of n attempts of which c passed."""
    _check_attempts(n, c, k)
    return 1 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return the chance that all of k attempts pass, of n attempts of which c passed."""
    _check_attempts(n, c, k)
    return comb(c, k) / comb(n, k)


def _check_attempts(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise InvalidInput(f"k={k} of n={n} attempts with {c} passes makes no sense", hint="1 <= k <= n, 0 <= c <= n")


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 for none."""
    return fsum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """Return the sample's standard deviation (n - 1); 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return sqrt(fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def bootstrap_mean(values: Sequence[float]) -> Interval:
    """Return the bootstrap interval of a mean: 10,000 resamples, percentiles."""
    if not values:
        return Interval(0.0, 0.0)
    if len(set(values)) == 1:
        return Interval(values[0], values[0])
    import numpy

    data = numpy.asarray(values, dtype=float)
    random = numpy.random.default_rng(0)
    means = [
        data[random.integers(0, len(data), (RESAMPLES // 20, len(data)))].mean(axis=1) for _ in range(20)
    ]  # in 20 parts: all resamples of 10,000 cases at once need 800 MB
    low, high = numpy.percentile(numpy.concatenate(means), [2.5, 97.5])
    return Interval(float(low), float(high))


def sign_flip(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of paired differences: how often random signs give a sum as far from 0.

    Exact up to 16 differences that are not 0, and for differences of one size (the binomial test); else 10,000 draws.
    """
    changed = [value for value in differences if value != 0]
    if not changed:
        return 1.0
    size = abs(changed[0])
    if all(abs(value) == size for value in changed):
        return _binomial(sum(value > 0 for value in changed), len(changed))
    # The tolerance keeps rounding from excluding the observed assignment itself.
    observed = abs(fsum(changed)) - 1e-12
    if len(changed) <= MAX_EXACT:
        signs = product((1, -1), repeat=len(changed))
        hits = sum(abs(fsum(s * v for s, v in zip(sign, changed, strict=True))) >= observed for sign in signs)
        return hits / 2 ** len(changed)
    random = Random(0)  # noqa: S311 - a permutation test, not a secret
    hits = sum(abs(fsum(v if random.random() < 0.5 else -v for v in changed)) >= observed for _ in range(RESAMPLES))
    # The observed assignment counts as a draw, so p is never 0.
    return (hits + 1) / (RESAMPLES + 1)


def _binomial(better: int, n: int) -> float:
    fewer = min(better, n - better)
    return min(1.0, 2 * sum(comb(n, k) for k in range(fewer + 1)) / 2**n)


def cohen_kappa(yes_yes: int, no_yes: int, yes_no: int, no_no: int) -> float:
    """Return Cohen's kappa of two raters.

    Args:
        yes_yes: Both say yes.
        no_yes: The person says no, the judge yes.
        yes_no: The person says yes, the judge no.
        no_no: Both say no.

    Raises:
        InvalidInput: All counts are 0.
    """
    total = yes_yes + no_yes + yes_no + no_no
    if total == 0:
        raise InvalidInput("there are no labels to compare", hint="give a file with at least one line")
    observed = (yes_yes + no_no) / total
    person, judge = yes_yes + yes_no, yes_yes + no_yes
    expected = (person * judge + (total - person) * (total - judge)) / (total * total)
    if expected == 1:
        return 1.0 if observed == 1 else 0.0
    return (observed - expected) / (1 - expected)
