"""`bough mcp --server`: relays messages between a client on stdio and the `/mcp` of a server.

Messages are not changed, so the server's tools and resources are the only implementation.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable
from typing import Protocol

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from bough.conversation.remote.transport import KEY_VARIABLE
from bough.errors import Unavailable

_CONNECT_SECONDS = 10.0
_READ_SECONDS = 3600.0
"""Long, because a run may send no message for a long time, and the server's heartbeats are not messages."""


class _Sender(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...


async def relay_stdio(url: str) -> None:
    """Relay one client over the standard streams until it closes them. The key is read from `BOUGH_API_KEY`.

    Raises:
        Unavailable: The server cannot be reached, or refused the key.
    """
    key = os.environ.get(KEY_VARIABLE)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=_READ_SECONDS)
    async with httpx2.AsyncClient(headers=headers, timeout=timeout) as http:
        await _require_server(http, url)
        async with (
            stdio_server() as (from_client, to_client),
            streamable_http_client(f"{url.rstrip('/')}/mcp", http_client=http) as (from_server, to_server),
            anyio.create_task_group() as relaying,
        ):
            relaying.start_soon(_forward, from_server, to_client)
            await _forward(from_client, to_server)
            relaying.cancel_scope.cancel()  # the client has closed its streams and reads no more responses


async def _forward(source: AsyncIterable[SessionMessage | Exception], target: _Sender) -> None:
    async for message in source:
        if isinstance(message, Exception):
            continue  # a line that is not a message has no id, so it gets no response
        await target.send(SessionMessage(message.message))


async def _require_server(http: httpx2.AsyncClient, url: str) -> None:
    """Check that the server responds and accepts the key, so that the client gets an error at once.

    Raises:
        Unavailable: The server cannot be reached, or refused the key.
    """
    try:
        response = await http.get(f"{url.rstrip('/')}/api/conversations/count")
    except httpx2.HTTPError as error:
        hint = "is `bough serve` running there?"
        raise Unavailable(f"the server {url} cannot be reached: {type(error).__name__}", hint=hint) from error
    if response.status_code == 401:
        raise Unavailable(f"the server {url} refuses the key", hint=f"set {KEY_VARIABLE} to a key of that server")
