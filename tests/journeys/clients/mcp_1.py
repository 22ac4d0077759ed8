"""The client of `mcp` 1.x, as its users write it."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import httpx
from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import McpError
from pydantic import AnyUrl

ProtocolError = McpError
HTTPError = httpx.HTTPError


class Connection:
    """A session, with the results of its calls as plain values."""

    def __init__(self, session, updated):
        self._session = session
        self._updated = updated

    async def list_tools(self):
        return [tool.name for tool in (await self._session.list_tools()).tools]

    async def call(self, tool, arguments, progress=None):
        result = await self._session.call_tool(tool, arguments, progress_callback=progress)
        return result.isError, result.structuredContent, "".join(part.text for part in result.content)

    async def list_resources(self):
        return [str(resource.uri) for resource in (await self._session.list_resources()).resources]

    async def read(self, uri):
        return (await self._session.read_resource(AnyUrl(uri))).contents[0].text

    @asynccontextmanager
    async def subscribe(self, uri):
        await self._session.subscribe_resource(AnyUrl(uri))
        yield self._updated.get
        await self._session.unsubscribe_resource(AnyUrl(uri))

    async def call_and_cancel(self, tool, arguments, reached):
        """Cancel a call when `reached` returns; this client leaves it to its user to tell the server."""
        request_id = self._session._request_id
        call = asyncio.create_task(self.call(tool, arguments))
        await reached()
        params = types.CancelledNotificationParams(requestId=request_id, reason="changed my mind")
        await self._session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


@asynccontextmanager
async def _session(streams):
    updated = asyncio.Queue()

    async def receive(message):
        if isinstance(message, types.ServerNotification) and isinstance(
            message.root, types.ResourceUpdatedNotification
        ):
            updated.put_nowait(str(message.root.params.uri))

    async with ClientSession(streams[0], streams[1], message_handler=receive) as session:
        await session.initialize()
        yield Connection(session, updated)


@asynccontextmanager
async def connect_stdio(command, *args):
    parameters = StdioServerParameters(command=command, args=list(args), env=dict(os.environ))
    async with stdio_client(parameters) as streams, _session(streams) as connection:
        yield connection


@asynccontextmanager
async def connect_http(url, key):
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        streamable_http_client(url, http_client=http) as streams,
        _session(streams) as connection,
    ):
        yield connection
