"""The A2A card of an agent: its description, skills, addresses and authentication.

Source: the A2A protocol 1.0, section 4.4; 0.3, section 5.5.
"""

from __future__ import annotations

from typing import Any

from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    APIKeySecurityScheme,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

import bough
from bough.agents.spec import AgentSpec

VERSIONS = ("1.0", "0.3")
BINDINGS = ("JSONRPC", "HTTP+JSON")
_MODES = ("text/plain", "application/json")


def build_card(spec: AgentSpec, url: str, *, needs_key: bool = True) -> AgentCard:
    """Return the card of an agent at an address, with both bindings and both versions.

    Args:
        needs_key: False on a server without keys; the card then demands none.
    """
    requirements = [SecurityRequirement(schemes={name: StringList()}) for name in ("key", "bearer")]
    return AgentCard(
        name=spec.name,
        description=spec.description or f"The agent {spec.name} of a bough server.",
        version=bough.__version__,
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
            for version in VERSIONS
            for binding in BINDINGS
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
        security_schemes={
            "key": SecurityScheme(
                api_key_security_scheme=APIKeySecurityScheme(location="header", name="X-Session-API-Key")
            ),
            "bearer": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer")),
        },
        security_requirements=requirements if needs_key else [],
        default_input_modes=_MODES,
        default_output_modes=_MODES,
        skills=_describe_skills(spec),
    )


def _describe_skills(spec: AgentSpec) -> list[AgentSkill]:
    """Return the agent's skills and sub-agents; without either, the agent itself as one skill."""
    abilities = [(skill.name, skill.description) for skill in spec.skills or ()]
    abilities += [(agent.name, agent.description or agent.name) for agent in spec.sub_agents]
    abilities = abilities or [(spec.name, spec.description or f"What {spec.name} does.")]
    # Some clients refuse a skill without modes, although those of the card are its default.
    modes: Any = {"input_modes": _MODES, "output_modes": _MODES}
    return [AgentSkill(id=name, name=name, description=about, tags=[spec.name], **modes) for name, about in abilities]
