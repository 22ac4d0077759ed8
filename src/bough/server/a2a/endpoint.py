"""`/a2a/{agent}`: JSON-RPC, REST and the card of each agent, with the server's keys, scopes and limits.

The library `a2a` is imported at the first request, so a server without A2A clients never loads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from bough.errors import Malformed, NotFound
from bough.server.a2a.dialects import adapt_request
from bough.server.access import authenticate, read_key
from bough.server.environment.agents import DEFAULT
from bough.server.requests.strict_json import describe_unreadable, read_json_body, replay
from bough.server.services import Services
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.server.a2a.applications import AgentApplications

CARD_PATH = "/.well-known/agent-card.json"
PATHS = (CARD_PATH, "/a2a/{agent}", "/a2a/{agent}/{path:path}")
"""The routes of a server that serves all agents."""

ROOT_PATHS = ("/", "/{path:path}")
"""The routes of a server that serves one agent at the root."""


class A2AEndpoint:
    """The ASGI application behind `/a2a/{agent}`, or behind `/` if the server has one A2A agent.

    Args:
        only: The agent served at the root; None serves all agents below their names.
    """

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self._applications: AgentApplications | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Unauthenticated: The key is required and missing, or invalid.
            PermissionDenied: The key lacks the scope `a2a`.
            NotFound: There is no such agent.
        """
        request = Request(scope, receive)
        services: Services = request.app.state.services
        name, prefix = self._find_agent(request)
        is_card = request.method == "GET" and request.url.path.endswith(CARD_PATH)
        needs_key = True
        if not (is_card and services.server.public_card):
            access = await authenticate(request, read_key(request))
            access.caller.require("read" if request.method == "GET" else "write", "a2a")
            scope["state"]["access"] = access
            needs_key = access.caller.key is not None
        if name not in services.agents.names():
            raise NotFound("there is no such agent", hint="GET /api/agents lists the agents")
        url = f"{str(request.base_url).rstrip('/')}{prefix}"
        # Starlette matches the path below the prefix, where the root of the application is "/".
        path = scope["path"] if scope["path"] != prefix else f"{prefix}/"
        app_scope = {**scope, "path": path, "root_path": f"{scope.get('root_path', '')}{prefix}"}
        try:
            body = await read_json_body(request)
        except Malformed as error:
            if path != f"{prefix}/":  # only JSON-RPC has a separate code for an unreadable body
                raise
            await JSONResponse(describe_unreadable(error))(scope, receive, send)
            return
        if body is not None:
            body, send = adapt_request(body, send)
        # Only now: a refused request must not cause the import.
        applications = await self._load_applications()
        app = applications.find(services, name, url, needs_key=needs_key)
        await app(app_scope, receive if body is None else replay(body, receive), send)

    async def _load_applications(self) -> AgentApplications:
        if self._applications is None:
            applications_class = await asyncio.to_thread(_import_applications)
            # Another request may have set the attribute during the import, and its applications may be in use.
            self._applications = self._applications or applications_class()
        return self._applications

    def _find_agent(self, request: Request) -> tuple[str, str]:
        """Return the name of the requested agent, and the prefix of its paths."""
        if self._only is not None:
            return self._only, ""
        if request.url.path == CARD_PATH:
            return DEFAULT, ""
        name = request.path_params["agent"]
        return name, f"/a2a/{name}"


def describe_for_push(services: Services) -> Callable[[str, str], Awaitable[JsonObject]]:
    """Return a function that builds the body of a push notification from the current state of a task."""

    async def describe(tenant: str, task: str) -> JsonObject:
        # Imported here too: after a restart, a delivery may be due before the first A2A request.
        applications_class = await asyncio.to_thread(_import_applications)
        return await applications_class.describe_task(services, tenant, task)

    return describe


def _import_applications() -> type[AgentApplications]:
    from bough.server.a2a.applications import AgentApplications

    return AgentApplications
