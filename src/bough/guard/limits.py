"""How much a run or a conversation may use, and which bound is reached first."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, cast

from bough.errors import InvalidInput
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.events.model import LimitReached, Usage


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds; None is no bound. A bound is reached when the value is at or above it, so 0 allows nothing.

    Attributes:
        requests: Requests to the model.
        total_tokens: Input and output together.
        wall_seconds: Of the run, or of all runs of a conversation together.
        iterations: Steps of the loop.

    Raises:
        InvalidInput: A bound is negative, not a number, or no whole number where things are counted.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cost_usd: float | None = None
    wall_seconds: float | None = None
    iterations: int | None = None

    def __post_init__(self) -> None:
        for name, bound in asdict(self).items():
            _check(name, bound)

    def to_json(self) -> JsonObject:
        """The bounds that are set."""
        return {name: bound for name, bound in vars(self).items() if bound is not None}


_FRACTIONS = frozenset({"cost_usd", "wall_seconds"})


def _check(name: str, bound: object) -> None:
    whole = isinstance(bound, int) and not isinstance(bound, bool)
    number = whole or (name in _FRACTIONS and isinstance(bound, float) and math.isfinite(bound))
    if bound is not None and not (number and cast(float, bound) >= 0):
        kind = "number" if name in _FRACTIONS else "whole number"
        raise InvalidInput(f"the limit {name} cannot be {bound!r}", hint=f"give a {kind}, 0 or more, or nothing")


def limits_from_json(value: Json) -> Limits:
    """Return the limits that `to_json` wrote.

    Raises:
        InvalidInput: A key or a value is not one of limits.
    """
    known = [field.name for field in fields(Limits)]
    if not isinstance(value, dict) or not set(cast(JsonObject, value)) <= set(known):
        raise InvalidInput(f"{value!r} are no limits", hint=f"known limits: {', '.join(known)}")
    return Limits(**cast(JsonObject, value))


def check(limits: Limits, usage: Usage, *, elapsed_seconds: float = 0.0, iterations: int = 0) -> LimitReached | None:
    """Return the first bound that is reached, None when there is room under all of them.

    Args:
        usage: Summed over the run or the conversation. A cost that is not known reaches a bound of 0 only.
    """
    bounds = limits.to_json()
    if not bounds:
        return None
    from bough.events.model import LimitReached

    values: dict[str, float] = {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "cost_usd": usage.cost_usd or 0.0,
        "wall_seconds": elapsed_seconds,
        "iterations": iterations,
    }
    for name, bound in bounds.items():
        if values[name] >= bound:
            return LimitReached(limit=name, value=float(values[name]), bound=float(bound))
    return None


def narrower(a: Limits, b: Limits) -> Limits:
    """Return the smaller of each pair of bounds."""
    left, right = a.to_json(), b.to_json()
    return Limits(**{name: min(d[name] for d in (left, right) if name in d) for name in left.keys() | right.keys()})


def allows_change(old: Limits, new: Limits) -> bool:
    """Whether `new` is nowhere wider than `old`, which is what a fork may change."""
    return narrower(old, new) == new
