"""A model's response on its way into the log."""

from __future__ import annotations

from dataclasses import replace

from pydantic_ai.messages import ModelResponse, ModelResponsePart, ToolCallPart

from bough.events.model import FinishReason


def with_distinct_calls(response: ModelResponse) -> ModelResponse:
    """Return the response with an id of its own for every tool call; as it is where that is so already.

    A call is known by its id from here on. Some models leave it empty or give it twice, and two calls that share one
    could not be told apart: the second would be answered with the first one's result.
    """
    ids = [call.tool_call_id for call in response.tool_calls]
    if all(ids) and len(set(ids)) == len(ids):
        return response
    used_ids = set(ids)
    previous_ids: set[str] = set()
    parts: list[ModelResponsePart] = []
    for part in response.parts:
        if isinstance(part, ToolCallPart) and (not part.tool_call_id or part.tool_call_id in previous_ids):
            part = replace(part, tool_call_id=_free(part.tool_call_id or "call", used_ids))
            used_ids.add(part.tool_call_id)
        if isinstance(part, ToolCallPart):
            previous_ids.add(part.tool_call_id)
        parts.append(part)
    return replace(response, parts=parts)


def _free(prefix: str, used_ids: set[str]) -> str:
    number = 2
    while f"{prefix}-{number}" in used_ids:
        number += 1
    return f"{prefix}-{number}"


_SAYS_WHY = frozenset(
    {
        *("openai", "azure", "anthropic", "google", "google-gla", "google-vertex", "google-cloud", "mistral"),
        *("mistral_ai", "groq", "cohere", "bedrock", "openrouter", "deepseek"),
    }
)
"""Providers whose responses say why they ended, as `ModelResponse.provider_name` names them."""

_MADE_UP = frozenset({"openai", "azure"})
"""Providers for which PydanticAI says `stop` where their server said nothing; its own word is in the details."""


def finish_of(response: ModelResponse, *, streamed: bool) -> tuple[FinishReason, bool]:
    """Return why a response ended, and whether its text is cut off.

    A stream without a reason is cut off where its provider gives one: it ended before that. Servers that only speak
    OpenAI's format need not give one; what they say they used comes behind the whole answer.
    """
    reason: FinishReason = response.finish_reason or "none"
    if streamed and reason == "stop" and response.provider_name in _MADE_UP:
        reason = "stop" if "finish_reason" in (response.provider_details or {}) else "none"
    silent = streamed and reason == "none" and response.provider_name in _SAYS_WHY
    if silent and response.provider_name in _MADE_UP and response.usage.has_values():
        silent = False
    return reason, reason in ("length", "content_filter", "error") or response.state != "complete" or silent
