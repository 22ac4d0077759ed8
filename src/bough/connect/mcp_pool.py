"""The MCP servers of agents: started on first use, shared by all agents with the same configuration, closed when idle.

Source: agentic_patterns (`mcp_servers` of an agent).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO, cast

from pydantic_ai import RunContext
from pydantic_ai.exceptions import AgentRunError, ModelRetry, ToolFailed, ToolFailedError, ToolRetryError
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from bough.connect.config import MCPClientConfig
from bough.connect.server_stderr import ServerStderr, hide_values
from bough.connect.skill_mcp import PASSED_ON, is_closed, send_effect_key
from bough.connect.tool_names import ToolNames, rename_tool
from bough.errors import BoughError, ConnectError

if TYPE_CHECKING:
    from pydantic_ai.mcp import MCPToolset

IDLE_SECONDS = 300.0
"""A server that was not used for this long is closed; the next use starts it again."""

Report = Callable[[Any, BoughError], Awaitable[None]]
_TOOL_ERRORS = (ModelRetry, ToolFailed, ToolFailedError, ToolRetryError, AgentRunError)
"""Errors of a call after which the server can still be used."""


class McpPool:
    """Running MCP servers, one for each distinct configuration.

    Args:
        env: The environment from which the `PASSED_ON` variables are taken; None for that of this process.
        idle_seconds: How long a server may be unused before it is closed.
    """

    def __init__(self, *, env: Mapping[str, str] | None = None, idle_seconds: float = IDLE_SECONDS) -> None:
        self._env = os.environ if env is None else env
        self._idle_seconds = idle_seconds
        self._running: dict[str, MCPToolset[Any]] = {}
        self._stderr: dict[str, ServerStderr] = {}
        self._starting: dict[str, asyncio.Lock] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closing_tasks: set[asyncio.Task[None]] = set()

    async def use(self, config: MCPClientConfig) -> MCPToolset[Any]:
        """Return the running server, starting it if necessary. It is closed after `idle_seconds` without use.

        Raises:
            ConnectError: It cannot be started, or does not respond in time.
        """
        key = config.model_dump_json()
        # One lock for each configuration: concurrent first uses start one server, without waiting for other servers.
        async with self._starting.setdefault(key, asyncio.Lock()):
            if key not in self._running:
                self._running[key] = await self._start(key, config)
        # A call that starts just before the end of the idle time may still take `read_timeout`.
        self._schedule_end(key, self._idle_seconds + config.read_timeout)
        return self._running[key]

    async def drop(self, config: MCPClientConfig, toolset: AbstractToolset[Any] | None) -> None:
        """Close a broken server, unless it has already been replaced. The next use starts a new one."""
        key = config.model_dump_json()
        if self._running.get(key) is toolset:
            await self._end(key)

    async def aclose(self) -> None:
        """Close every server. Idempotent."""
        await asyncio.gather(*(self._end(key) for key in list(self._running)), *self._closing_tasks)

    def _schedule_end(self, key: str, seconds: float) -> None:
        """Close a server after `seconds`. Replaces an earlier schedule."""
        self._cancel_timer(key)
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self._end_idle, key)

    def _end_idle(self, key: str) -> None:
        # Kept in a set: the event loop has only weak references to tasks.
        task = asyncio.ensure_future(self._end(key))
        self._closing_tasks.add(task)
        task.add_done_callback(self._closing_tasks.discard)

    def _cancel_timer(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    async def _end(self, key: str) -> None:
        """Close a server if it runs."""
        self._cancel_timer(key)
        # Removed before the await: a use in the meantime must start a new server, with a new pipe.
        toolset = self._running.pop(key, None)
        if toolset is None:
            return
        stderr = self._stderr.pop(key)
        try:
            await toolset.__aexit__(None, None, None)
        except Exception:  # noqa: BLE001 - the server has ended, even if closing it failed
            return
        finally:
            stderr.close()

    async def _start(self, key: str, config: MCPClientConfig) -> MCPToolset[Any]:
        """Start a server and return its toolset. Raises: see `use`."""
        await asyncio.to_thread(import_module, "pydantic_ai.mcp")  # takes 0.7 s, and most runs do not need it
        stderr = ServerStderr(config.name or config.command or str(config.url), hide_values(config.env))
        toolset = self._make_toolset(config, stderr)
        try:
            async with asyncio.timeout(config.start_timeout):
                await toolset.__aenter__()
                await toolset.list_tools()
        except Exception as error:
            reason = f"no answer within {config.start_timeout:g} s" if isinstance(error, TimeoutError) else str(error)
            lines = stderr.lines()
            last_line = f" ({lines[-1]})" if lines else ""
            stderr.close()
            name = config.name or config.url or config.command
            raise ConnectError(
                f"the MCP server {name!r} cannot be started: {reason}{last_line}",
                hint="check its command or address",
                details={"server": config.name},
            ) from error
        except BaseException:  # cancelled: the pipe's descriptors would leak
            stderr.close()
            raise
        self._stderr[key] = stderr
        return toolset

    def _make_toolset(self, config: MCPClientConfig, stderr: ServerStderr) -> MCPToolset[Any]:
        from pydantic_ai.mcp import MCPToolset

        return MCPToolset(
            self._make_transport(config, stderr),
            id=config.name or None,
            init_timeout=config.start_timeout,
            read_timeout=config.read_timeout,
            tool_error_behavior="failed",
            process_tool_call=send_effect_key,
        )

    def _make_transport(self, config: MCPClientConfig, stderr: ServerStderr) -> Any:
        from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

        if config.command is not None:
            passed = {name: self._env[name] for name in PASSED_ON if name in self._env}
            return StdioTransport(
                command=config.command,
                args=list(config.args),
                env=passed | config.env,
                cwd=config.cwd,
                keep_alive=False,
                log_file=cast("TextIO", stderr),
            )
        token = {} if config.bearer_token is None else {"Authorization": f"Bearer {config.bearer_token}"}
        return StreamableHttpTransport(str(config.url), headers={**config.headers, **token})


class AgentServers(AbstractToolset[Any]):
    """The tools of an agent's MCP servers, which are started concurrently in the first step.

    A server that cannot be started is reported once and omitted: its tools are missing, but the run continues. A
    server that dies during a call is restarted once, in the next step.

    Args:
        report: Called for each omitted server, with the deps of the run and the error.
    """

    def __init__(self, configs: Sequence[MCPClientConfig], *, pool: McpPool, report: Report) -> None:
        self._configs = tuple(configs)
        self._pool = pool
        self._report = report
        self._names = ToolNames()
        self._offered: dict[str, tuple[int, str, ToolsetTool[Any]]] = {}
        self._omitted: set[int] = set()
        self._broken: dict[int, AbstractToolset[Any] | None] = {}

    @property
    def id(self) -> str:
        """A name for logs."""
        return "mcp-servers"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Return the tools of the servers that work, in the order of the configuration."""
        indexes = [index for index in range(len(self._configs)) if index not in self._omitted]
        tool_sets = await asyncio.gather(*(self._list_tools(index, ctx) for index in indexes))
        tools: dict[str, ToolsetTool[Any]] = {}
        for index, server_tools in zip(indexes, tool_sets, strict=True):
            server = self._name_server(index)
            names = self._names.name_tools(server, server_tools)
            for tool, name in names.items():
                self._offered[name] = index, tool, server_tools[tool]
                tools[name] = rename_tool(server_tools[tool], name)
            if (fault := self._names.find_fault(server, names)) is not None:
                await self._report(ctx.deps, fault)
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Call a tool of its server."""
        index, server_name, server_tool = self._offered[name]
        try:
            return await server_tool.toolset.call_tool(server_name, tool_args, ctx, server_tool)
        except _TOOL_ERRORS as error:
            if not is_closed(error):
                raise
            await self._drop(index, _unwrap(tool.toolset))
            raise ToolFailed(f"the MCP server {self._configs[index].name!r} failed: {error}") from error
        except Exception as error:
            await self._drop(index, _unwrap(tool.toolset))
            raise ToolFailed(f"the MCP server {self._configs[index].name!r} failed: {error}") from error

    def _name_server(self, index: int) -> str:
        """Return a server's name, with its position in the configuration if an earlier server has the same name."""
        name = self._configs[index].name
        is_taken = any(config.name == name for config in self._configs[:index])
        return f"{name}_{index + 1}" if is_taken else name

    async def _list_tools(self, index: int, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        config = self._configs[index]
        toolset: AbstractToolset[Any] | None = None
        try:
            toolset = await self._pool.use(config)
            return await _filter_and_prefix(config, toolset).get_tools(ctx)
        except ConnectError as error:
            self._omitted.add(index)
            await self._report(ctx.deps, error)
            return {}
        except Exception as error:  # noqa: BLE001 - any failure of a foreign program is reported and affects no other server
            await self._drop(index, toolset)
            await self._report(ctx.deps, ConnectError(f"the MCP server {config.name!r} failed: {error}"))
            return {}

    async def _drop(self, index: int, toolset: AbstractToolset[Any] | None) -> None:
        """Close a broken server; it is restarted once, and omitted after its second failure."""
        if index in self._broken:
            if self._broken[index] is toolset:  # another call has reported the same failure
                return
            self._omitted.add(index)
        self._broken[index] = toolset
        await self._pool.drop(self._configs[index], toolset)


def _unwrap(toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
    """Return the toolset of the server, which `_filter_and_prefix` wrapped."""
    while isinstance(toolset, WrapperToolset):
        toolset = toolset.wrapped
    return toolset


def _filter_and_prefix(config: MCPClientConfig, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
    """Return the toolset with only the allowed tools, under their prefixed names."""
    # Filtered first: `allowed_tools` has the names without the prefix.
    if (allowed := config.allowed_tools) is not None:
        toolset = toolset.filtered(lambda _, definition: definition.name in allowed)
    return toolset if config.tool_prefix is None else toolset.prefixed(config.tool_prefix)
