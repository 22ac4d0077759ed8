"""Agents: what they are, how they are built from specs, and the models they use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.agents.agent import get_agent, run_agent

__all__ = ["get_agent", "run_agent"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("bough.agents.agent"), name)
