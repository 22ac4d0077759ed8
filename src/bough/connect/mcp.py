"""MCP servers that skills bring: started when the skill becomes active, their tools under its name, stopped at the end.

Source: seed 002 (`mcp_tools`: load, spawn, register, inject).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic_ai import RunContext
from pydantic_ai.toolsets import AbstractToolset, PrefixedToolset, ToolsetTool

from bough.errors import BoughError, ConnectError
from bough.skills import Skill, SkillRegistry
from bough.skills.run.mcp import McpServer, mcp_servers

if TYPE_CHECKING:
    from pydantic_ai.mcp import MCPToolset

START_SECONDS = 30.0
"""How long a server may take until it speaks."""

CALL_SECONDS = 300.0
"""How long one call of a tool may take."""

PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT")
"""What a server sees of the environment besides what its configuration gives it: never a key."""

Named = Callable[[Any], Mapping[str, str]]
Report = Callable[[Any, BoughError], Awaitable[None]]


class SkillServers(AbstractToolset[Any]):
    """The tools of all servers of all active skills.

    A server that cannot be started is reported once and left out; the skill works without it.

    Args:
        registry: Only skills in it are asked, so an untrusted project's servers are never started.
        active: Returns the names of the active skills, given a tool's deps.
        report: Is told of a server that cannot be started, given the deps.
        env: Where `${VARIABLES}` of configurations come from; None takes the process's own.
    """

    def __init__(
        self, registry: SkillRegistry, *, active: Named, report: Report, env: Mapping[str, str] | None = None
    ) -> None:
        self._registry = registry
        self._active = active
        self._report = report
        self._env = os.environ if env is None else env
        self._started: dict[str, list[AbstractToolset[Any]]] = {}
        self._open: list[MCPToolset[Any]] = []

    @property
    def id(self) -> str:
        """A name for logs."""
        return "skill-servers"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools of the active skills' servers, starting those that are not running yet."""
        tools: dict[str, ToolsetTool[Any]] = {}
        for name in sorted(self._active(ctx.deps)):
            if name in self._registry:
                for toolset in await self._of(name, ctx.deps):
                    tools |= await toolset.get_tools(ctx)
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Call a tool of the server it came from."""
        return await tool.toolset.call_tool(name, tool_args, ctx, tool)

    async def aclose(self) -> None:
        """Stop every server. Closing twice is fine."""
        opened, self._open, self._started = self._open, [], {}
        for toolset in reversed(opened):
            await toolset.__aexit__(None, None, None)

    async def _of(self, name: str, deps: Any) -> list[AbstractToolset[Any]]:
        if name not in self._started:
            skill = self._registry.get(name)
            self._started[name] = []
            try:
                servers = mcp_servers(skill, self._env)
            except BoughError as error:
                await self._report(deps, error)
                return []
            for server in servers:
                await self._start(skill, server, deps)
        return self._started[name]

    async def _start(self, skill: Skill, server: McpServer, deps: Any) -> None:
        await asyncio.to_thread(import_module, "pydantic_ai.mcp")  # 0.7 s that most runs never need
        toolset = _toolset(skill, server, self._env)
        try:
            await toolset.__aenter__()
        except Exception as error:  # noqa: BLE001 - whatever a foreign program does is told, and harms nobody else
            await self._report(
                deps,
                ConnectError(
                    f"the MCP server {server.name!r} of the skill {skill.name!r} cannot be started: {error}",
                    hint="check its command or address",
                ),
            )
            return
        self._open.append(toolset)
        self._started[skill.name].append(PrefixedToolset(toolset, skill.name.replace("-", "_")))


def _toolset(skill: Skill, server: McpServer, env: Mapping[str, str]) -> MCPToolset[Any]:
    from pydantic_ai.mcp import MCPToolset

    return MCPToolset(
        _transport(server, env),
        id=f"{skill.name}/{server.name}",
        init_timeout=START_SECONDS,
        read_timeout=CALL_SECONDS,
        tool_error_behavior="failed",
    )


def _transport(server: McpServer, env: Mapping[str, str]) -> Any:
    from fastmcp.client.transports import SSETransport, StdioTransport, StreamableHttpTransport

    match server.transport:
        case "stdio":
            passed = {name: env[name] for name in PASSED_ON if name in env}
            return StdioTransport(
                command=server.command,
                args=list(server.args),
                env=passed | dict(server.env),
                cwd=server.cwd,
                keep_alive=False,
            )
        case "http":
            return StreamableHttpTransport(server.url, headers=dict(server.headers))
        case "sse":
            return SSETransport(server.url, headers=dict(server.headers))
