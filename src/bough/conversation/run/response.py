"""A model's response on its way into the log."""

from __future__ import annotations

from dataclasses import replace

from pydantic_ai.messages import ModelResponse, ModelResponsePart, ToolCallPart

from bough.events.model import Usage


def with_distinct_calls(response: ModelResponse) -> ModelResponse:
    """Return the response with an id of its own for every tool call; as it is where that is so already.

    A call is known by its id from here on. Some models leave it empty or give it twice, and two calls that share one
    could not be told apart: the second would be answered with the first one's result.
    """
    ids = [call.tool_call_id for call in response.tool_calls]
    if all(ids) and len(set(ids)) == len(ids):
        return response
    taken = set(ids)
    seen: set[str] = set()
    parts: list[ModelResponsePart] = []
    for part in response.parts:
        if isinstance(part, ToolCallPart) and (not part.tool_call_id or part.tool_call_id in seen):
            part = replace(part, tool_call_id=_free(part.tool_call_id or "call", taken))
            taken.add(part.tool_call_id)
        if isinstance(part, ToolCallPart):
            seen.add(part.tool_call_id)
        parts.append(part)
    return replace(response, parts=parts)


def _free(wanted: str, taken: set[str]) -> str:
    number = 2
    while f"{wanted}-{number}" in taken:
        number += 1
    return f"{wanted}-{number}"


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
