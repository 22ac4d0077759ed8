"""Convert a model entry of a configuration to fields of an `AgentSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bough.agents.config.check import is_model_string
from bough.agents.config.code import CodeGate
from bough.agents.config.file import ConfigFile, Place, expand, has_variables
from bough.agents.config.schema import Config, ModelEntry

_OLLAMA = "http://127.0.0.1:11434/v1"
_PLAIN_SETTINGS = frozenset(
    {
        "frequency_penalty", "logit_bias", "max_tokens", "parallel_tool_calls", "presence_penalty", "seed", "stop",
        "stop_sequences", "temperature", "thinking", "timeout", "top_k", "top_p",
    }
)  # fmt: skip
"""Settings that only affect the response. Others could add headers, a body, or servers that the provider calls."""


def read_model(
    name: str | None, config: Config, file: ConfigFile, *, gate: CodeGate, env: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields of a spec that an entry sets: any of `model`, `base_url`, `api_key` and `settings`.

    Args:
        name: A name in `models`, or a model string; None for the entry `default`, if it exists.

    Raises:
        PermissionDenied: The entry uses environment variables, a key or an address, and the file is not trusted.
        Unavailable: An environment variable is not set.
    """
    if name is None:
        if "default" not in config.models:
            return {}
        name = "default"
    if name not in config.models and is_model_string(name):
        return {"model": name}
    value = config.models[name]
    entry = ModelEntry(model=value) if isinstance(value, str) else value
    values = entry.model_dump(exclude_unset=True)
    place = file.place(("models", name))
    # All checks come before `expand`, because an error of `expand` would reveal which variables are set.
    if has_variables(values):
        gate.require_named(place, "environment variables")
    if entry.base_url or entry.endpoint:
        gate.require_named(place, "an address, to which a provider's key would be sent")
    if entry.api_key:
        gate.require_named(place, "a key, whose owner may read what is sent with it")
    check_settings(entry.settings, place, gate)
    return _make_fields(ModelEntry.model_validate(expand(values, env=env, subject=f"models.{name}")))


def check_settings(settings: Mapping[str, Any], place: Place, gate: CodeGate) -> None:
    """Check that a file may set these settings of a model.

    Raises:
        PermissionDenied: A setting could send the conversation to another server, and the file is not trusted.
    """
    for name in settings:
        if name not in _PLAIN_SETTINGS:
            gate.require_named(place, f"the model setting {name!r}")


def _make_fields(entry: ModelEntry) -> dict[str, Any]:
    settings = dict(entry.settings)
    if entry.timeout is not None:
        settings["timeout"] = entry.timeout
    if entry.parallel_tool_calls is not None:
        settings["parallel_tool_calls"] = entry.parallel_tool_calls
    address = entry.base_url or entry.endpoint
    fields: dict[str, Any] = {"settings": settings} if settings else {}
    if entry.api_key is not None:
        fields["api_key"] = entry.api_key
    match entry.model_family:
        case None:
            return {**fields, "model": entry.model, **({"base_url": address} if address else {})}
        case "openai":
            return {**fields, "model": f"openai:{entry.model_name}", **({"base_url": address} if address else {})}
        case "ollama":
            return {**fields, "model": f"openai-chat:{entry.model_name}", "base_url": address or _OLLAMA}
        case "azure":
            fields.pop("api_key", None)  # the model object contains the key
            return {**fields, "model": _make_azure_model(entry)}
        case family:
            return {**fields, "model": f"{family}:{entry.model_name}"}


def _make_azure_model(entry: ModelEntry) -> Any:
    """Return a model object, because a model string cannot contain the endpoint and API version of a deployment."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.azure import AzureProvider

    provider = AzureProvider(
        azure_endpoint=str(entry.endpoint), api_version=entry.api_version, api_key=entry.api_key or "none"
    )
    return OpenAIChatModel(str(entry.model_name), provider=provider)
