"""Whoever collects spans sees a delegation as one trace: the child's span below the call's, on whichever worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bough import AgentSpec, OrchestratorAgent, Settings
from bough.errors import ModelError
from bough.tasks import TaskBroker
from bough.tasks.stores.relational import RelationalTaskStore
from bough.testing import tool_call

pytestmark = pytest.mark.anyio

Scripted = Callable[..., AgentSpec]


def _above(spans: InMemorySpanExporter, span: ReadableSpan) -> ReadableSpan:
    assert span.parent is not None
    above = span.parent.span_id
    return next(each for each in spans.get_finished_spans() if each.context and each.context.span_id == above)


async def test_a_childs_span_is_below_the_call_that_delegated(
    settings: Settings, tmp_path: Path, scripted: Scripted, spans: InMemorySpanExporter
) -> None:
    """One trace, with the usage of the child on its span, and nothing of what was said."""
    below = scripted("below", "the secret word is plum")
    top = scripted("top", tool_call("delegate", agent_name="below", prompt="say plum"), "done", sub_agents=[below])
    async with OrchestratorAgent(top, store="memory:", workspace=tmp_path, settings=settings) as o:
        await o.run("go")
    [task] = [span for span in spans.get_finished_spans() if span.name == "bough.task"]
    attributes = dict(task.attributes or {})
    assert (attributes["bough.state"], attributes["gen_ai.agent.name"]) == ("completed", "below")
    assert attributes["bough.requests"] == 1
    assert "gen_ai.usage.output_tokens" in attributes
    call = _above(spans, task)
    assert (call.attributes or {}).get("gen_ai.tool.name") == "delegate"
    runs = [span for span in spans.get_finished_spans() if span.name == "bough.run"]
    assert [_above(spans, run) for run in runs if run.parent is not None] == [task]
    assert len({span.context.trace_id for span in spans.get_finished_spans() if span.context}) == 1
    assert "plum" not in str([dict(span.attributes or {}) for span in spans.get_finished_spans()])


async def test_a_task_is_below_the_span_of_the_program_that_submitted_it(
    tasks: RelationalTaskStore, settings: Settings, scripted: Scripted, spans: InMemorySpanExporter
) -> None:
    """The span travels with the task; a failure is its status, by code."""
    broker = TaskBroker(tasks, settings=settings)
    spec = scripted("writer", ModelError("no route to plum"))
    broker.register_agents([spec])
    with trace.get_tracer("program").start_as_current_span("program"):
        task_id = await broker.submit("write", agent_name="writer")
    assert "trace" in (await broker.poll(task_id)).metadata
    outside = await broker.submit("write", agent_name="writer", queue="never")
    assert "trace" not in (await broker.poll(outside)).metadata
    await broker.cancel(outside)
    await broker.aclose()
    async with TaskBroker(tasks, settings=settings) as worker:
        worker.register_agents([spec])
        await worker.wait(task_id, 30)
    [task] = [span for span in spans.get_finished_spans() if span.name == "bough.task"]
    assert _above(spans, task).name == "program"
    assert (task.status.is_ok, task.status.description) == (False, "model_error")
