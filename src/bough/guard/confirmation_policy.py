"""Policies that decide when a tool call waits for a person.

A policy is the set of risks that it confirms, so the union of two policies is a policy.
Source: OpenHands (`AlwaysConfirm`, `NeverConfirm`, `ConfirmRisky`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from bough.errors import InvalidInput
from bough.guard.risk import Risk
from bough.types import Json, JsonObject


class ConfirmationPolicy(Protocol):
    """Decides by the risk alone whether a call waits for a person."""

    def needs_confirmation(self, risk: Risk) -> bool:
        """Whether a call of this risk waits."""
        ...

    def to_json(self) -> JsonObject:
        """Return the policy as a log records it."""
        ...


@dataclass(frozen=True)
class AlwaysConfirm:
    """Every call waits, except one that only reads skills (`ToolRequest.reads_skills`)."""

    def needs_confirmation(self, risk: Risk) -> bool:
        """Return True."""
        return True

    def to_json(self) -> JsonObject:
        """Return its kind."""
        return {"kind": "AlwaysConfirm"}


@dataclass(frozen=True)
class NeverConfirm:
    """No call waits."""

    def needs_confirmation(self, risk: Risk) -> bool:
        """Return False."""
        return False

    def to_json(self) -> JsonObject:
        """Return its kind."""
        return {"kind": "NeverConfirm"}


@dataclass(frozen=True)
class ConfirmRisky:
    """Calls at or above a threshold wait.

    Attributes:
        threshold: LOW, MEDIUM or HIGH.
        confirm_unknown: Whether a call of unknown risk waits.

    Raises:
        InvalidInput: The threshold is UNKNOWN, which has no order among risks.
    """

    threshold: Risk = Risk.HIGH
    confirm_unknown: bool = True

    def __post_init__(self) -> None:
        if self.threshold is Risk.UNKNOWN:
            raise InvalidInput(
                "the threshold of ConfirmRisky cannot be UNKNOWN",
                hint="choose LOW, MEDIUM or HIGH; `confirm_unknown` decides about UNKNOWN",
            )

    def needs_confirmation(self, risk: Risk) -> bool:
        """Whether the risk is at or above the threshold; `confirm_unknown` for UNKNOWN."""
        return self.confirm_unknown if risk is Risk.UNKNOWN else risk >= self.threshold

    def to_json(self) -> JsonObject:
        """Return its kind, threshold and `confirm_unknown`."""
        return {
            "kind": "ConfirmRisky",
            "threshold": self.threshold.value,
            "confirm_unknown": self.confirm_unknown,
        }


Policy: TypeAlias = AlwaysConfirm | NeverConfirm | ConfirmRisky
"""All policies. The set is closed, so that any two can be compared and combined."""


def policy_from_json(value: Json) -> Policy:
    """Return the policy that `to_json` recorded.

    Raises:
        InvalidInput: It is not the record of a policy.
    """
    data = dict(cast(dict[str, Any], value)) if isinstance(value, dict) else {}
    kind = data.pop("kind", None)
    if kind == "AlwaysConfirm" and not data:
        return AlwaysConfirm()
    if kind == "NeverConfirm" and not data:
        return NeverConfirm()
    if kind == "ConfirmRisky" and data.keys() <= {"threshold", "confirm_unknown"}:
        return _make_confirm_risky(**data)
    # Unknown fields are refused too: without them, the policy of a newer version could confirm less than recorded.
    raise InvalidInput(
        f"{value!r} is not a confirmation policy",
        hint='give {"kind": …} with AlwaysConfirm, NeverConfirm, or ConfirmRisky (threshold, confirm_unknown)',
    )


def _make_confirm_risky(threshold: Json = "HIGH", confirm_unknown: Json = True) -> ConfirmRisky:
    if not isinstance(threshold, str) or threshold not in Risk.__members__ or not isinstance(confirm_unknown, bool):
        raise InvalidInput(
            f"ConfirmRisky cannot have threshold={threshold!r}, confirm_unknown={confirm_unknown!r}",
            hint="threshold is LOW, MEDIUM or HIGH; confirm_unknown is true or false",
        )
    return ConfirmRisky(Risk[threshold], confirm_unknown)


def policy_named(name: str) -> Policy:
    """Return a policy by its name in the settings: `allow` never confirms, `ask` always, `rules` risky calls.

    Raises:
        InvalidInput: No policy has this name.
    """
    policies: dict[str, Policy] = {"allow": NeverConfirm(), "ask": AlwaysConfirm(), "rules": ConfirmRisky()}
    if name not in policies:
        raise InvalidInput(f"no policy named {name!r}", hint=f"choose one of: {', '.join(policies)}")
    return policies[name]


def narrower(first: Policy, second: Policy) -> Policy:
    """Return the policy that confirms whenever `first` or `second` does. Commutative, associative and idempotent."""
    if isinstance(first, AlwaysConfirm) or isinstance(second, AlwaysConfirm):
        return AlwaysConfirm()
    if isinstance(first, NeverConfirm):
        return second
    if isinstance(second, NeverConfirm):
        return first
    return ConfirmRisky(min(first.threshold, second.threshold), first.confirm_unknown or second.confirm_unknown)


def allows_change(old: Policy, new: Policy) -> bool:
    """Whether `new` confirms every risk that `old` confirms. A fork may change policies only like this."""
    return all(new.needs_confirmation(risk) for risk in Risk if old.needs_confirmation(risk))
