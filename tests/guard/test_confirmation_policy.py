"""Policies: when they ask, and that the join of two asks whenever one of them does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bough.errors import InvalidInput
from bough.guard import AlwaysConfirm, ConfirmRisky, NeverConfirm, Policy, Risk, policy_from_json, policy_named
from bough.guard.confirmation_policy import allows_change, narrower

HEIGHTS = (Risk.LOW, Risk.MEDIUM, Risk.HIGH)
POLICIES: list[Policy] = [
    AlwaysConfirm(),
    NeverConfirm(),
    *(ConfirmRisky(height, unknown) for height in HEIGHTS for unknown in (True, False)),
]


def asks(policy: Policy) -> set[Risk]:
    return {risk for risk in Risk if policy.needs_confirmation(risk)}


def test_when_each_policy_asks() -> None:
    assert asks(AlwaysConfirm()) == set(Risk)
    assert asks(NeverConfirm()) == set()
    assert asks(ConfirmRisky()) == {Risk.HIGH, Risk.UNKNOWN}
    assert asks(ConfirmRisky(Risk.MEDIUM, confirm_unknown=False)) == {Risk.MEDIUM, Risk.HIGH}


@pytest.mark.parametrize(("a", "b"), list(itertools.product(POLICIES, POLICIES)))
def test_the_narrower_of_two_asks_exactly_when_either_does(a: Policy, b: Policy) -> None:
    assert asks(narrower(a, b)) == asks(a) | asks(b)
    assert allows_change(a, narrower(a, b)), "a fork may always take the narrower one"
    assert allows_change(a, b) == (asks(a) <= asks(b))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_comes_back_from_its_json(policy: Policy) -> None:
    assert policy_from_json(policy.to_json()) == policy


@pytest.mark.parametrize(
    "value",
    [
        None,
        "NeverConfirm",
        [],
        {},
        {"kind": "Sometimes"},
        {"kind": "NeverConfirm", "threshold": "HIGH"},
        {"kind": "ConfirmRisky", "threshold": "UNKNOWN"},
        {"kind": "ConfirmRisky", "threshold": "high"},
        {"kind": "ConfirmRisky", "threshold": 3},
        {"kind": "ConfirmRisky", "confirm_unknown": "no"},
        {"kind": "ConfirmRisky", "extra": 1},
    ],
)
def test_json_that_is_no_policy_is_refused(value: Any) -> None:
    """Reading nonsense as `NeverConfirm` would let everything through."""
    with pytest.raises(InvalidInput) as caught:
        policy_from_json(value)
    assert caught.value.hint


def test_settings_name_policies() -> None:
    assert policy_named("allow") == NeverConfirm()
    assert policy_named("ask") == AlwaysConfirm()
    assert policy_named("rules") == ConfirmRisky()
    with pytest.raises(InvalidInput, match="'none'"):
        policy_named("none")
