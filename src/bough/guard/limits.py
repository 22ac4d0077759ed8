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
Per: TypeAlias = Literal["run", "conversation"]

DEFAULT_STEPS = 500
"""Steps of a run that nobody bounded: a model that never ends does not run for ever."""
DEFAULT_TASKS = 100
DEFAULT_DEPTH = 4

_UNSET: Any = object()
_NO_BOUNDS = frozenset({"per", "unpriced"})


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds; None is unbounded. A bound is reached when the value is at or above it, so 0 allows nothing.

    Attributes:
        requests: Requests to the model.
        total_tokens: Input and output together.
        wall_seconds: Of one run.
        steps: Model requests with the tools they call; 500 in a run unless said otherwise.
        tasks: Tasks started by a conversation and its descendants; 100 unless said otherwise.
        depth: Levels of sub-agents below a conversation; 4 unless said otherwise.
        per: What is counted: `run`, since the run began, so that running again continues; or `conversation`, all of it
            and of what it was forked from, so that only other limits let it continue. The three defaults are a run's.
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
        """The bounds that are set, by name."""
        return {name: bound for name, bound in vars(self).items() if bound is not None and name not in _NO_BOUNDS}

    def to_json(self) -> JsonObject:
        """The bounds that are set, what they count, and whether a cost that nobody knows is allowed."""
        return {**self.bounds, "per": self.per, **({"unpriced": "allow"} if self.unpriced == "allow" else {})}


_FRACTIONS = frozenset({"cost_usd", "wall_seconds"})


def _check(name: str, bound: object) -> None:
    whole = isinstance(bound, int) and not isinstance(bound, bool)
    number = whole or (name in _FRACTIONS and isinstance(bound, float) and math.isfinite(bound))
    if not (number and cast(float, bound) >= 0):
        kind = "number" if name in _FRACTIONS else "whole number"
        raise InvalidInput(f"the limit {name} cannot be {bound!r}", hint=f"give a {kind}, 0 or more, or nothing")


def limits_from_json(value: Json) -> Limits:
    """Return the limits that `to_json` wrote: what is not named is not a bound.

    Those written before `per` counted the whole conversation, and called steps iterations.

    Raises:
        InvalidInput: A key or a value is not one of limits.
    """
    valid_names = [field.name for field in fields(Limits)]
    data = dict(cast(JsonObject, value)) if isinstance(value, dict) else None
    if data is not None and "iterations" in data:
        data["steps"] = data.pop("iterations")
    if data is None or not data.keys() <= set(valid_names):
        raise InvalidInput(f"invalid limits {value!r}", hint=f"known limits: {', '.join(valid_names)}")
    unset: JsonObject = {"per": "conversation", "steps": None, "tasks": None, "depth": None}
    return Limits(**(unset | data))


def check(limits: Limits, usage: Usage, *, elapsed_seconds: float = 0.0, steps: int = 0) -> LimitReached | None:
    """Return the first bound that is reached, None when there is room under all of them.

    Bounds of tasks and depth are looked at where tasks are started.

    Args:
        usage: Summed over what `limits.per` names. A cost that is not known reaches every bound, unless it is
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
        "cost_usd": _require_known_cost(limits, usage),
        "wall_seconds": elapsed_seconds,
        "steps": steps,
    }
    for name, bound in bounds.items():
        if name in values and values[name] >= bound:
            return LimitReached(limit=name, value=float(values[name]), bound=float(bound))
    return None


def _require_known_cost(limits: Limits, usage: Usage) -> float:
    """Return the cost; of tokens that nobody can price the bound itself, unless that is allowed."""
    unknown = usage.cost_usd is None and usage.input_tokens + usage.output_tokens > 0
    if unknown and limits.unpriced == "refuse":
        return limits.cost_usd or 0.0
    return usage.cost_usd or 0.0


def narrower(a: Limits, b: Limits) -> Limits:
    """Return the smaller of each pair of bounds; both count the same.

    Raises:
        InvalidInput: One counts runs, the other conversations.
    """
    if a == b:
        return a
    if a.per != b.per:
        raise InvalidInput(f"limits per {a.per} and per {b.per} cannot be compared", hint="give both")
    a_bounds, b_bounds = a.bounds, b.bounds
    bounds: dict[str, Any] = {
        name: min(own[name] for own in (a_bounds, b_bounds) if name in own)
        for name in a_bounds.keys() | b_bounds.keys()
    }
    both = a.unpriced == b.unpriced == "allow"
    unset: dict[str, Any] = {"steps": None, "tasks": None, "depth": None}
    return Limits(**(unset | bounds), per=a.per, unpriced="allow" if both else "refuse")


def allows_change(old: Limits, new: Limits) -> bool:
    """Whether `new` is nowhere wider than `old`, which is what a fork may change."""
    return narrower(old, new) == new
