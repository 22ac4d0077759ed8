"""Converting entries of a configuration to MCP servers and remote agents."""

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
        PermissionDenied: The file, which names a program or an address, is not trusted.
        Unavailable: An environment variable is not set.
    """
    from bough.connect.mcp_config import MCPClientConfig

    place = file.place(("mcp_servers", name))
    values: dict[str, Any] = entry.model_dump(exclude_unset=True)
    if entry.command is not None:
        gate.require_named(place, f"the program {entry.command!r}")
    else:
        gate.require_named(place, f"the address {entry.url!r}, to which calls would be sent")
    if has_variables(values):
        gate.require_named(place, "environment variables")
    expanded = expand(values, env=env, where=f"mcp_servers.{name}")
    return MCPClientConfig.model_validate({"name": name, **expanded})


def make_remote_agent(
    name: str, entry: A2AClientEntry, file: ConfigFile, *, gate: CodeGate, env: Mapping[str, str]
) -> A2AClientExtended:
    """Return the client of a remote agent; it connects on first use.

    Raises:
        PermissionDenied: The file, which names the address to which prompts would be sent, is not trusted.
        Unavailable: An environment variable is not set.
    """
    from bough.connect.a2a import A2AClientExtended
    from bough.connect.a2a_config import A2AClientConfig

    place = file.place(("a2a", "clients", name))
    values: dict[str, Any] = entry.model_dump(exclude_unset=True)
    gate.require_named(place, f"the address {entry.url!r}, to which prompts would be sent")
    expanded = expand(values, env=env, where=f"a2a.clients.{name}")
    return A2AClientExtended(A2AClientConfig.model_validate({"name": name, **expanded}))
