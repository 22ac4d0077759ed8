"""The orchestrator: an agent with its sub-agents, skills and servers, entered once and told turn after turn."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.orchestrator.orchestrator import NodeHook, OrchestratorAgent

__all__ = ["AgentSpec", "NodeHook", "OrchestratorAgent"]

_HOMES = {
    "AgentSpec": "bough.agents.spec",
    "NodeHook": "bough.orchestrator.orchestrator",
    "OrchestratorAgent": "bough.orchestrator.orchestrator",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
