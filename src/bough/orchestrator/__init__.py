"""The orchestrator: runs an agent with its sub-agents, skills and servers, turn after turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec as AgentSpec
    from bough.orchestrator.orchestrator import NodeHook as NodeHook
    from bough.orchestrator.orchestrator import OrchestratorAgent as OrchestratorAgent
else:
    from bough.lazy import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "bough.agents.spec": "AgentSpec",
            "bough.orchestrator.orchestrator": "NodeHook OrchestratorAgent",
        },
    )
