"""The applications of the library `a2a`, one for each agent and URL."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from a2a.auth.user import User
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    APIKeySecurityScheme,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StreamResponse,
    StringList,
)
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import bough
from bough.agents.spec import AgentSpec
from bough.server.a2a.handler import BrokerHandler
from bough.server.a2a.listing import AGENT
from bough.server.a2a.push import PushConfigs
from bough.server.a2a.tasks import AgentTasks
from bough.server.access import Access
from bough.server.auth.caller import Caller
from bough.server.auth.owned import OwnedStore
from bough.server.requests.problems import answer_to, read_request_id
from bough.server.services import Services
from bough.types import JsonObject

_MAX_APPS = 200


class AgentApplications:
    """A cache of at most 200 applications; the least recently used one is evicted first."""

    def __init__(self) -> None:
        self._apps: OrderedDict[tuple[str, str, bool], Starlette] = OrderedDict()

    def find(self, services: Services, name: str, url: str, *, needs_key: bool) -> Starlette:
        """Return the application of an agent at a URL, which is built at the first request."""
        key = name, url, needs_key
        app = self._apps.get(key)
        if app is None:
            app = self._apps[key] = _make_app(services, name, url, needs_key=needs_key)
        self._apps.move_to_end(key)
        # The URL comes from the header `Host`: without the limit, a client could exhaust the memory.
        if len(self._apps) > _MAX_APPS:
            self._apps.popitem(last=False)
        return app

    @staticmethod
    async def describe_task(services: Services, tenant: str, task: str) -> JsonObject:
        """Return the body of a push notification: the current state of a task."""
        caller = Caller(tenant=tenant)
        access = Access(caller=caller, store=OwnedStore(services.store, caller.owner), services=services)
        current_task = await services.runs.broker.poll(task)
        tasks = AgentTasks(access, str(current_task.metadata.get(AGENT)))
        return MessageToDict(StreamResponse(task=await tasks.describe(current_task)))


class _CallerUser(User):
    """A caller as a `User` of the library."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def is_authenticated(self) -> bool:
        """Whether the request has a key."""
        return self._caller.key is not None

    @property
    def user_name(self) -> str:
        """The tenant, which owns the tasks."""
        return self._caller.tenant


class _ContextBuilder(ServerCallContextBuilder):
    def build(self, request: Request) -> ServerCallContext:
        """Return the context of a request, with its caller's access and its headers."""
        access: Access = request.scope["state"]["access"]
        extensions = get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER))
        state = {"access": access, "headers": dict(request.headers)}
        return ServerCallContext(user=_CallerUser(access.caller), state=state, requested_extensions=extensions)


def _make_app(services: Services, name: str, url: str, *, needs_key: bool) -> Starlette:
    card = build_card(services.agents.find_named(name), url, needs_key=needs_key)
    handler = BrokerHandler(name, card, PushConfigs(services.webhooks))
    grace_seconds = max(1.0, services.server.shutdown_seconds / 2)
    builder = _ContextBuilder()
    app = Starlette(
        exception_handlers={HTTPException: _respond_with_error},
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/", builder, enable_v0_3_compat=True, shutdown_grace_period=grace_seconds),
            *create_rest_routes(handler, builder, enable_v0_3_compat=True, shutdown_grace_period=grace_seconds),
        ],
    )
    app.router.redirect_slashes = False
    return app


async def _respond_with_error(request: Request, error: Exception) -> Response:
    return answer_to(error, read_request_id(request.scope))


VERSIONS = ("1.0", "0.3")
BINDINGS = ("JSONRPC", "HTTP+JSON")
_MODES = ("text/plain", "application/json")


def build_card(spec: AgentSpec, url: str, *, needs_key: bool = True) -> AgentCard:
    """Return the card of an agent at a URL, with both bindings and both versions of the protocol.

    Args:
        needs_key: Whether the card says that a key is required; false on a server without keys.
    """
    requirements = [SecurityRequirement(schemes={name: StringList()}) for name in ("key", "bearer")]
    return AgentCard(
        name=spec.name,
        description=spec.description or f"The agent {spec.name} of a bough server.",
        version=bough.__version__,
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
            for version in VERSIONS
            for binding in BINDINGS
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
        security_schemes={
            "key": SecurityScheme(
                api_key_security_scheme=APIKeySecurityScheme(location="header", name="X-Session-API-Key")
            ),
            "bearer": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer")),
        },
        security_requirements=requirements if needs_key else [],
        default_input_modes=_MODES,
        default_output_modes=_MODES,
        skills=_describe_skills(spec),
    )


def _describe_skills(spec: AgentSpec) -> list[AgentSkill]:
    """Return the agent's skills and sub-agents; without either, the agent itself as one skill."""
    abilities = [(skill.name, skill.description) for skill in spec.skills or ()]
    abilities += [(agent.name, agent.description or agent.name) for agent in spec.sub_agents]
    abilities = abilities or [(spec.name, spec.description or f"What {spec.name} does.")]
    # Some clients reject a skill without modes, although the modes of the card are the default.
    modes: Any = {"input_modes": _MODES, "output_modes": _MODES}
    return [AgentSkill(id=name, name=name, description=text, tags=[spec.name], **modes) for name, text in abilities]
