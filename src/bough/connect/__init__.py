"""Clients of MCP servers and of remote A2A agents. Everything is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.connect.a2a import A2AClientExtended as A2AClientExtended
    from bough.connect.config import A2AClientConfig as A2AClientConfig
    from bough.connect.config import MCPClientConfig as MCPClientConfig
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.connect.a2a": "A2AClientExtended",
            "bough.connect.config": "A2AClientConfig MCPClientConfig",
        },
    )
