"""Limits: what reaches them, what they refuse to be, and which of two is narrower."""

from __future__ import annotations

from typing import Any

import pytest

from bough.errors import InvalidInput
from bough.events.model import Usage
from bough.guard import Limits, limits_from_json
from bough.guard.limits import allows_change, check, narrower

USED = Usage(requests=5, input_tokens=100, output_tokens=50, cost_usd=0.25)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("requests", 5),
        ("input_tokens", 100),
        ("output_tokens", 50),
        ("total_tokens", 150),
        ("cost_usd", 0.25),
        ("wall_seconds", 7.5),
        ("steps", 3),
    ],
)
def test_each_bound_is_reached_at_its_value_and_not_before(name: str, value: float) -> None:
    bounds: dict[str, Any] = {name: value}
    reached = check(Limits(**bounds), USED, elapsed_seconds=7.5, steps=3)
    assert reached is not None
    assert (reached.limit, reached.value, reached.bound) == (name, value, value)
    assert check(Limits(**{name: value * 2}), USED, elapsed_seconds=7.5, steps=3) is None


def test_no_bound_is_never_reached_and_zero_always() -> None:
    assert check(Limits(steps=None), USED, elapsed_seconds=1e9, steps=10**9) is None
    assert check(Limits(per="conversation"), USED, elapsed_seconds=1e9, steps=10**9) is None
    assert check(Limits(requests=0), Usage(requests=0)) is not None


def test_a_cost_that_nobody_knows_reaches_any_bound_unless_it_is_allowed_by_name() -> None:
    unknown = Usage(requests=1, input_tokens=1)
    assert check(Limits(cost_usd=99), unknown) is not None
    assert check(Limits(cost_usd=99, unpriced="allow"), unknown) is None
    assert check(Limits(cost_usd=99), Usage(requests=1)) is None, "nothing was used"


def test_allowing_an_unknown_cost_is_wider_and_is_recorded() -> None:
    refusing, allowing = Limits(cost_usd=1), Limits(cost_usd=1, unpriced="allow")
    assert limits_from_json(allowing.to_json()) == allowing
    assert "unpriced" not in refusing.to_json()
    assert narrower(refusing, allowing) == narrower(allowing, refusing) == refusing
    assert not allows_change(refusing, allowing)
    with pytest.raises(InvalidInput):
        limits_from_json({"unpriced": "perhaps"})


def test_a_run_is_bounded_unless_somebody_says_otherwise() -> None:
    assert check(Limits(), USED, steps=499) is None
    assert getattr(check(Limits(), USED, steps=500), "limit", None) == "steps"
    assert (Limits().steps, Limits().tasks, Limits().depth) == (500, 100, 4)


def test_records_without_a_count_are_of_the_conversation() -> None:
    old = limits_from_json({"requests": 3, "iterations": 7})
    assert old == Limits(requests=3, steps=7, per="conversation")
    with pytest.raises(InvalidInput, match="cannot be compared"):
        narrower(old, Limits())


@pytest.mark.parametrize("name", ["requests", "total_tokens", "cost_usd", "wall_seconds"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "5", True])
def test_a_bound_that_makes_no_sense_is_refused(name: str, value: Any) -> None:
    """NaN compares as False with everything: the bound would never be reached."""
    with pytest.raises(InvalidInput, match=name):
        Limits(**{name: value})


def test_what_is_counted_is_whole() -> None:
    with pytest.raises(InvalidInput):
        Limits(requests=1.5)  # type: ignore[arg-type]


def test_the_narrower_of_two() -> None:
    both = narrower(Limits(requests=5, cost_usd=1.0), Limits(requests=3, steps=9))
    assert both == Limits(requests=3, cost_usd=1.0, steps=9)
    assert allows_change(Limits(requests=5), Limits(requests=5, steps=1))
    assert not allows_change(Limits(requests=5), Limits(requests=6))
    assert not allows_change(Limits(requests=5), Limits())


@pytest.mark.parametrize("value", [None, [], {"request": 3}, {"requests": -1}, {"requests": "3"}])
def test_json_that_is_no_limits_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        limits_from_json(value)
