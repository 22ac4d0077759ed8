"""Agents: what they are, how they are built from specs, and the models they use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.agents.agent import get_agent as get_agent
    from bough.agents.agent import run_agent as run_agent
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.agents.agent": "get_agent run_agent",
        },
    )
