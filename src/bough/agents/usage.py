"""Usage and cost of model responses, usage that tools add to a run, and known prices of models.

Source: agentic_patterns (`ctx.usage.incr(agent_run.result.usage())`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage, RunUsage

from bough.agents.models.offline import OfflineModel
from bough.agents.models.replay import ReplayModel
from bough.events.model import Usage


@dataclass
class CallableUsage(RunUsage):
    """A `RunUsage` that returns itself when called, so that both `result.usage` and `result.usage()` work."""

    def __call__(self) -> CallableUsage:
        """Return itself."""
        return self


class UsageMeter:
    """Measures the usage that the tools of a run add to PydanticAI's run usage.

    All tools of a run add to the same object. So for parallel calls the sum is exact, but the share of one call may
    contain a part of another call's.
    """

    def __init__(self) -> None:
        self._last_counts = _list_counts(RunUsage())

    def begin(self, usage: RunUsage) -> None:
        """Start measuring. To be called after the responses were recorded, and before tools run."""
        self._last_counts = _list_counts(usage)

    def take(self, usage: RunUsage) -> Usage | None:
        """Return the usage added since the last call of `begin` or `take`, or None if nothing was used."""
        previous = self._last_counts
        self._last_counts = _list_counts(usage)
        added = {name: count - previous[name] for name, count in self._last_counts.items()}
        return Usage(**added) if any(added.values()) else None


def read_usage(response: ModelResponse) -> Usage:
    """Return the usage of a response, with its cost if the model's price is known."""
    usage = response.usage
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_usd=_calculate_cost(response),
    )


def _calculate_cost(response: ModelResponse) -> float | None:
    if not response.model_name or not response.usage.has_values():
        return None
    try:
        return float(response.cost().total_price)
    except (LookupError, AssertionError):  # genai-prices raises these for an unknown model
        return None


def is_priced(model: Model[Any]) -> bool:
    """Whether the model's price is known; True for the offline and replay models, which cost nothing."""
    if isinstance(model, OfflineModel | ReplayModel):
        return True
    # Looked up with a response, like the cost of a real one: the price list also has rules for the names of a provider.
    response = ModelResponse(
        parts=[],
        usage=RequestUsage(input_tokens=1, output_tokens=1),
        model_name=model.model_name,
        provider_name=model.system,
    )
    return _calculate_cost(response) is not None


def _list_counts(usage: RunUsage) -> dict[str, int]:
    return {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
    }
