"""`/a2a/{agent}`: JSON-RPC, REST and the card of every agent of the server, behind its keys, scopes and limits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from a2a.auth.user import User
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types.a2a_pb2 import StreamResponse
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from bough.errors import Malformed, NotFound
from bough.server.a2a.card import card_of
from bough.server.a2a.dialects import adapt_request
from bough.server.a2a.handler import BrokerHandler
from bough.server.a2a.listing import AGENT
from bough.server.a2a.push import PushConfigs
from bough.server.a2a.tasks import AgentTasks
from bough.server.access import Access, access_of, key_of
from bough.server.auth.caller import Caller
from bough.server.auth.owned import OwnedStore
from bough.server.environment.agents import DEFAULT
from bough.server.requests.body import describe_unreadable, read_json_body, replay
from bough.server.requests.problems import answer_to, request_id_of
from bough.server.services import Services
from bough.types import JsonObject

CARD_PATH = "/.well-known/agent-card.json"
PATHS = (CARD_PATH, "/a2a/{agent}", "/a2a/{agent}/{path:path}")
ROOT_PATHS = ("/", "/{path:path}")
"""Where all agents are served, and where one alone is."""

_MAX_APPS = 200


class A2AEndpoint:
    """The ASGI application behind `/a2a/{agent}`, or behind `/` where one agent alone is served.

    Args:
        only: The agent that is served at the root; None serves all of them below their names.
    """

    def __init__(self, only: str | None = None) -> None:
        self._only = only
        self._apps: OrderedDict[tuple[str, str, bool], Starlette] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Unauthenticated: The key is needed and missing, or not a valid one.
            PermissionDenied: The key lacks the scope `a2a`.
            NotFound: There is no such agent.
        """
        request = Request(scope, receive)
        services: Services = request.app.state.services
        name, prefix = self._find_agent(request)
        is_card = request.method == "GET" and request.url.path.endswith(CARD_PATH)
        needs_key = True
        if not (is_card and services.server.public_card):
            access = await access_of(request, key_of(request))
            access.caller.require("read" if request.method == "GET" else "write", "a2a")
            scope["state"]["access"] = access
            needs_key = access.caller.key is not None
        if name not in services.agents.names():
            raise NotFound("there is no such agent", hint="GET /api/agents lists them")
        url = f"{str(request.base_url).rstrip('/')}{prefix}"
        # Starlette takes what is below the prefix as the path of a request; the root of it is a slash.
        path = scope["path"] if scope["path"] != prefix else f"{prefix}/"
        below = {**scope, "path": path, "root_path": f"{scope.get('root_path', '')}{prefix}"}
        try:
            body = await read_json_body(request)
        except Malformed as error:
            if path != f"{prefix}/":  # JSON-RPC says by a code of its own what cannot be read
                raise
            await JSONResponse(describe_unreadable(error))(scope, receive, send)
            return
        if body is not None:
            body, send = adapt_request(body, send)
        app = self._find_app(services, name, url, needs_key=needs_key)
        await app(below, receive if body is None else replay(body, receive), send)

    def _find_agent(self, request: Request) -> tuple[str, str]:
        """Return which agent is meant, and the path that it is served below."""
        if self._only is not None:
            return self._only, ""
        if request.url.path == CARD_PATH:
            return DEFAULT, ""
        name = request.path_params["agent"]
        return name, f"/a2a/{name}"

    def _find_app(self, services: Services, name: str, url: str, *, needs_key: bool) -> Starlette:
        app = self._apps.get((name, url, needs_key))
        if app is None:
            app = self._apps[name, url, needs_key] = _make_app(services, name, url, needs_key=needs_key)
        self._apps.move_to_end((name, url, needs_key))
        if len(self._apps) > _MAX_APPS:
            self._apps.popitem(last=False)
        return app


def describe_for_push(services: Services) -> Callable[[str, str], Awaitable[JsonObject]]:
    """Return what makes the body of a push notification: the task as it stands when it is sent."""

    async def describe(tenant: str, task: str) -> JsonObject:
        caller = Caller(tenant=tenant)
        access = Access(caller=caller, store=OwnedStore(services.store, caller.owner), services=services)
        found = await services.runs.broker.poll(task)
        tasks = AgentTasks(access, str(found.metadata.get(AGENT)))
        return MessageToDict(StreamResponse(task=await tasks.describe(found)))

    return describe


class _CallerUser(User):
    """A caller as the library knows users."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def is_authenticated(self) -> bool:
        """Whether a key was shown."""
        return self._caller.key is not None

    @property
    def user_name(self) -> str:
        """The tenant: tasks are its own."""
        return self._caller.tenant


class _ContextBuilder(ServerCallContextBuilder):
    def build(self, request: Request) -> ServerCallContext:
        """Return the context of a request: its caller, and what that may work with."""
        access: Access = request.scope["state"]["access"]
        extensions = get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER))
        state = {"access": access, "headers": dict(request.headers)}
        return ServerCallContext(user=_CallerUser(access.caller), state=state, requested_extensions=extensions)


def _make_app(services: Services, name: str, url: str, *, needs_key: bool) -> Starlette:
    card = card_of(services.agents.find_named(name), url, needs_key=needs_key)
    handler = BrokerHandler(name, card, PushConfigs(services.webhooks))
    grace = max(1.0, services.server.shutdown_seconds / 2)
    builder = _ContextBuilder()
    app = Starlette(
        exception_handlers={HTTPException: _answer},
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/", builder, enable_v0_3_compat=True, shutdown_grace_period=grace),
            *create_rest_routes(handler, builder, enable_v0_3_compat=True, shutdown_grace_period=grace),
        ],
    )
    app.router.redirect_slashes = False
    return app


async def _answer(request: Request, error: Exception) -> Response:
    return answer_to(error, request_id_of(request.scope))
