"""The statistics give the figures of the design page, and known ones beyond them."""

from __future__ import annotations

import pytest

from bough.errors import InvalidInput
from bough.evals.statistics import (
    bootstrap_mean,
    deviation,
    mean,
    newcombe_paired,
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


def pairs(both: int, first_only: int, second_only: int, neither: int) -> tuple[list[float], list[float]]:
    """Return two sides whose cases pass in both runs, in one of them, or in neither."""
    first = [1.0] * (both + first_only) + [0.0] * (second_only + neither)
    second = [1.0] * both + [0.0] * first_only + [1.0] * second_only + [0.0] * neither
    return first, second


def test_the_interval_of_paired_proportions() -> None:
    """Pairs that agree are narrower than independent ones; pairs that are all alike are no certainty."""
    low, high = newcombe_paired(*pairs(6, 0, 0, 0))
    assert (low, high) == pytest.approx((-0.390, 0.390), abs=5e-4)
    assert newcombe_paired(*pairs(0, 0, 6, 0)) == pytest.approx((1 - 0.390 * 2**0.5, 1.0), abs=1e-3)
    low, high = newcombe_paired(*pairs(20, 12, 2, 16))
    phi = (20 * 16 - 12 * 2 - 50 / 2) / (32 * 18 * 22 * 28) ** 0.5
    below, above = 22 / 50 - wilson(22, 50).low, wilson(32, 50).high - 32 / 50
    assert low == pytest.approx(-0.2 - (below**2 - 2 * phi * below * above + above**2) ** 0.5)
    assert newcombe_paired(*pairs(20, 2, 12, 16)) == pytest.approx((-high, -low)), "the sides can be exchanged"
    assert newcombe_paired([], []) == (-1.0, 1.0)
    assert newcombe_paired([0.5] * 4, [0.5] * 4)[0] < 0 < newcombe_paired([0.5] * 4, [0.5] * 4)[1]
    with pytest.raises(InvalidInput):
        newcombe_paired([1.0], [])
