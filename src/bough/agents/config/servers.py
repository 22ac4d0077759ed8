"""From entries of a configuration to the servers and remote agents that an agent uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bough.agents.config.code import CodeGate
from bough.agents.config.file import ConfigFile, expand, has_variables
from bough.agents.config.schema import McpServerEntry

if TYPE_CHECKING:
    from bough.connect.mcp_config import MCPClientConfig


def make_server(
    name: str, entry: McpServerEntry, file: ConfigFile, *, gate: CodeGate, env: Mapping[str, str]
) -> MCPClientConfig:
    """Return the configuration of an MCP server.

    Raises:
        PermissionDenied: It starts a program or reads the environment, and nobody has trusted the file.
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
