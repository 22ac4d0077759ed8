"""Bounds of what a run or a conversation may use."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from bough.errors import InvalidInput
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.events.model import LimitReached, Usage


Unpriced: TypeAlias = Literal["refuse", "allow"]
Per: TypeAlias = Literal["run", "conversation"]

DEFAULT_STEPS = 500
"""Steps of a run without a bound of steps, so that a model that never ends its turn is stopped."""
DEFAULT_TASKS = 100
DEFAULT_DEPTH = 4

_UNSET: Any = object()
_NO_BOUNDS = frozenset({"per", "unpriced"})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds; None is unbounded. A bound is reached if the value is at or above it, so 0 allows nothing.

    Attributes:
        requests: Requests to the model.
        total_tokens: Input and output together.
        wall_seconds: Of one run.
        steps: Model requests with the tools they call; 500 by default.
        tasks: Tasks started by a conversation and its descendants; 100 by default.
        depth: Levels of sub-agents below a conversation; 4 by default.
        per: `run` counts since the run began, so that another run continues; `conversation` counts all of it and its
            fork ancestors, so that only other limits let it continue. The three defaults apply to runs.
        unpriced: How a bound of cost applies to a model without a known price: `refuse` runs, since the bound could not
            stop them, or `allow` them without that bound.

    Raises:
        InvalidInput: A bound is negative, not a number, or not a whole number for a count.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cost_usd: float | None = None
    wall_seconds: float | None = None
    steps: int | None = _UNSET
    tasks: int | None = _UNSET
    depth: int | None = _UNSET
    per: Per = "run"
    unpriced: Unpriced = "refuse"

    def __post_init__(self) -> None:
        if self.per not in ("run", "conversation"):
            raise InvalidInput(f"limits cannot be per {self.per!r}", hint="choose `run` or `conversation`")
        for name, default in (("steps", DEFAULT_STEPS), ("tasks", DEFAULT_TASKS), ("depth", DEFAULT_DEPTH)):
            if getattr(self, name) is _UNSET:
                object.__setattr__(self, name, default if self.per == "run" else None)
        for name, bound in vars(self).items():
            if bound is not None and name not in _NO_BOUNDS:
                _check(name, bound)
        if self.unpriced not in ("refuse", "allow"):
            raise InvalidInput(f"the limit unpriced cannot be {self.unpriced!r}", hint="choose `refuse` or `allow`")

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are not None, by name."""
        return {name: bound for name, bound in vars(self).items() if bound is not None and name not in _NO_BOUNDS}

    def to_json(self) -> JsonObject:
        """Return the bounds that are not None, `per`, and `unpriced` if it is `allow`."""
        return {**self.bounds, "per": self.per, **({"unpriced": "allow"} if self.unpriced == "allow" else {})}


_FRACTIONS = frozenset({"cost_usd", "wall_seconds"})


def _check(name: str, bound: object) -> None:
    whole = isinstance(bound, int) and not isinstance(bound, bool)
    number = whole or (name in _FRACTIONS and isinstance(bound, float) and math.isfinite(bound))
    if not (number and cast(float, bound) >= 0):
        kind = "number" if name in _FRACTIONS else "whole number"
        raise InvalidInput(f"the limit {name} cannot be {bound!r}", hint=f"give a {kind}, 0 or more, or nothing")


def limits_from_json(value: Json) -> Limits:
    """Return the limits that `to_json` wrote. Missing bounds are None, not the defaults.

    Raises:
        InvalidInput: A key or a value is invalid.
    """
    valid_names = [field.name for field in fields(Limits)]
    data = dict(cast(JsonObject, value)) if isinstance(value, dict) else None
    if data is not None and "iterations" in data:  # the name of `steps` in old logs
        data["steps"] = data.pop("iterations")
    if data is None or not data.keys() <= set(valid_names):
        raise InvalidInput(f"invalid limits {value!r}", hint=f"known limits: {', '.join(valid_names)}")
    # Old logs have no `per`; their limits counted the conversation.
    unset: JsonObject = {"per": "conversation", "steps": None, "tasks": None, "depth": None}
    return Limits(**(unset | data))


def check(limits: Limits, usage: Usage, *, elapsed_seconds: float = 0.0, steps: int = 0) -> LimitReached | None:
    """Return the first bound that is reached; None if none is. `tasks` and `depth` are checked when tasks start.

    Args:
        usage: Of the run or the conversation, as `limits.per` says. An unknown cost reaches any bound, unless
            `unpriced` allows it.
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
        "cost_usd": _require_known_cost(limits, usage),
        "wall_seconds": elapsed_seconds,
        "steps": steps,
    }
    for name, bound in bounds.items():
        if name in values and values[name] >= bound:
            return LimitReached(limit=name, value=float(values[name]), bound=float(bound))
    return None


def _require_known_cost(limits: Limits, usage: Usage) -> float:
    """Return the cost; for tokens without a price the bound itself, unless `unpriced` allows them."""
    unknown = usage.cost_usd is None and usage.input_tokens + usage.output_tokens > 0
    if unknown and limits.unpriced == "refuse":
        return limits.cost_usd or 0.0
    return usage.cost_usd or 0.0


def narrower(a: Limits, b: Limits) -> Limits:
    """Return the smaller of each pair of bounds. Both have the same `per`.

    Raises:
        InvalidInput: One is per run, the other per conversation.
    """
    if a == b:
        return a
    if a.per != b.per:
        raise InvalidInput(f"limits per {a.per} and per {b.per} cannot be compared", hint="give both")
    a_bounds, b_bounds = a.bounds, b.bounds
    smaller: dict[str, Any] = {
        name: min(bounds[name] for bounds in (a_bounds, b_bounds) if name in bounds)
        for name in a_bounds.keys() | b_bounds.keys()
    }
    both = a.unpriced == b.unpriced == "allow"
    # Explicitly None: a `Limits` without them would get the defaults, which neither side has.
    unset: dict[str, Any] = {"steps": None, "tasks": None, "depth": None}
    return Limits(**(unset | smaller), per=a.per, unpriced="allow" if both else "refuse")


def allows_change(old: Limits, new: Limits) -> bool:
    """Whether no bound of `new` is wider than that of `old`, as a change by a fork must be."""
    return narrower(old, new) == new
