"""Plain PydanticAI agents with a configured model, run node by node, for tools that create agents.

Source: agentic_patterns (`get_agent`, `run_agent`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import httpx2
from pydantic_ai import Agent, CallToolsNode, ModelRequestNode, RunContext, UserPromptNode
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage, UserContent
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRun
from pydantic_ai.usage import UsageLimits
from pydantic_graph import End

from bough.agents.config.agents import AgentConfig
from bough.agents.models.resolve import resolve_model
from bough.agents.spec import T
from bough.agents.usage import CallableUsage
from bough.errors import NotFound
from bough.settings import Settings
from bough.types import Json

AgentNode: TypeAlias = UserPromptNode[Any, Any] | ModelRequestNode[Any, Any] | CallToolsNode[Any, Any] | End[Any]
"""One step of a run: the prompt, a model request, the tool calls, or the end."""

_log = logging.getLogger("bough.run")


def get_agent(
    model: Model | str | None = None,
    *,
    config_name: str = "default",
    config_path: Path | str | None = None,
    model_settings: Mapping[str, Json] | None = None,
    http_client: httpx2.AsyncClient | None = None,
    **kwargs: Any,
) -> Agent[Any, Any]:
    """Return a PydanticAI agent; `kwargs` are those of `pydantic_ai.Agent`.

    Args:
        model: A model or a model string. None uses the entry `config_name` of `models` in `config.yaml`, else the
            model of the settings, else the offline model.
        config_path: The configuration file; None finds it as `AgentSpec.from_config` does.
        model_settings: Settings of the model; they take precedence over those of the entry.
        http_client: The client for the provider, if the model is not passed as an object.

    Raises:
        InvalidInput: The configuration or the model's name is invalid.
        NotFound: The configuration has no entry `config_name`.
        Unavailable: The model's key or package, or an environment variable, is missing.
    """
    settings: dict[str, Any] = {}
    if not isinstance(model, Model):
        fields = _read_model_fields(model, config_name, config_path)
        settings = dict(fields.get("settings", {}))
        model = _make_model(fields, http_client)
    settings |= dict(model_settings or {})
    return Agent(model, model_settings=cast(Any, settings or None), **kwargs)


async def run_agent(
    agent: AbstractAgent[Any, T],
    prompt: str | Sequence[UserContent] | None,
    message_history: Sequence[ModelMessage] | None = None,
    usage_limits: UsageLimits | None = None,
    verbose: bool = False,
    catch_exceptions: bool = False,
    ctx: RunContext[Any] | None = None,
) -> tuple[AgentRun[Any, T] | None, list[AgentNode]]:
    """Run an agent and return its run and nodes. `run.result.usage()` also works, and equals `run.result.usage`.

    Args:
        verbose: Whether to log each node, to the logger `bough.run`.
        catch_exceptions: Whether to log an exception and return None with the nodes so far, instead of raising it.
        ctx: The context of the calling tool; the agent gets its deps.
    """
    nodes: list[AgentNode] = []
    try:
        async with agent.iter(
            prompt,
            message_history=message_history,
            usage_limits=usage_limits,
            usage=CallableUsage(),
            deps=None if ctx is None else ctx.deps,
        ) as run:
            async for node in run:
                nodes.append(cast(AgentNode, node))
                if verbose:
                    _log.info("%s", node)
            return run, nodes
    except Exception:
        if not catch_exceptions:
            raise
        _log.exception("an agent failed")
        return None, nodes


def _read_model_fields(name: str | None, config_name: str, config_path: Path | str | None) -> dict[str, Any]:
    """Return the model's fields in `config.yaml`, or the settings' model if the file has no default model."""
    config = AgentConfig.load(None if config_path is None else Path(config_path))
    if name is not None or config_name in config.config.models:
        return config.model_fields(name or config_name)
    if config_name != "default":
        raise NotFound(
            f"no model named {config_name!r}", hint=f"available: {', '.join(config.config.models) or 'none'}"
        )
    settings = Settings.load()
    return {"model": settings.model, "base_url": settings.base_url}


def _make_model(fields: Mapping[str, Any], http_client: httpx2.AsyncClient | None) -> Model:
    """Return the model that the fields describe; with `http_client`, the provider uses that client."""
    model = fields.get("model")
    if isinstance(model, Model):
        return cast("Model[Any]", model)
    if http_client is None or model is None or model == "offline":
        resolved = resolve_model(model, base_url=fields.get("base_url"), env=os.environ, api_key=fields.get("api_key"))
        return resolved.model
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import infer_provider_class

    options = {key: fields[key] for key in ("api_key", "base_url") if fields.get(key)}
    return infer_model(
        model, lambda provider: cast(Any, infer_provider_class(provider))(http_client=http_client, **options)
    )
