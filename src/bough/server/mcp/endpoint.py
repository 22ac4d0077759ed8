"""`/mcp`: the tools and resources of `bough mcp` over streamable HTTP. Keys, limits and tenants are those of routes.

The library `mcp` is imported at the first request, so a server with REST clients only never loads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from bough.errors import Malformed
from bough.server.access import Access, authenticate, read_key, wait_refused
from bough.server.requests.strict_json import describe_unreadable, read_json_body, replay

if TYPE_CHECKING:
    from bough.server.mcp.sessions import McpSessions

PATH = "/mcp"


class _Stream:
    """Sends the end of a response if the library omits it, which it does after a disconnect that is only reported."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_open = False

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        await self._send(message)
        self._is_open = message["type"] == "http.response.start" or bool(message.get("more_body"))

    async def complete(self) -> None:
        """Send the end of the response unless it was sent."""
        if self._is_open:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})


class McpEndpoint:
    """The ASGI application behind `/mcp`."""

    def __init__(self) -> None:
        self._draining = asyncio.Event()
        self._stopping = asyncio.Event()
        self._opened: asyncio.Future[McpSessions] | None = None
        self._serving: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def live(self) -> AsyncGenerator[None]:
        """Accept requests while the block runs, and end all sessions on exit."""
        self._opened, self._serving, self._stopping = None, None, asyncio.Event()
        try:
            yield
        finally:
            await self._end_sessions()

    async def _end_sessions(self) -> None:
        self._stopping.set()
        if self._serving is not None:
            await self._serving

    def drain(self) -> None:
        """End the streams that wait for notifications, because the server is stopping."""
        self._draining.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Unauthenticated: The key is required and missing, or invalid.
            PermissionDenied: The key lacks the scope `mcp`.
        """
        request = Request(scope, receive)
        access = await authenticate(request, read_key(request))
        access.caller.require("read", "mcp")
        scope["state"]["access"] = access
        try:
            body = await read_json_body(request)
        except Malformed as error:
            await JSONResponse(describe_unreadable(error), 400)(scope, receive, send)
            return
        receive = receive if body is None else replay(body, receive)
        # After the key and scope: a request that is refused must not cost the import.
        sessions = await self._open_sessions()
        if request.method != "GET":
            await sessions.handle(scope, receive, send)
            return
        with access.services.limits.stream(access.caller):
            stream = _Stream(send)
            await sessions.handle(scope, self._receive_until_end(receive, access), stream.send)
            await stream.complete()

    async def _open_sessions(self) -> McpSessions:
        """Return the sessions. The first request starts the task that serves them."""
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            # An empty context: the task outlives this request, whose id and trace must not appear in its log lines.
            self._serving = asyncio.create_task(self._serve(self._opened), name="mcp sessions", context=Context())
        # Shielded: other requests wait for the same future when the client of this one disconnects.
        return await asyncio.shield(self._opened)

    async def _serve(self, opened: asyncio.Future[McpSessions]) -> None:
        """Serve sessions until the server stops. All in one task: anyio must exit a cancel scope in its task."""
        try:
            sessions = (await asyncio.to_thread(_import_sessions))()
            async with sessions.run():
                opened.set_result(sessions)
                await self._stopping.wait()
        except Exception as error:
            if opened.done():
                raise
            # The waiting requests raise the error, and the next request tries again.
            self._opened = None
            opened.set_exception(error)

    def _receive_until_end(self, receive: Receive, access: Access) -> Receive:
        """Return a `receive` that also reports a disconnect when the server drains or the request's key is revoked."""

        async def receiving() -> Message:
            message = asyncio.ensure_future(receive())
            ends = [asyncio.create_task(end) for end in (self._draining.wait(), wait_refused(access))]
            try:
                await asyncio.wait([message, *ends], return_when=asyncio.FIRST_COMPLETED)
                return message.result() if message.done() else {"type": "http.disconnect"}
            finally:
                for task in (message, *ends):
                    task.cancel()

        return receiving


def _import_sessions() -> type[McpSessions]:
    from bough.server.mcp.sessions import McpSessions

    return McpSessions
