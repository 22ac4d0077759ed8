"""Metrics with an upper bound: steps, dollars, seconds. Without a bound they are only shown."""

from __future__ import annotations

from bough.evals import score
from bough.evals.score import Score
from bough.evals.trace import Trace


def steps(trace: Trace, at_most: float | None = None) -> Score:
    """Score the number of responses of the model."""
    return score.at_most("steps", trace.steps, at_most, f"{trace.steps} steps")


def cost_usd(trace: Trace, at_most: float | None = None) -> Score:
    """Score the dollars spent; a price that nobody knows fails a bound, and has no value without one."""
    if trace.cost_usd is None:
        return Score("cost_usd", None, None if at_most is None else False, "price unknown", at_most)
    return score.at_most("cost_usd", round(trace.cost_usd, 9), at_most, f"{trace.cost_usd:.6f} USD")


def duration_seconds(trace: Trace, at_most: float | None = None) -> Score:
    """Score the seconds that its runs took."""
    value = round(trace.duration_seconds, 6)
    return score.at_most("duration_seconds", value, at_most, f"{value:.3f} s")
