"""The middleware of every request: its id, span and log line, HEAD, problem documents, the limits of its body."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bough.conversation.run.tracing import collects_spans
from bough.server.metrics import Metrics
from bough.server.requests.problems import RefusedRequest, answer_to, read_request_id
from bough.server.settings import ServerSettings
from bough.types import new_id

_SERVER_FAULT = 500


class RequestSpan:
    """The OpenTelemetry span of one request; does nothing without a tracer provider."""

    def __init__(self, span: trace.Span | None) -> None:
        self._span = span

    def end(self, scope: Scope, route: str, status: int) -> None:
        """Record the route and status of the request; never its path, query or body, which may contain secrets."""
        if self._span is None:
            return
        method = scope.get("method", "SOCKET")
        caller = scope["state"].get("caller")
        attributes: dict[str, Any] = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "bough.request": scope["state"]["request_id"],
            "bough.tenant": getattr(caller, "tenant", None),
            "bough.conversation": str(scope.get("path_params", {}).get("id", "")) or None,
        }
        self._span.update_name(f"{method} {route}")
        self._span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if status >= _SERVER_FAULT:
            self._span.set_status(Status(StatusCode.ERROR))


@contextmanager
def open_request_span(scope: Scope) -> Generator[RequestSpan]:
    """Open the span of a request, as a child of the span in its `traceparent` header."""
    if not collects_spans():
        yield RequestSpan(None)
        return
    names = ("traceparent", "tracestate")
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    context = TraceContextTextMapPropagator().extract({name: headers[name] for name in names if name in headers})
    with trace.get_tracer("bough").start_as_current_span(
        "request", context=context, kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
    ) as span:
        yield RequestSpan(span)


_LOG = logging.getLogger("bough.server.access")
_UPLOAD = "/file/upload"
_SESSION_PATHS = ("/mcp",)
"""Paths where a GET opens a stream of a session, so that a HEAD must not be treated as a GET."""

_ROUTE_KEYS = ("route", "path_params", "endpoint")
"""The keys that the router writes into the scope of a request; the log line needs them."""

_DISCARDED_BYTES = 16 << 20
_DISCARD_SECONDS = 2.0
_CLOSING = {"Connection": "close"}


class RequestLog:
    """Assigns an id and a span to each request, and counts and logs it at its end; never its query or body."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = str(new_id())
        started, status = time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"request-id", request_id.encode()))
            await send(message)

        with open_request_span(scope) as span:
            try:
                await self._app(scope, receive, sending)
            finally:
                seconds = time.monotonic() - started
                route = getattr(scope.get("route"), "path", "unknown")
                self._metrics.count_request(route, scope.get("method", "SOCKET"), status, seconds)
                _log_request(scope, route, status, seconds)
                span.end(scope, route, status)


def _log_request(scope: Scope, route: str, status: int, seconds: float) -> None:
    if not _LOG.isEnabledFor(logging.INFO):
        return
    caller = scope["state"].get("caller")
    line = {
        "request": scope["state"]["request_id"],
        "tenant": getattr(caller, "tenant", None),
        "key": getattr(caller, "key", None),
        "route": route,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "conversation": str(scope.get("path_params", {}).get("id", "")) or None,
    }
    _LOG.info("%s", json.dumps(line))


class HeadRequests:
    """Handles HEAD like GET, with the same headers and no body. A stream ends before its first item."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"] in _SESSION_PATHS:
            return await self._app(scope, receive, send)
        has_begun = has_ended = False

        async def receiving() -> Message:
            return {"type": "http.disconnect"} if has_begun else await receive()

        async def sending(message: Message) -> None:
            nonlocal has_begun, has_ended
            has_begun = True
            if message["type"] == "http.response.body":
                has_ended = not message.get("more_body", False)
                message = {**message, "body": b""}
            await send(message)

        get_scope = {**scope, "method": "GET"}
        try:
            await self._app(get_scope, receiving, sending)
        finally:
            scope.update({name: get_scope[name] for name in _ROUTE_KEYS if name in get_scope})
        if not has_ended:  # a stream that ended on the disconnect of `receiving`
            await send({"type": "http.response.body", "body": b""})


class Problems:
    """Responds to exceptions that no handler caught. Once the response has begun, the connection ends instead."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        has_begun = False

        async def sending(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:  # the boundary of a request
            if has_begun and isinstance(error, TimeoutError):
                _LOG.info("request %s: the client read nothing", read_request_id(scope))
                return  # the connection was aborted; the server is not at fault
            if has_begun:
                raise
            await answer_to(error, read_request_id(scope))(scope, receive, send)


class Bounds:
    """Limits the size of a body, and the time until it has arrived.

    The next bytes must arrive within `read_seconds`, and the last ones within `body_seconds`.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if _has_two_lengths(scope):
            hint = "send Content-Length or Transfer-Encoding, not both"
            raise RefusedRequest(400, "the length of the body is given twice", hint=hint, headers=_CLOSING)
        is_upload = scope["path"].endswith((_UPLOAD, "/import"))
        max_bytes = self._settings.upload_bytes if is_upload else self._settings.body_bytes
        if _read_content_length(scope) > max_bytes:
            await _discard(receive)
            raise _make_too_long(max_bytes)
        received_bytes, is_complete = 0, False
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._settings.body_seconds

        async def receiving() -> Message:
            nonlocal received_bytes, is_complete
            if is_complete:  # the next message is the disconnect, which has no timeout: a stream may be long
                return await receive()
            try:
                async with asyncio.timeout_at(min(clock() + self._settings.read_seconds, deadline)):
                    message = await receive()
            except TimeoutError:
                hint = "send the whole body without pauses; server.body_seconds limits the total time"
                raise RefusedRequest(408, "the body did not arrive in time", hint=hint, headers=_CLOSING) from None
            received_bytes += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if received_bytes > max_bytes:
                if not is_complete:
                    await _discard(receive)
                raise _make_too_long(max_bytes)
            return message

        await self._app(scope, receiving, send)


def _make_too_long(max_bytes: int) -> RefusedRequest:
    hint = "send less; a long text can be uploaded as a file"
    return RefusedRequest(413, f"the body is longer than {max_bytes} bytes", hint=hint, headers=_CLOSING)


async def _discard(receive: Receive) -> None:
    """Read more of a body that is too long, because closing a connection with unread bytes loses the response."""
    remaining = _DISCARDED_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while remaining > 0:
                message = await receive()
                remaining -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def _has_two_lengths(scope: Scope) -> bool:
    """Whether a request has both headers for the length of its body; bough and a proxy could use different ones."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}


def _read_content_length(scope: Scope) -> int:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    value: Any = next((value for name, value in headers if name == b"content-length"), b"0")
    return int(value) if value.isdigit() else 0
