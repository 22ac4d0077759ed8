"""Usage and cost of model responses, usage that tools add to a run, and whether a model's price is known.

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
    """A `RunUsage` that returns itself when called, so that `result.usage` and `result.usage()` are the same."""

    def __call__(self) -> CallableUsage:
        """Return itself."""
        return self


class UsageMeter:
    """Measures the usage of a run's tools: the part of PydanticAI's run usage that does not come from model responses.

    All tools of a run add to one object: for parallel calls the sum is exact, but the share of one call may include
    part of another's.
    """

    def __init__(self) -> None:
        self._counted = _counts(RunUsage())

    def begin(self, usage: RunUsage) -> None:
        """Start counting: called after responses were recorded and before tools run."""
        self._counted = _counts(usage)

    def take(self, usage: RunUsage) -> Usage | None:
        """Return the usage added since the last call, or None."""
        previous, self._counted = self._counted, _counts(usage)
        added = {name: count - previous[name] for name, count in self._counted.items()}
        return Usage(**added) if any(added.values()) else None


def read_usage(response: ModelResponse) -> Usage:
    """Return the usage of a response, with its cost if the model's price is known."""
    usage = response.usage
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_usd=_cost(response),
    )


def _cost(response: ModelResponse) -> float | None:
    if not response.model_name or not response.usage.has_values():
        return None
    try:
        return float(response.cost().total_price)
    except (LookupError, AssertionError):  # how genai-prices reports a model that it does not know
        return None


def is_priced(model: Model[Any]) -> bool:
    """Whether the price list has the model; True for the offline and replay models, which cost nothing."""
    if isinstance(model, OfflineModel | ReplayModel):
        return True
    # Asked by a response, as the cost of a real one is: a list of names would miss the provider's rules for names.
    response = ModelResponse(
        parts=[],
        usage=RequestUsage(input_tokens=1, output_tokens=1),
        model_name=model.model_name,
        provider_name=model.system,
    )
    return _cost(response) is not None


def _counts(usage: RunUsage) -> dict[str, int]:
    return {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
    }
