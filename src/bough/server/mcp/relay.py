"""`bough mcp --server`: relays a client's messages on stdio to the `/mcp` of a server, and the answers back.

Messages pass unchanged, so tools and resources have one implementation, the server's.
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
"""A long timeout, since a run may send nothing for long, and the server's heartbeats are not messages."""


class _Sender(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...


async def relay_stdio(url: str) -> None:
    """Relay one client over the standard streams until it closes them. `BOUGH_API_KEY` is the key.

    Raises:
        Unavailable: The server cannot be reached, or refused the key.
    """
    key = os.environ.get(KEY_VARIABLE)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    timeout = httpx2.Timeout(_CONNECT_SECONDS, read=_READ_SECONDS)
    async with httpx2.AsyncClient(headers=headers, timeout=timeout) as http:
        await _require_server(http, url)
        async with (
            stdio_server() as (requests, answers),
            streamable_http_client(f"{url.rstrip('/')}/mcp", http_client=http) as (responses, sent),
            anyio.create_task_group() as relaying,
        ):
            relaying.start_soon(_pass_on, responses, answers)
            await _pass_on(requests, sent)
            relaying.cancel_scope.cancel()  # the client has closed its end and reads no more answers


async def _pass_on(source: AsyncIterable[SessionMessage | Exception], target: _Sender) -> None:
    async for message in source:
        if isinstance(message, Exception):
            continue  # a line that is not a message has no id to answer
        await target.send(SessionMessage(message.message))


async def _require_server(http: httpx2.AsyncClient, url: str) -> None:
    """Check that the server answers and accepts the key, so that the client gets the error at once."""
    try:
        answer = await http.get(f"{url.rstrip('/')}/api/conversations/count")
    except httpx2.HTTPError as error:
        hint = "is `bough serve` running there?"
        raise Unavailable(f"the server {url} cannot be reached: {type(error).__name__}", hint=hint) from error
    if answer.status_code == 401:
        raise Unavailable(f"the server {url} refuses the key", hint=f"set {KEY_VARIABLE} to a key of it")
