"""Routes about the server: liveness, readiness, version, metrics, agents and the API's documentation."""

from __future__ import annotations

import asyncio
import time

from fastapi import Request, Response

import bough
from bough.errors import BoughError, NotSupported, Unauthenticated
from bough.events.record import ConversationFilter
from bough.server.access import AgentReader, authenticate, read_key, read_services
from bough.server.health import is_writable
from bough.server.requests.home import make_home, wants_html
from bough.server.requests.openapi import render_page
from bough.server.requests.routing import router
from bough.types import JsonObject

routes = router("Server")

API_VERSION = "1.58.2"
"""The version of OpenHands' agent server whose API is served. OpenHands' clients compare it with a minimum."""

CAPABILITIES = ("idempotent_conversation_create_v1", "bough_fork_v1")
_TOOLS = ("terminal", "file_editor", "glob", "grep", "task_tracker")
_STARTED = time.monotonic()
_READY_SECONDS = 1.0
_LOOPBACK = frozenset({"127.0.0.1", "::1"})
_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")


@routes.get("/health")
@routes.get("/alive")
async def get_health() -> JsonObject:
    """Report that the server is alive. Checks nothing."""
    return {"status": "ok"}


@routes.get("/ready", responses={503: {"description": "The server cannot take requests."}})
async def get_ready(request: Request, response: Response) -> JsonObject:
    """Report whether the server can take requests.

    It can if the store responds within a second and is writable, runs are started, and no drain has begun.
    """
    services = read_services(request)
    checks = {"store": "ok", "secrets": "ok", "runs": "ok" if services.runs.dispatcher_lives else "not taken any more"}
    if services.draining:
        checks["runs"] = "draining"
    try:
        async with asyncio.timeout(_READY_SECONDS):
            await services.store.list(ConversationFilter(), None, 1)
            if await services.sealed.lacks_keys():
                checks["secrets"] = "encrypted with keys that are missing"
            if not await is_writable(services.store):
                checks["store"] = "cannot be written"
    except (BoughError, TimeoutError):
        checks["store"] = "does not answer"
    services.metrics.store_up.set(checks["store"] == "ok")
    is_ready = all(value == "ok" for value in checks.values())
    response.status_code = 200 if is_ready else 503
    return {"status": "ok" if is_ready else "not ready", "checks": checks}


@routes.get("/", responses={200: {"content": {"text/html": {}}}})
async def get_root(request: Request, response: Response) -> JsonObject:
    """Describe the server: a page for browsers, the response of `/server_info` for programs."""
    if wants_html(request):
        return make_home()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
    response.headers["Vary"] = "Accept"
    return await get_server_info(request)


@routes.get("/server_info")
async def get_server_info(request: Request) -> JsonObject:
    """Return the version of the server; with a key, also its capabilities."""
    public: JsonObject = {
        "title": "bough agent server",
        "version": API_VERSION,
        "sdk_version": API_VERSION,
        "bough_version": bough.__version__,
    }
    try:
        await authenticate(request, read_key(request))
    except Unauthenticated:
        return public
    uptime = round(time.monotonic() - _STARTED, 1)
    return public | {"usable_tools": list(_TOOLS), "capabilities": list(CAPABILITIES), "uptime": uptime, "idle_time": 0}


@routes.get("/metrics", include_in_schema=False)
async def get_metrics(request: Request) -> Response:
    """Return metrics. Requests from this machine need no key; others need the role admin."""
    services = read_services(request)
    if not _is_local(request):
        (await authenticate(request, read_key(request))).caller.require("admin")
    return Response(services.metrics.render(), media_type="text/plain; version=0.0.4")


def _is_local(request: Request) -> bool:
    """Whether a request comes from this machine, and was not forwarded by a proxy on it."""
    client = request.client.host if request.client else ""
    is_forwarded = any(name in request.headers for name in _FORWARDED)
    return client in _LOOPBACK and request.url.hostname in {*_LOOPBACK, "localhost"} and not is_forwarded


@routes.get("/docs", include_in_schema=False)
async def get_docs(request: Request) -> Response:
    """Return the OpenAPI document as a page without scripts and external resources."""
    return Response(render_page(request.app.openapi()), media_type="text/html; charset=utf-8")


@routes.get("/api/agents")
async def list_agents(access: AgentReader) -> list[JsonObject]:
    """Return the registered agents."""
    agents = access.services.agents
    return [agents.find_named(name).snapshot() for name in agents.names()]


@routes.get("/api/agents/{name}")
async def get_agent(name: str, access: AgentReader) -> JsonObject:
    """Return one registered agent."""
    from bough.errors import InvalidInput, NotFound

    try:
        return access.services.agents.find_named(name).snapshot()
    except InvalidInput as error:
        raise NotFound(error.message, hint=error.hint) from error


@routes.get("/api/settings{rest:path}", include_in_schema=False)
@routes.post("/api/settings{rest:path}", include_in_schema=False)
@routes.put("/api/settings{rest:path}", include_in_schema=False)
@routes.patch("/api/settings{rest:path}", include_in_schema=False)
@routes.delete("/api/settings{rest:path}", include_in_schema=False)
@routes.get("/api/profiles{rest:path}", include_in_schema=False)
@routes.post("/api/profiles{rest:path}", include_in_schema=False)
@routes.put("/api/profiles{rest:path}", include_in_schema=False)
@routes.patch("/api/profiles{rest:path}", include_in_schema=False)
@routes.delete("/api/profiles{rest:path}", include_in_schema=False)
async def refuse_settings(access: AgentReader) -> JsonObject:
    """Report that the server does not store settings of clients."""
    raise NotSupported("the server stores no settings or profiles of clients", hint="GET /api/agents lists the agents")
