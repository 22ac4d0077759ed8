"""Usage and cost of model responses, usage that tools add to a run, and known prices of models.

Source: agentic_patterns (`ctx.usage.incr(agent_run.result.usage())`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai.messages import BaseToolCallPart, BinaryContent, FileUrl, ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.usage import RequestUsage, RunUsage

from bough.agents.models.offline import OfflineModel
from bough.agents.models.replay import ReplayModel
from bough.events.model import Usage
from bough.settings import Price


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
        """Start measuring. Call it after the responses are recorded and before tools run."""
        self._last_counts = _list_counts(usage)

    def take(self, usage: RunUsage) -> Usage | None:
        """Return the usage added since the last call of `begin` or `take`, or None if nothing was used."""
        previous = self._last_counts
        self._last_counts = _list_counts(usage)
        added = {name: count - previous[name] for name, count in self._last_counts.items()}
        return Usage(**added) if any(added.values()) else None


def read_usage(response: ModelResponse, prices: Mapping[str, Price]) -> Usage:
    """Return the usage of a response, with its cost if the model's price is known.

    Args:
        prices: `Settings.prices`; they take precedence over known prices.
    """
    usage = response.usage
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_usd=_calculate_cost(response, prices),
    )


def _calculate_cost(response: ModelResponse, prices: Mapping[str, Price]) -> float | None:
    name, usage = response.model_name, response.usage
    if not name or not usage.has_values():
        return None
    price = prices.get(f"{response.provider_name}:{name}") or prices.get(name)
    if price is not None:
        return price.calculate_usd(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
    try:
        return float(response.cost().total_price)
    except (LookupError, AssertionError):  # genai-prices raises these for an unknown model
        return None


def is_priced(model: Model[Any], prices: Mapping[str, Price]) -> bool:
    """Whether the model's price is known; True for the offline and replay models, which cost nothing.

    Args:
        prices: `Settings.prices`.
    """
    return estimate_cost(model, prices, input_tokens=1, output_tokens=1) is not None


def estimate_cost(
    model: Model[Any], prices: Mapping[str, Price], *, input_tokens: int, output_tokens: int
) -> float | None:
    """Return what a request costs if it uses so many tokens, none of them cached; None if the price is not known."""
    if isinstance(model, OfflineModel | ReplayModel):
        return 0.0
    return estimate_named_cost(
        model.system, model.model_name, prices, input_tokens=input_tokens, output_tokens=output_tokens
    )


def estimate_named_cost(
    provider: str, name: str, prices: Mapping[str, Price], *, input_tokens: int, output_tokens: int
) -> float | None:
    """Return what `estimate_cost` returns, for the model of a provider by its name."""
    return _calculate_cost(_make_response(provider, name, input_tokens, output_tokens), prices)


def find_context_window(provider: str, name: str) -> int | None:
    """Return how many tokens a request to a model may have, as the price list tells; None if it does not."""
    try:
        return _make_response(provider, name, 1, 1).cost().model.context_window
    except (LookupError, AssertionError):  # genai-prices raises these for an unknown model
        return None


def _make_response(provider: str, name: str, input_tokens: int, output_tokens: int) -> ModelResponse:
    """Return a response to look a model up with, as for the cost of a real one."""
    # The price list has rules for the names of a provider, and only a response passes through them.
    usage = RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens)
    return ModelResponse(parts=[], usage=usage, model_name=name, provider_name=provider or None)


DEFAULT_OUTPUT_TOKENS = 8_192
"""The tokens that a response is expected to have at most, if the agent sets no `max_tokens`."""

_BYTES_PER_TOKEN = 3
_TOKENS_PER_PART = 8
_TOKENS_PER_FILE = 2_000


def estimate_input_tokens(messages: Sequence[ModelMessage], parameters: ModelRequestParameters | None = None) -> int:
    """Return how many input tokens a request may use. O(parts) of its messages.

    A text counts as one token for three bytes, more than most texts have; an image or a document counts as 2,000.

    Args:
        parameters: The instructions and the tools of the request.
    """
    texts: list[str] = []
    if parameters is not None:
        texts += [str(part.content) for part in parameters.instruction_parts or ()]
        texts += [f"{tool.description}{tool.parameters_json_schema}" for tool in parameters.function_tools]
    tokens = sum(_estimate_text_tokens(text) for text in texts)
    return tokens + sum(_estimate_part_tokens(part) for message in messages for part in message.parts)


def _estimate_text_tokens(text: str) -> int:
    return _TOKENS_PER_PART + len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN


def _estimate_part_tokens(part: Any) -> int:
    if isinstance(part, BaseToolCallPart):
        return _estimate_text_tokens(part.args_as_json_str())
    content = getattr(part, "content", None)
    if isinstance(content, str) or content is None:
        return _estimate_text_tokens(content or "")
    items = cast("Sequence[Any]", content) if isinstance(content, list | tuple) else [content]
    return sum(_estimate_item_tokens(item) for item in items)


def _estimate_item_tokens(item: Any) -> int:
    if isinstance(item, BinaryContent | FileUrl):
        return _TOKENS_PER_FILE
    return _estimate_text_tokens(item if isinstance(item, str) else json.dumps(item, default=str))


def _list_counts(usage: RunUsage) -> dict[str, int]:
    return {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
    }
