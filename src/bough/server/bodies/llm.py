"""The model of an agent in OpenHands' form. Its fields are converted, stored without effect, or refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from bough.agents.retry_policy import RetryPolicy
from bough.errors import InvalidInput
from bough.server.bodies.agents import LlmBody
from bough.server.bodies.base import is_empty
from bough.server.bodies.openhands_agents import convert_model_name

_REFUSED = (
    "api_version", "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_profile_name",
    "aws_role_name", "aws_session_name", "aws_bedrock_runtime_endpoint", "aws_region_name", "provider_connection_id",
    "extra_headers", "litellm_extra_body", "custom_tokenizer", "ollama_base_url", "fallback_strategy",
)  # fmt: skip
_UNUSED = frozenset({
    "auth_type", "subscription_vendor", "openrouter_site_url", "openrouter_app_name", "stream_idle_timeout",
    "max_message_chars", "max_input_tokens", "model_canonical_name", "api_mode", "capability_overrides",
    "input_cost_per_token", "output_cost_per_token", "stream", "drop_params", "disable_vision", "disable_stop_word",
    "caching_prompt", "log_completions", "log_completions_folder", "native_tool_calling", "force_string_serializer",
    "inline_image_urls", "reasoning_summary", "enable_encrypted_reasoning", "prompt_cache_retention", "usage_id",
    "is_subscription", "kind",
})  # fmt: skip
"""Fields without effect here: names, folders, prices and modes of OpenHands' library. Responses always stream."""

_NUMBERS: Mapping[str, tuple[str, float, float]] = {
    "temperature": ("temperature", 0, 2),
    "top_p": ("top_p", 0, 1),
    "top_k": ("top_k", 0, 2**31),
    "max_output_tokens": ("max_tokens", 1, 2**31),
    "seed": ("seed", -(2**63), 2**63),
    "timeout": ("timeout", 0, 86_400),
}
"""For each field of OpenHands: the name of PydanticAI's setting, its minimum and its maximum."""

_INTEGERS = frozenset({"top_k", "max_output_tokens", "seed"})
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_OPENHANDS_BUDGET = 200_000
_OPENHANDS_RETRIES: Mapping[str, float] = {
    "num_retries": 5, "retry_multiplier": 8.0, "retry_min_wait": 8, "retry_max_wait": 64,
}  # fmt: skip


def parse_model(llm: LlmBody) -> str:
    """Return bough's model string: `provider/name` of OpenHands becomes `provider:name`."""
    return convert_model_name(llm.model)


def parse_model_settings(llm: LlmBody) -> dict[str, Any]:
    """Return PydanticAI's settings for the model's requests.

    Raises:
        InvalidInput: A field is unknown or has an unsupported value; the message names it.
    """
    extra: Mapping[str, Any] = llm.model_extra or {}
    _require_known(extra)
    settings: dict[str, Any] = {}
    for name, (setting, low, high) in _NUMBERS.items():
        if extra.get(name) is not None:
            settings[setting] = _parse_number(name, extra[name], low, high)
    return settings | _parse_thinking(parse_model(llm), extra)


def parse_retry_policy(llm: LlmBody) -> RetryPolicy | None:
    """Return the retry policy of a body; None if all values are the defaults that OpenHands' client always sends.

    Raises:
        InvalidInput: A field is not a number, or out of range.
    """
    extra: Mapping[str, Any] = llm.model_extra or {}
    posted = {name: extra[name] for name in _OPENHANDS_RETRIES if extra.get(name) is not None}
    if all(value == _OPENHANDS_RETRIES[name] for name, value in posted.items()):
        return None
    values = {**_OPENHANDS_RETRIES, **{name: _parse_number(name, value, 0, 86_400) for name, value in posted.items()}}
    return RetryPolicy(
        attempts=1 + round(values["num_retries"]),
        base_seconds=max(values["retry_multiplier"], values["retry_min_wait"]),
        max_wait_seconds=values["retry_max_wait"],
    )


def _require_known(extra: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` if a field is unknown or refused; empty fields pass."""
    for name in _REFUSED:
        if not is_empty(extra.get(name)):
            raise _make_refusal(name, "not supported", "models are reached through the operator's settings")
    if extra.get("auth_type") not in (None, "api_key"):
        raise _make_refusal("auth_type", "only api_key is supported", "leave it out")
    known_names = {*_UNUSED, *_REFUSED, *_NUMBERS, *_OPENHANDS_RETRIES, "reasoning_effort", "extended_thinking_budget"}
    for name, value in extra.items():
        if name not in known_names and not is_empty(value):
            near = get_close_matches(name, known_names, 1)
            raise _make_refusal(name, "no such field", f"did you mean `{near[0]}`?" if near else "leave it out")


def _parse_thinking(model: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for thinking: a token budget of Anthropic's models, or an effort.

    Raises:
        InvalidInput: The budget or the effort is not supported.
    """
    budget, effort = extra.get("extended_thinking_budget"), extra.get("reasoning_effort")
    if budget not in (None, _OPENHANDS_BUDGET):
        tokens = _parse_number("extended_thinking_budget", budget, 1024, 2**31)
        if not model.startswith("anthropic:"):
            problem = "only Anthropic's models have a budget"
            raise _make_refusal("extended_thinking_budget", problem, "give reasoning_effort")
        return {"anthropic_thinking": {"type": "enabled", "budget_tokens": tokens}}
    if effort is None:
        return {}
    if effort not in _EFFORTS:
        raise _make_refusal("reasoning_effort", "no such effort", f"one of {', '.join(_EFFORTS)}")
    return {"thinking": False if effort == "none" else effort}


def _parse_number(name: str, value: Any, low: float, high: float) -> Any:
    """Return the number of a field; an integer for the fields in `_INTEGERS`.

    Raises:
        InvalidInput: It is not such a number, or not between `low` and `high`.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high or (name in _INTEGERS and value != int(value)):
        kind = "an integer" if name in _INTEGERS else "a number"
        raise _make_refusal(name, f"not {kind} in the range", f"from {low:g} to {high:g}")
    return int(value) if name in _INTEGERS else value


def _make_refusal(name: str, problem: str, hint: str) -> InvalidInput:
    field = f"agent.llm.{name}"
    return InvalidInput(f"{field}: {problem}", hint=hint, details={"field": field})
