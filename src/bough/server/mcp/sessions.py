"""The MCP server over streamable HTTP: its sessions, and the tools and resources that each request may use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from bough.agents.spec import AgentSpec
from bough.server.access import Access
from bough.server.auth.caller import SCOPES
from bough.server.mcp.resources import ServedResources
from bough.server.mcp.serve import McpService, Served
from bough.server.mcp.served import ServedConversations


class McpSessions:
    """The sessions of all clients."""

    def __init__(self) -> None:
        self._manager = StreamableHTTPSessionManager(McpService(self._choose_served).make_server())

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """Serve while the block runs. The task that enters it must exit it, because it has a cancel scope of anyio."""
        async with self._manager.run():
            yield

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose caller was authenticated, and is in `scope["state"]["access"]`."""
        caller = scope["state"]["access"].caller
        # The library compares this id, so a session accepts only requests with the key that opened it.
        token = AccessToken(token="", client_id=f"{caller.tenant}/{caller.key}", scopes=[])
        scope["user"] = AuthenticatedUser(token)
        await self._manager.handle_request(scope, receive, send)

    @staticmethod
    def _choose_served(ctx: ServerRequestContext[Any]) -> Served:
        """Return the conversations, resources and agents of the caller of a request."""
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
