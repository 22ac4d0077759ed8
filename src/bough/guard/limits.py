"""Limits on what a run or a conversation may use."""

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
"""The default limit of steps, which stops a model that never ends its turn."""
DEFAULT_TASKS = 100
DEFAULT_DEPTH = 4

_UNSET: Any = object()
_OPTIONS = frozenset({"per", "unpriced"})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper bounds; None means no bound. A bound is reached when the value equals it, so 0 allows nothing.

    Attributes:
        requests: Requests to the model.
        total_tokens: Input and output tokens together.
        wall_seconds: Duration of one run.
        steps: Model requests with the tools they call; 500 by default.
        tasks: Tasks started by a conversation and its descendants; 100 by default.
        depth: Levels of sub-agents below a conversation; 4 by default.
        per: `run` counts from the start of a run, so that the next run starts at 0. `conversation` counts all runs,
            including those of fork ancestors, so that it continues only with other limits. The three defaults apply
            to `run` only.
        unpriced: What a limit of cost means for a model without a known price: `refuse` its runs, because the limit
            could not stop them, or `allow` them without that limit.

    Raises:
        InvalidInput: A bound is negative, not a number, or a count that is not an integer.
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
            raise InvalidInput(f"`per` of limits cannot be {self.per!r}", hint="choose `run` or `conversation`")
        for name, default in (("steps", DEFAULT_STEPS), ("tasks", DEFAULT_TASKS), ("depth", DEFAULT_DEPTH)):
            if getattr(self, name) is _UNSET:
                object.__setattr__(self, name, default if self.per == "run" else None)
        for name, bound in vars(self).items():
            if bound is not None and name not in _OPTIONS:
                _require_valid(name, bound)
        if self.unpriced not in ("refuse", "allow"):
            raise InvalidInput(f"the limit unpriced cannot be {self.unpriced!r}", hint="choose `refuse` or `allow`")

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are not None, by name."""
        return {name: bound for name, bound in vars(self).items() if bound is not None and name not in _OPTIONS}

    def to_json(self) -> JsonObject:
        """Return the limits as a log records them: the bounds that are not None, and the options."""
        return {**self.bounds, "per": self.per, **({"unpriced": "allow"} if self.unpriced == "allow" else {})}


_FRACTIONS = frozenset({"cost_usd", "wall_seconds"})


def _require_valid(name: str, bound: object) -> None:
    is_integer = isinstance(bound, int) and not isinstance(bound, bool)
    is_number = is_integer or (name in _FRACTIONS and isinstance(bound, float) and math.isfinite(bound))
    if not is_number or cast(float, bound) < 0:
        kind = "a number" if name in _FRACTIONS else "an integer"
        raise InvalidInput(f"the limit {name} cannot be {bound!r}", hint=f"give {kind} of 0 or more, or leave it out")


def limits_from_json(value: Json) -> Limits:
    """Return the limits that `to_json` recorded. Missing bounds are None and not the defaults.

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
    """Return the first bound that is reached, or None. `tasks` and `depth` are checked when tasks start.

    Args:
        usage: The usage of the run or the conversation, depending on `limits.per`. An unknown cost reaches any bound
            of cost, unless `unpriced` allows it.
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
        "cost_usd": _find_counted_cost(limits, usage),
        "wall_seconds": elapsed_seconds,
        "steps": steps,
    }
    for name, bound in bounds.items():
        if name in values and values[name] >= bound:
            return LimitReached(limit=name, value=float(values[name]), bound=float(bound))
    return None


def _find_counted_cost(limits: Limits, usage: Usage) -> float:
    """Return the cost to compare with the bound. An unknown cost counts as the bound, unless `unpriced` allows it."""
    is_unknown = usage.cost_usd is None and usage.input_tokens + usage.output_tokens > 0
    if is_unknown and limits.unpriced == "refuse":
        return limits.cost_usd or 0.0
    return usage.cost_usd or 0.0


def narrower(first: Limits, second: Limits) -> Limits:
    """Return limits with the smaller of each pair of bounds.

    Raises:
        InvalidInput: The limits differ in `per`.
    """
    if first == second:
        return first
    if first.per != second.per:
        raise InvalidInput(f"limits per {first.per} and per {second.per} cannot be compared", hint="use the same `per`")
    first_bounds, second_bounds = first.bounds, second.bounds
    smaller: dict[str, Any] = {
        name: min(bounds[name] for bounds in (first_bounds, second_bounds) if name in bounds)
        for name in first_bounds.keys() | second_bounds.keys()
    }
    both_allow = first.unpriced == second.unpriced == "allow"
    # Explicitly None, because `Limits` would otherwise set defaults that neither side has.
    unset: dict[str, Any] = {"steps": None, "tasks": None, "depth": None}
    return Limits(**(unset | smaller), per=first.per, unpriced="allow" if both_allow else "refuse")


def allows_change(old: Limits, new: Limits) -> bool:
    """Whether no bound of `new` is higher than that of `old`. A fork may change limits only like this."""
    return narrower(old, new) == new
