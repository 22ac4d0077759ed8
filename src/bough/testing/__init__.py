"""What bough's own tests are built from, for tests of agents, skills and plug-ins elsewhere; imported lazily."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.testing.anthropic_server import AnthropicServer, CacheUse
    from bough.testing.openai_server import Answer, Failure, Hang, OpenAIServer, Received, ServerCall
    from bough.testing.postgres import postgres_server
    from bough.testing.replay import assert_replays
    from bough.testing.scripted import Asked, ScriptedModel, tool_call
    from bough.testing.store import EventStoreContract

__all__ = [
    "Answer",
    "AnthropicServer",
    "Asked",
    "CacheUse",
    "EventStoreContract",
    "Failure",
    "Hang",
    "OpenAIServer",
    "Received",
    "ScriptedModel",
    "ServerCall",
    "assert_replays",
    "postgres_server",
    "tool_call",
]

_HOMES = {
    "bough.testing.anthropic_server": ("AnthropicServer", "CacheUse"),
    "bough.testing.openai_server": ("Answer", "Failure", "Hang", "OpenAIServer", "Received", "ServerCall"),
    "bough.testing.postgres": ("postgres_server",),
    "bough.testing.replay": ("assert_replays",),
    "bough.testing.scripted": ("Asked", "ScriptedModel", "tool_call"),
    "bough.testing.store": ("EventStoreContract",),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            try:
                return getattr(import_module(module), name)
            except ModuleNotFoundError as error:
                from bough.errors import Unavailable

                message = f"bough.testing.{name} needs the package {error.name}"
                raise Unavailable(message, hint=f"pip install {error.name}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
