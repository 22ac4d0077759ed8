"""OpenTelemetry: one server span for each request, the parent of the runs it starts; nothing without a provider."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import Scope

from bough.conversation.run.tracing import collects_spans

_SERVER_FAULT = 500


class RequestSpan:
    """The span of one request; it does nothing without a tracer provider."""

    def __init__(self, span: trace.Span | None) -> None:
        self._span = span

    def end(self, scope: Scope, route: str, status: int) -> None:
        """Record the request and its status: never its query, body or path, only the route."""
        if self._span is None:
            return
        method = scope.get("method", "SOCKET")
        caller = scope["state"].get("caller")
        about: dict[str, Any] = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "bough.request": scope["state"]["request_id"],
            "bough.tenant": getattr(caller, "tenant", None),
            "bough.conversation": str(scope.get("path_params", {}).get("id", "")) or None,
        }
        self._span.update_name(f"{method} {route}")
        self._span.set_attributes({name: value for name, value in about.items() if value is not None})
        if status >= _SERVER_FAULT:
            self._span.set_status(Status(StatusCode.ERROR))


@contextmanager
def open_request_span(scope: Scope) -> Generator[RequestSpan]:
    """Open the span of a request, a child of the one that its `traceparent` names."""
    if not collects_spans():
        yield RequestSpan(None)
        return
    names = ("traceparent", "tracestate")
    sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    context = TraceContextTextMapPropagator().extract({name: sent[name] for name in names if name in sent})
    with trace.get_tracer("bough").start_as_current_span(
        "request", context=context, kind=SpanKind.SERVER, record_exception=False, set_status_on_exception=False
    ) as span:
        yield RequestSpan(span)
