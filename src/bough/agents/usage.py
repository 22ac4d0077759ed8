"""What responses used, what tools add to a run, and usage that can be read as `result.usage` and `result.usage()`.

Source: agentic_patterns (`ctx.usage.incr(agent_run.result.usage())`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RunUsage

from bough.events.model import Usage


@dataclass
class CallableUsage(RunUsage):
    """A `RunUsage` that returns itself when it is called."""

    def __call__(self) -> CallableUsage:
        """Return itself."""
        return self


class UsageMeter:
    """Measures the usage of a run's tools: the part of PydanticAI's run usage that is not from responses or children.

    All tools of a run add to one object: for parallel calls the sum is exact, but the share of one call may include
    part of another's.
    """

    def __init__(self) -> None:
        self._counted = _counts(RunUsage())

    def begin(self, usage: RunUsage) -> None:
        """Count from here: called after responses were recorded and before tools run."""
        self._counted = _counts(usage)

    def take(self, usage: RunUsage) -> Usage | None:
        """Return what was added since the last call, or None."""
        before, self._counted = self._counted, _counts(usage)
        added = {name: count - before[name] for name, count in self._counted.items()}
        return Usage(**added) if any(added.values()) else None


def usage_of(response: ModelResponse) -> Usage:
    """Return what a response consumed; the cost where the prices of the model are known."""
    used = response.usage
    return Usage(
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cache_read_tokens=used.cache_read_tokens,
        cache_write_tokens=used.cache_write_tokens,
        cost_usd=_cost(response),
    )


def _cost(response: ModelResponse) -> float | None:
    if not response.model_name or not response.usage.has_values():
        return None
    try:
        return float(response.cost().total_price)
    except (LookupError, AssertionError):  # prices unknown to the price list
        return None


def _counts(usage: RunUsage) -> dict[str, int]:
    return {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
    }
