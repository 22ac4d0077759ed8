"""How much a run or a conversation may use, and which bound is reached first."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from bough.errors import InvalidInput
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.events.model import LimitReached, Usage


Unpriced: TypeAlias = Literal["refuse", "allow"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds; None is no bound. A bound is reached when the value is at or above it, so 0 allows nothing.

    Attributes:
        requests: Requests to the model.
        total_tokens: Input and output together.
        wall_seconds: Of the run, or of all runs of a conversation together.
        iterations: Steps of the loop.
        unpriced: What a bound of cost means where nobody knows what the model costs: `refuse` to run, since such a
            bound could not stop it, or `allow`, where it is understood that it does not.

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
    unpriced: Unpriced = "refuse"

    def __post_init__(self) -> None:
        for name, bound in vars(self).items():
            if name != "unpriced":
                _check(name, bound)
        if self.unpriced not in ("refuse", "allow"):
            raise InvalidInput(f"the limit unpriced cannot be {self.unpriced!r}", hint="choose `refuse` or `allow`")

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are set, by name."""
        return {name: bound for name, bound in vars(self).items() if bound is not None and name != "unpriced"}

    def to_json(self) -> JsonObject:
        """The bounds that are set, and whether a cost that nobody knows is allowed."""
        return {**self.bounds, **({"unpriced": "allow"} if self.unpriced == "allow" else {})}


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
        usage: Summed over the run or the conversation. A cost that is not known reaches every bound, unless it is
            allowed.
    """
    bounds = limits.bounds
    if not bounds:
        return None
    from bough.events.model import LimitReached

    values: dict[str, float] = {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "cost_usd": _known_cost(limits, usage),
        "wall_seconds": elapsed_seconds,
        "iterations": iterations,
    }
    for name, bound in bounds.items():
        if values[name] >= bound:
            return LimitReached(limit=name, value=float(values[name]), bound=float(bound))
    return None


def _known_cost(limits: Limits, usage: Usage) -> float:
    """Return the cost; of tokens that nobody can price the bound itself, unless that is allowed."""
    unknown = usage.cost_usd is None and usage.input_tokens + usage.output_tokens > 0
    if unknown and limits.unpriced == "refuse":
        return limits.cost_usd or 0.0
    return usage.cost_usd or 0.0


def narrower(a: Limits, b: Limits) -> Limits:
    """Return the smaller of each pair of bounds."""
    left, right = a.bounds, b.bounds
    bounds: dict[str, Any] = {
        name: min(each[name] for each in (left, right) if name in each) for name in left.keys() | right.keys()
    }
    both = a.unpriced == b.unpriced == "allow"
    return Limits(**bounds, unpriced="allow" if both else "refuse")


def allows_change(old: Limits, new: Limits) -> bool:
    """Whether `new` is nowhere wider than `old`, which is what a fork may change."""
    return narrower(old, new) == new
