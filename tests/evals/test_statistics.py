"""The statistics give the figures of the design page, and known ones beyond them."""

from __future__ import annotations

import pytest

from bough.errors import InvalidInput
from bough.evals.statistics import (
    bootstrap_mean,
    deviation,
    mean,
    pass_at_k,
    pass_hat_k,
    sign_flip,
    wilson,
)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"), [(8, 10, 0.490, 0.943), (0, 5, 0.0, 0.434), (5, 5, 0.566, 1.0), (0, 0, 0.0, 1.0)]
)
def test_wilson(k: int, n: int, low: float, high: float) -> None:
    assert wilson(k, n) == pytest.approx((low, high), abs=5e-4)


def test_pass_at_k_and_pass_hat_k() -> None:
    assert [pass_at_k(5, 2, k) for k in (1, 2, 3)] == pytest.approx([0.4, 0.7, 0.9])
    assert [pass_hat_k(5, 2, k) for k in (1, 2, 3)] == pytest.approx([0.4, 0.1, 0.0])
    assert (pass_at_k(3, 3, 3), pass_hat_k(3, 3, 3)) == (1.0, 1.0)
    for wrong in ((2, 1, 3), (2, 1, 0), (2, 3, 1)):
        with pytest.raises(InvalidInput):
            pass_at_k(*wrong)


def test_the_paired_test() -> None:
    assert sign_flip([1] * 6 + [-1]) == 0.125
    assert sign_flip([]) == sign_flip([0, 0]) == 1.0
    assert sign_flip([1] * 10) == pytest.approx(2 / 1024)
    assert sign_flip([0.5, 0.5, 0.25]) == pytest.approx(0.25), "all eight assignments of signs"
    many = [1.0, 2.0] * 20
    assert sign_flip(many) == sign_flip(many) < 0.001
    assert sign_flip([1.0, -2.0] * 20) < 0.2 < sign_flip([1.0, -1.5, 0.5] * 8)


def test_mean_deviation_and_bootstrap() -> None:
    rates = [1, 0.5, 0.75]
    assert (mean(rates), deviation(rates)) == (0.75, 0.25)
    assert (mean([]), deviation([3.0])) == (0.0, 0.0)
    assert bootstrap_mean([0.5] * 4) == (0.5, 0.5)
    low, high = bootstrap_mean([0.0, 1.0] * 20)
    assert 0.3 < low < 0.45 and 0.55 < high < 0.7
    assert bootstrap_mean([0.0, 1.0] * 20) == (low, high)
