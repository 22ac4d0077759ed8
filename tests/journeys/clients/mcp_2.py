"""The client of `mcp` 2.x, as its users write it."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

ProtocolError = MCPError
HTTPError = httpx2.HTTPError


class Connection:
    """A client, with the results of its calls as plain values."""

    def __init__(self, client):
        self._client = client

    async def list_tools(self):
        return [tool.name for tool in (await self._client.list_tools()).tools]

    async def call(self, tool, arguments, progress=None):
        result = await self._client.call_tool(tool, arguments, progress_callback=progress)
        return result.is_error, result.structured_content, "".join(part.text for part in result.content)

    async def list_resources(self):
        return [str(resource.uri) for resource in (await self._client.list_resources()).resources]

    async def read(self, uri):
        return (await self._client.read_resource(uri)).contents[0].text

    @asynccontextmanager
    async def subscribe(self, uri):
        async with self._client.listen(resource_subscriptions=[uri]) as updates:

            async def next_uri():
                return str((await anext(aiter(updates))).uri)

            yield next_uri

    async def call_and_cancel(self, tool, arguments, reached):
        """Cancel a call when `reached` returns."""
        call = asyncio.create_task(self.call(tool, arguments))
        await reached()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


@asynccontextmanager
async def connect_stdio(command, *args):
    parameters = StdioServerParameters(command=command, args=list(args), env=dict(os.environ))
    async with Client(parameters) as client:
        yield Connection(client)


@asynccontextmanager
async def connect_http(url, key):
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield Connection(client)
