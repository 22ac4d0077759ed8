"""Checks of `Host` and `Origin`: a page of another site cannot use the server, not even by DNS rebinding."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bough.errors import PermissionDenied
from bough.server.requests.problems import answer_to, read_request_id
from bough.server.settings import ServerSettings

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_EXPOSED_HEADERS: Final = (
    "Content-Disposition, ETag, Idempotency-Replayed, Location, Mcp-Session-Id, Request-Id, Retry-After, "
    "WWW-Authenticate"
)
_PREFLIGHT_HEADERS: Final[Mapping[str, str]] = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PATCH, DELETE",
    "Access-Control-Allow-Headers": (
        "A2A-Extensions, A2A-Version, Accept, Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, "
        "Last-Event-ID, Mcp-Protocol-Version, Mcp-Session-Id, Range, Traceparent, Tracestate, X-Session-API-Key"
    ),
    "Access-Control-Allow-Private-Network": "true",
    "Access-Control-Max-Age": "600",
}


class CrossOrigin:
    """Allows pages of the listed origins, and no others, to read responses. Never allows cookies."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._origins = read_origins(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not self._origins:
            return await self._app(scope, receive, send)
        origin = find_origin(scope, self._origins)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.add_vary_header("Origin")
                if origin is not None:
                    headers["Access-Control-Allow-Origin"] = origin
                    headers["Access-Control-Expose-Headers"] = _EXPOSED_HEADERS
            await send(message)

        await self._app(scope, receive, send_with_headers)


class HostOrigin:
    """Refuses requests with a foreign `Host`, and requests that change or stream something with a foreign `Origin`.

    Args:
        bind: The address that the server listens on.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, bind: str = "127.0.0.1") -> None:
        self._app = app
        self._origins = read_origins(settings)
        bound_hosts = {bind.lower()} if bind not in ("0.0.0.0", "::", "") else set[str]()  # noqa: S104 - compared, not bound
        self._hosts = _LOOPBACK | bound_hosts | {host.lower() for host in settings.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        error = self._find_refusal(scope)
        if error is None and self._is_preflight(scope):
            return await Response(status_code=204, headers=_PREFLIGHT_HEADERS)(scope, receive, send)
        if error is None:
            return await self._app(scope, receive, send)
        if scope["type"] == "websocket":
            await receive()
            return await send({"type": "websocket.close", "code": 1008})  # before the handshake, this becomes a 403
        await answer_to(error, read_request_id(scope))(scope, receive, send)

    def _is_preflight(self, scope: Scope) -> bool:
        """Whether a request is a CORS preflight of a listed origin, which carries no key."""
        if scope["type"] != "http" or scope["method"] != "OPTIONS":
            return False
        headers = Headers(scope=scope)
        return "access-control-request-method" in headers and find_origin(scope, self._origins) is not None

    def _find_refusal(self, scope: Scope) -> PermissionDenied | None:
        """Return the error for a request with a foreign `Host` or `Origin`; None if the request is allowed."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = _host_name(headers.get("host", ""))
        if host not in self._hosts:
            return PermissionDenied("the request's Host is not a name of this server", hint="add it to server.hosts")
        origin = headers.get("origin")
        is_stream = scope["type"] == "websocket" or scope["path"].endswith(("/stream", "/updates", "/live"))
        is_change = scope["type"] == "http" and scope["method"] not in _SAFE_METHODS
        if origin is None or not (is_stream or is_change) or self._is_allowed(origin, headers.get("host", "")):
            return None
        return PermissionDenied("the request's Origin is another site", hint="add it to server.origins")

    def _is_allowed(self, origin: str, host: str) -> bool:
        """Whether an origin is listed, or is the host that the request was sent to."""
        if origin.lower().rstrip("/") in self._origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def read_origins(settings: ServerSettings) -> frozenset[str]:
    """Return the listed origins in normalized form."""
    return frozenset(origin.lower().rstrip("/") for origin in settings.origins)


def find_origin(scope: Scope, origins: Collection[str]) -> str | None:
    """Return the origin of a request as it was sent, if it is one of `origins`; else None."""
    origin = Headers(scope=scope).get("origin", "")
    return origin if origin.lower().rstrip("/") in origins else None


def _host_name(host: str) -> str:
    """Return the name of a `Host` header without its port; empty if invalid."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
