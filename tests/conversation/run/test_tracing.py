"""Whoever collects spans sees one trace a run, with the conversation on it and nothing of what was said."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bough.errors import ModelError
from bough.testing import tool_call

pytestmark = pytest.mark.anyio


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def by_name(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    return next(span for span in spans.get_finished_spans() if span.name == name)


async def test_a_run_is_one_trace(start: Any, scripted: Any, spans: InMemorySpanExporter) -> None:
    conversation = await start(scripted(tool_call("add", a=1, b=2), "the secret word is plum", tools=(add,)))
    await conversation.send_message("say plum")
    await conversation.run()
    run = by_name(spans, "bough.run")
    attributes = dict(run.attributes or {})
    assert attributes["gen_ai.conversation.id"] == str(conversation.id)
    assert (attributes["bough.status"], attributes["bough.steps"]) == ("finished", 2)
    finished = spans.get_finished_spans()
    assert len({span.context.trace_id for span in finished if span.context}) == 1
    assert len(finished) >= 4, "the model's requests and the tool have spans of their own"
    ids = {(span.attributes or {}).get("gen_ai.conversation.id") for span in finished}
    assert ids == {str(conversation.id)}, "the conversation's id is on each"
    assert "plum" not in str([dict(span.attributes or {}) for span in finished])


async def test_an_error_is_the_spans_status(start: Any, scripted: Any, spans: InMemorySpanExporter) -> None:
    conversation = await start(scripted(ModelError("no route to plum")))
    await conversation.send_message("hello")
    with pytest.raises(ModelError):
        await conversation.run()
    run = by_name(spans, "bough.run")
    assert (run.status.is_ok, run.status.description) == (False, "model_error")
