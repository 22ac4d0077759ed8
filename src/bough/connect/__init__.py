"""Servers of others: MCP servers of agents and skills, remote agents by A2A. Everything is imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bough.connect.a2a import A2AClientExtended
    from bough.connect.a2a_config import A2AClientConfig
    from bough.connect.mcp_config import MCPClientConfig

__all__ = ["A2AClientConfig", "A2AClientExtended", "MCPClientConfig"]

_HOMES = {
    "A2AClientConfig": "bough.connect.a2a_config",
    "A2AClientExtended": "bough.connect.a2a",
    "MCPClientConfig": "bough.connect.mcp_config",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
