"""The model of an agent in OpenHands' form: settings that apply, that are stored only, or that are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from bough.agents.retry_policy import RetryPolicy
from bough.errors import InvalidInput
from bough.server.bodies.agents import LlmBody
from bough.server.bodies.base import is_empty
from bough.server.bodies.openhands_agents import model_named

_REFUSED = (
    "api_version", "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "aws_profile_name",
    "aws_role_name", "aws_session_name", "aws_bedrock_runtime_endpoint", "aws_region_name", "provider_connection_id",
    "extra_headers", "litellm_extra_body", "custom_tokenizer", "ollama_base_url", "fallback_strategy",
)  # fmt: skip
_KEPT = frozenset({
    "auth_type", "subscription_vendor", "openrouter_site_url", "openrouter_app_name", "stream_idle_timeout",
    "max_message_chars", "max_input_tokens", "model_canonical_name", "api_mode", "capability_overrides",
    "input_cost_per_token", "output_cost_per_token", "stream", "drop_params", "disable_vision", "disable_stop_word",
    "caching_prompt", "log_completions", "log_completions_folder", "native_tool_calling", "force_string_serializer",
    "inline_image_urls", "reasoning_summary", "enable_encrypted_reasoning", "prompt_cache_retention", "usage_id",
    "is_subscription", "kind",
})  # fmt: skip
"""Names, folders, prices and modes of OpenHands' own library. Responses are always streamed, whatever `stream` is."""

_NUMBERS: Mapping[str, tuple[str, float, float]] = {
    "temperature": ("temperature", 0, 2),
    "top_p": ("top_p", 0, 1),
    "top_k": ("top_k", 0, 2**31),
    "max_output_tokens": ("max_tokens", 1, 2**31),
    "seed": ("seed", -(2**63), 2**63),
    "timeout": ("timeout", 0, 86_400),
}
"""For each field of OpenHands: the name of the setting here, and its least and greatest value."""

_WHOLE = frozenset({"top_k", "max_output_tokens", "seed"})
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_OPENHANDS_BUDGET = 200_000
_OPENHANDS_RETRIES: Mapping[str, float] = {
    "num_retries": 5, "retry_multiplier": 8.0, "retry_min_wait": 8, "retry_max_wait": 64,
}  # fmt: skip


def model_string(llm: LlmBody) -> str:
    """Return the model string of bough for OpenHands': `provider/name` becomes `provider:name`."""
    return model_named(llm.model)


def model_settings(llm: LlmBody) -> dict[str, Any]:
    """Return the settings of the model's requests, as PydanticAI names them.

    Raises:
        InvalidInput: A field holds something that cannot be honoured; the message names it.
    """
    extra: Mapping[str, Any] = llm.model_extra or {}
    _require_known(extra)
    settings: dict[str, Any] = {}
    for name, (setting, low, high) in _NUMBERS.items():
        if extra.get(name) is not None:
            settings[setting] = _number(name, extra[name], low, high)
    return settings | _thinking(model_string(llm), extra)


def retry_policy(llm: LlmBody) -> RetryPolicy | None:
    """Return how requests are retried; None if the body has only the values that OpenHands' client always sends.

    Raises:
        InvalidInput: A field is not a number, or out of range.
    """
    extra: Mapping[str, Any] = llm.model_extra or {}
    posted = {name: extra[name] for name in _OPENHANDS_RETRIES if extra.get(name) is not None}
    if not {name for name, value in posted.items() if value != _OPENHANDS_RETRIES[name]}:
        return None
    values = {**_OPENHANDS_RETRIES, **{name: _number(name, value, 0, 86_400) for name, value in posted.items()}}
    return RetryPolicy(
        attempts=1 + round(values["num_retries"]),
        base_seconds=max(values["retry_multiplier"], values["retry_min_wait"]),
        max_wait_seconds=values["retry_max_wait"],
    )


def _require_known(extra: Mapping[str, Any]) -> None:
    for name in _REFUSED:
        if not is_empty(extra.get(name)):
            raise _refusal(name, "not supported", "models are reached through the operator's settings")
    if extra.get("auth_type") not in (None, "api_key"):
        raise _refusal("auth_type", "only api_key is served here", "leave it out")
    known_names = {*_KEPT, *_REFUSED, *_NUMBERS, *_OPENHANDS_RETRIES, "reasoning_effort", "extended_thinking_budget"}
    for name, value in extra.items():
        if name not in known_names and not is_empty(value):
            near = get_close_matches(name, known_names, 1)
            raise _refusal(name, "no such field", f"did you mean `{near[0]}`?" if near else "leave it out")


def _thinking(model: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    budget, effort = extra.get("extended_thinking_budget"), extra.get("reasoning_effort")
    if budget not in (None, _OPENHANDS_BUDGET):
        tokens = _number("extended_thinking_budget", budget, 1024, 2**31)
        if not model.startswith("anthropic:"):
            raise _refusal("extended_thinking_budget", "only Anthropic's models have one", "give reasoning_effort")
        return {"anthropic_thinking": {"type": "enabled", "budget_tokens": tokens}}
    if effort is None:
        return {}
    if effort not in _EFFORTS:
        raise _refusal("reasoning_effort", "no such effort", f"one of {', '.join(_EFFORTS)}")
    return {"thinking": False if effort == "none" else effort}


def _number(name: str, value: Any, low: float, high: float) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high or (name in _WHOLE and value != int(value)):
        raise _refusal(name, "not a number that it can be", f"from {low:g} to {high:g}")
    return int(value) if name in _WHOLE else value


def _refusal(name: str, problem: str, hint: str) -> InvalidInput:
    field = f"agent.llm.{name}"
    return InvalidInput(f"{field}: {problem}", hint=hint, details={"field": field})
