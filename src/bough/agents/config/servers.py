"""From entries of a configuration to the servers and remote agents that an agent uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bough.agents.config.code import CodeGate
from bough.agents.config.file import ConfigFile, expand, has_variables
from bough.agents.config.schema import A2AClientEntry, McpServerEntry

if TYPE_CHECKING:
    from bough.connect.a2a import A2AClientExtended
    from bough.connect.mcp_config import MCPClientConfig


def make_server(
    name: str, entry: McpServerEntry, file: ConfigFile, *, gate: CodeGate, env: Mapping[str, str]
) -> MCPClientConfig:
    """Return the configuration of an MCP server.

    Raises:
        PermissionDenied: It starts a program or reads the environment, and the file is not trusted.
        Unavailable: A variable that it needs is not set.
    """
    from bough.connect.mcp_config import MCPClientConfig

    place = file.place(("mcp_servers", name))
    values: dict[str, Any] = entry.model_dump(exclude_unset=True)
    if entry.command is not None:
        gate.require_named(place, f"the program {entry.command!r}")
    if has_variables(values):
        gate.require_named(place, "variables of the environment")
    expanded = expand(values, env=env, where=f"mcp_servers.{name}")
    return MCPClientConfig.model_validate({"name": name, **expanded})


def make_remote_agent(
    name: str, entry: A2AClientEntry, file: ConfigFile, *, gate: CodeGate, env: Mapping[str, str]
) -> A2AClientExtended:
    """Return the client of a remote agent; it connects at first use.

    Raises:
        PermissionDenied: Its address would be sent what the file or the environment holds, and it is not trusted.
        Unavailable: A variable that it needs is not set.
    """
    from bough.connect.a2a import A2AClientExtended
    from bough.connect.a2a_config import A2AClientConfig

    place = file.place(("a2a", "clients", name))
    values: dict[str, Any] = entry.model_dump(exclude_unset=True)
    gate.require_named(place, f"the address {entry.url!r}, which would be sent prompts")
    expanded = expand(values, env=env, where=f"a2a.clients.{name}")
    return A2AClientExtended(A2AClientConfig.model_validate({"name": name, **expanded}))
