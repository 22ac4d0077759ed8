"""`/mcp`: the same tools and resources over streamable HTTP, behind the same keys, limits and tenants as routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from bough.agents.spec import AgentSpec
from bough.errors import Malformed
from bough.server.access import Access, access_of, key_of
from bough.server.auth.caller import SCOPES
from bough.server.mcp.resources import ServedResources
from bough.server.mcp.serve import McpService, Served
from bough.server.mcp.served import ServedConversations
from bough.server.requests.body import describe_unreadable, read_json_body, replay
from bough.server.watch import wait_refused

PATH = "/mcp"


class _Stream:
    """An answer that the library leaves open when it hears that the client is gone; that client is still there."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_open = False

    async def send(self, message: Message) -> None:
        """Send a part of it."""
        await self._send(message)
        self._is_open = message["type"] == "http.response.start" or bool(message.get("more_body"))

    async def complete(self) -> None:
        """Send its end, where that was not sent."""
        if self._is_open:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})


class McpEndpoint:
    """The ASGI application behind `/mcp`."""

    def __init__(self) -> None:
        self._manager: StreamableHTTPSessionManager | None = None
        self._draining = asyncio.Event()

    @asynccontextmanager
    async def live(self) -> AsyncGenerator[None]:
        """Serve while the block runs."""
        server = McpService(self._choose_served).make_server()
        self._manager = StreamableHTTPSessionManager(server)
        async with self._manager.run():
            yield

    def drain(self) -> None:
        """Let streams go that only wait for what may come: the server is about to stop."""
        self._draining.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Unauthenticated: The key is needed and missing, or not a valid one.
            PermissionDenied: The key lacks the scope `mcp`.
        """
        request = Request(scope, receive)
        access = await access_of(request, key_of(request))
        access.caller.require("read", "mcp")
        scope["state"]["access"] = access
        # A session can be used with the key that opened it and no other one; that is what the library compares.
        token = AccessToken(token="", client_id=f"{access.caller.tenant}/{access.caller.key}", scopes=[])
        scope["user"] = AuthenticatedUser(token)
        assert self._manager is not None  # noqa: S101 - requests come while the block of `live` runs
        try:
            body = await read_json_body(request)
        except Malformed as error:
            await JSONResponse(describe_unreadable(error), 400)(scope, receive, send)
            return
        receive = receive if body is None else replay(body, receive)
        with ExitStack() as stack:
            if request.method == "GET":
                stack.enter_context(access.services.limits.stream(access.caller))
                stream = _Stream(send)
                await self._manager.handle_request(scope, self._until_ended(receive, access), stream.send)
                await stream.complete()
                return
            await self._manager.handle_request(scope, receive, send)

    def _until_ended(self, receive: Receive, access: Access) -> Receive:
        """Return what hears that the client is gone as soon as the server drains, or its key is not valid any more."""

        async def receiving() -> Message:
            ends = (self._draining.wait(), wait_refused(access))
            tasks = [asyncio.ensure_future(receive()), *(asyncio.create_task(end) for end in ends)]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                return {"type": "http.disconnect"} if not tasks[0].done() else tasks[0].result()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
            finally:
                for task in tasks:
                    task.cancel()

        return receiving

    def _choose_served(self, ctx: ServerRequestContext[Any]) -> Served:
        request: Any = ctx.request
        access: Access = request.scope["state"]["access"]
        services = access.services

        def find_agent(name: str | None) -> AgentSpec:
            return services.agents.agent_for(access.caller, name)

        names = services.agents.names()
        resources = ServedResources(
            settings=services.settings,
            store=access.store,
            workspace=services.settings.home,
            agents=find_agent,
            agent_names=names,
            transcript=services.transcript,
            may_read=lambda kind: kind not in SCOPES or kind in access.caller.scopes,
        )
        return Served(conversations=ServedConversations(access), resources=resources, agents=names)
