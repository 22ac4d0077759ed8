"""The MCP server: handles requests for tools and resources, and sends notifications to subscribers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextContent,
    UnsubscribeRequestParams,
)
from pydantic import ValidationError

from bough import __version__
from bough.errors import BoughError, InvalidInput, explain_error
from bough.events.record import StoredEvent
from bough.server.mcp.conversations import FAILURE, McpConversations
from bough.server.mcp.resources import ServedResources
from bough.server.mcp.tools import TOOLS, ServedTool

_LOG = logging.getLogger("bough.mcp")
_RESULT = TypeVar("_RESULT")

Context = ServerRequestContext[Any]


@dataclass(frozen=True, kw_only=True)
class Served:
    """What the client of a request may use.

    Attributes:
        agents: The agents that it may delegate work to.
    """

    conversations: McpConversations[Any]
    resources: ServedResources
    agents: Sequence[str] = ()


class McpService:
    """Handles the requests of clients.

    Args:
        choose_served: Returns what the client of a request may use.
        tools: The tools that are offered, by name.
    """

    def __init__(self, choose_served: Callable[[Context], Served], *, tools: Mapping[str, ServedTool] = TOOLS) -> None:
        self._choose_served = choose_served
        self._tools = tools
        self._following: dict[tuple[ServerSession, str], asyncio.Task[None]] = {}

    def make_server(self) -> Server[Any]:
        """Return the server with its handlers."""
        return Server(
            "bough",
            version=__version__,
            lifespan=self._live,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=self._listen,
        )

    @asynccontextmanager
    async def _live(self, _: Server[Any]) -> AsyncGenerator[dict[str, Any]]:
        """Serve while the block runs, and end all subscriptions on exit."""
        try:
            yield {}
        finally:
            for task in self._following.values():
                task.cancel()
            await asyncio.gather(*self._following.values(), return_exceptions=True)

    async def _list_tools(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        agents = self._choose_served(ctx).agents
        return ListToolsResult(tools=[tool.declare(agents) for tool in self._tools.values()])

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        async def report(number: float, step: str) -> None:
            await ctx.session.report_progress(number, None, step)

        try:
            tool = self._find_tool(params.name)
            arguments = _validate(tool, params.arguments or {})
            result = await tool.call(self._choose_served(ctx).conversations, arguments, report)
        except BoughError as error:
            return _make_error(explain_error(error))
        except Exception:  # noqa: BLE001 - the boundary of a request: details of an unexpected error are only logged
            _LOG.exception("request %s failed", ctx.request_id)
            return _make_error(f"internal: request {ctx.request_id} failed")
        return CallToolResult(
            content=[TextContent(text=json.dumps(result, ensure_ascii=False))],
            structured_content=result,
            # The error of a task is a text: the call that read the task did not fail.
            is_error=isinstance(result.get(FAILURE), dict),
        )

    async def _list_resources(self, ctx: Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        return await self._convert_errors(
            ctx, self._choose_served(ctx).resources.list(None if params is None else params.cursor)
        )

    async def _list_templates(self, ctx: Context, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return self._choose_served(ctx).resources.list_templates()

    async def _read_resource(self, ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        return await self._convert_errors(ctx, self._choose_served(ctx).resources.read(str(params.uri)))

    async def _subscribe(self, ctx: Context, params: SubscribeRequestParams) -> EmptyResult:
        uri = str(params.uri)
        new_events = await self._convert_errors(ctx, self._choose_served(ctx).resources.follow(uri))
        self._stop_following(ctx, uri)
        self._following[ctx.session, uri] = asyncio.create_task(_notify(new_events, ctx.session, uri))
        return EmptyResult()

    async def _unsubscribe(self, ctx: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        self._stop_following(ctx, str(params.uri))
        return EmptyResult()

    async def _listen(self, ctx: Context, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """Serve the subscriptions of protocol 2026-07-28, where one request is one stream of notifications."""
        uris = params.notifications.resource_subscriptions or []
        streams = {uri: await self._convert_errors(ctx, self._choose_served(ctx).resources.follow(uri)) for uri in uris}
        bus = InMemorySubscriptionBus()
        tasks = [asyncio.create_task(_publish(new_events, bus, uri)) for uri, new_events in streams.items()]
        try:
            return await ListenHandler(bus)(ctx, params)
        finally:
            for task in tasks:
                task.cancel()

    def _stop_following(self, ctx: Context, uri: str) -> None:
        task = self._following.pop((ctx.session, uri), None)
        if task is not None:
            task.cancel()

    def _find_tool(self, name: str) -> ServedTool:
        if name not in self._tools:
            raise InvalidInput(f"there is no tool {name!r:.80}", hint=f"known tools: {', '.join(self._tools)}")
        return self._tools[name]

    async def _convert_errors(self, ctx: Context, result: Awaitable[_RESULT]) -> _RESULT:
        """Return an awaited result, and raise its errors as `MCPError`, which the library sends to the client."""
        try:
            return await result
        except BoughError as error:
            raise MCPError(INVALID_PARAMS, explain_error(error), {"code": error.code}) from error
        except Exception as error:
            _LOG.exception("request %s failed", ctx.request_id)
            raise MCPError(INTERNAL_ERROR, f"internal: request {ctx.request_id} failed") from error


async def serve_stdio(served: Served, *, tools: Mapping[str, ServedTool] = TOOLS) -> None:
    """Serve one client over the standard streams until it closes them."""
    server = McpService(lambda _: served, tools=tools).make_server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _notify(new_events: AsyncIterator[StoredEvent], session: ServerSession, uri: str) -> None:
    async for _ in new_events:
        await session.send_resource_updated(uri)


async def _publish(new_events: AsyncIterator[StoredEvent], bus: InMemorySubscriptionBus, uri: str) -> None:
    async for _ in new_events:
        await bus.publish(ResourceUpdated(uri=uri))


def _validate(tool: ServedTool, arguments: dict[str, Any]) -> Any:
    """Return the arguments as an object of the tool's class.

    Raises:
        InvalidInput: An argument is invalid; the message names it.
    """
    try:
        return tool.arguments.model_validate(arguments)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the arguments"
        raise InvalidInput(f"{field}: {first['msg']}", hint=f"see the input schema of {tool.name}") from error


def _make_error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)
