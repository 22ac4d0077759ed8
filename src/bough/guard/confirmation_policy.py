"""When a tool call waits for a person: three policies, and which of two is the narrower.

A policy is nothing but the set of risks it asks about, so the union of two of them is again one of them.
Source: OpenHands (`AlwaysConfirm`, `NeverConfirm`, `ConfirmRisky`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from bough.errors import InvalidInput
from bough.guard.risk import Risk
from bough.types import Json, JsonObject


class ConfirmationPolicy(Protocol):
    """Decides from the risk alone whether a call waits for a person."""

    def needs_confirmation(self, risk: Risk) -> bool:
        """Whether a call of this risk waits."""
        ...

    def to_json(self) -> JsonObject:
        """The policy as `policy_from_json` reads it."""
        ...


@dataclass(frozen=True)
class AlwaysConfirm:
    """Every call waits."""

    def needs_confirmation(self, risk: Risk) -> bool:
        """True."""
        return True

    def to_json(self) -> JsonObject:
        """Its name."""
        return {"kind": "AlwaysConfirm"}


@dataclass(frozen=True)
class NeverConfirm:
    """No call waits."""

    def needs_confirmation(self, risk: Risk) -> bool:
        """False."""
        return False

    def to_json(self) -> JsonObject:
        """Its name."""
        return {"kind": "NeverConfirm"}


@dataclass(frozen=True)
class ConfirmRisky:
    """Calls at or above a threshold wait.

    Attributes:
        threshold: LOW, MEDIUM or HIGH.
        confirm_unknown: Whether a call of unknown risk waits.

    Raises:
        InvalidInput: The threshold is UNKNOWN, which is not a height.
    """

    threshold: Risk = Risk.HIGH
    confirm_unknown: bool = True

    def __post_init__(self) -> None:
        if self.threshold is Risk.UNKNOWN:
            raise InvalidInput(
                "the threshold of ConfirmRisky cannot be UNKNOWN",
                hint="choose LOW, MEDIUM or HIGH; `confirm_unknown` says what happens to the rest",
            )

    def needs_confirmation(self, risk: Risk) -> bool:
        """Whether the risk reaches the threshold; for UNKNOWN, what `confirm_unknown` says."""
        return self.confirm_unknown if risk is Risk.UNKNOWN else risk >= self.threshold

    def to_json(self) -> JsonObject:
        """Its name and fields."""
        return {
            "kind": "ConfirmRisky",
            "threshold": self.threshold.value,
            "confirm_unknown": self.confirm_unknown,
        }


Policy: TypeAlias = AlwaysConfirm | NeverConfirm | ConfirmRisky
"""The policies there are; being a closed set, any two can be compared and joined."""


def policy_from_json(value: Json) -> Policy:
    """Return the policy that `to_json` wrote.

    Raises:
        InvalidInput: The kind, a field or a value is not one of a policy.
    """
    data = dict(cast(dict[str, Any], value)) if isinstance(value, dict) else {}
    kind = data.pop("kind", None)
    if kind == "AlwaysConfirm" and not data:
        return AlwaysConfirm()
    if kind == "NeverConfirm" and not data:
        return NeverConfirm()
    if kind == "ConfirmRisky" and data.keys() <= {"threshold", "confirm_unknown"}:
        return _confirm_risky(**data)
    raise InvalidInput(
        f"{value!r} is not a confirmation policy",
        hint='give {"kind": …} with AlwaysConfirm, NeverConfirm, or ConfirmRisky (threshold, confirm_unknown)',
    )


def _confirm_risky(threshold: Json = "HIGH", confirm_unknown: Json = True) -> ConfirmRisky:
    if not isinstance(threshold, str) or threshold not in Risk.__members__ or not isinstance(confirm_unknown, bool):
        raise InvalidInput(
            f"ConfirmRisky cannot have threshold={threshold!r}, confirm_unknown={confirm_unknown!r}",
            hint="threshold is LOW, MEDIUM or HIGH; confirm_unknown is true or false",
        )
    return ConfirmRisky(Risk[threshold], confirm_unknown)


def policy_named(name: str) -> Policy:
    """Return the policy a setting names: `allow` never asks, `ask` always does, `rules` asks about risky calls.

    Raises:
        InvalidInput: No policy has that name.
    """
    policies: dict[str, Policy] = {"allow": NeverConfirm(), "ask": AlwaysConfirm(), "rules": ConfirmRisky()}
    if name not in policies:
        raise InvalidInput(f"no policy named {name!r}", hint=f"choose one of: {', '.join(policies)}")
    return policies[name]


def narrower(a: Policy, b: Policy) -> Policy:
    """Return the policy that asks whenever `a` or `b` does. Commutative, associative, idempotent in effect."""
    if isinstance(a, AlwaysConfirm) or isinstance(b, AlwaysConfirm):
        return AlwaysConfirm()
    if isinstance(a, NeverConfirm):
        return b
    if isinstance(b, NeverConfirm):
        return a
    return ConfirmRisky(min(a.threshold, b.threshold), a.confirm_unknown or b.confirm_unknown)


def allows_change(old: Policy, new: Policy) -> bool:
    """Whether `new` asks at least wherever `old` does, which is what a fork may change."""
    return all(new.needs_confirmation(risk) for risk in Risk if old.needs_confirmation(risk))
