"""OpenTelemetry: one span per run, with PydanticAI's spans as children. Does nothing without a tracer provider."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from opentelemetry import trace
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic_ai.capabilities import AbstractCapability, Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings

from bough.conversation.result import RunResult
from bough.errors import BoughError


class RunSpan:
    """The span of one run."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def end(self, result: RunResult) -> None:
        """Set the attributes that describe the result of the run."""
        self._span.set_attributes(
            {
                "bough.status": result.status,
                "bough.steps": result.steps,
                "bough.events": result.stop - result.start,
                "gen_ai.usage.input_tokens": result.usage.input_tokens,
                "gen_ai.usage.output_tokens": result.usage.output_tokens,
            }
        )


@contextmanager
def run_span(cid: UUID, *, run: UUID, agent: str, model: str | None) -> Generator[RunSpan]:
    """Open the span of a run. If the block raises a `BoughError`, its code becomes the status, without the message."""
    attributes = {"gen_ai.conversation.id": str(cid), "bough.run": str(run)}
    attributes |= {"gen_ai.agent.name": agent, "gen_ai.request.model": model or ""}
    tracer = trace.get_tracer("bough")
    with tracer.start_as_current_span(
        "bough.run", attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield RunSpan(span)
        except BoughError as error:
            span.set_status(Status(StatusCode.ERROR, error.code))
            raise


def read_traceparent() -> str | None:
    """Return the W3C `traceparent` of the current span; None outside of a span."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


@contextmanager
def span_below(name: str, traceparent: str | None, attributes: Mapping[str, str]) -> Generator[trace.Span]:
    """Open a span as a child of the span that `traceparent` names, or of the current span if it is None."""
    context = None if traceparent is None else TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    tracer = trace.get_tracer("bough")
    with tracer.start_as_current_span(name, context=context, attributes=dict(attributes)) as span:
        yield span


def collects_spans() -> bool:
    """Whether the program has set a tracer provider."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider)


def instrumentation() -> list[AbstractCapability[Any]]:
    """Return PydanticAI's instrumentation if spans are collected. Spans have no prompts, results or secrets."""
    if not collects_spans():
        return []
    return [Instrumentation(InstrumentationSettings(include_content=False, include_binary_content=False))]
