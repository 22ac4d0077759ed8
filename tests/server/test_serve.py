"""A server in a loop that others use too."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bough.agents.spec import AgentSpec
from bough.server.app import create_app
from bough.server.serve import listen, serve
from bough.server.settings import ServerSettings
from bough.settings import Settings


@pytest.mark.anyio
async def test_a_server_that_has_ended_leaves_nothing_in_its_loop(settings: Settings, tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    options = ServerSettings(shutdown_seconds=5)
    app = create_app(settings, server=options, agents=[AgentSpec(name="default", model="offline", skills=())])
    listening, ready = listen("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(serve(app, options, listening, ready=ready.set))
    await ready.wait()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        id = (await client.post("/api/conversations", json={})).json()["id"]
        streamed = await client.get(f"/api/conversations/{id}/events/stream?until=caught_up")
        assert "event: caught_up" in streamed.text
    app.state.stop()
    await serving
    assert asyncio.all_tasks() == before, "a stream's library watches for a shutdown in a task of its own"


def test_the_span_of_a_run_is_below_that_of_its_request_which_is_below_the_clients(
    serving: Any, spans: InMemorySpanExporter
) -> None:
    above = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with serving("the secret word is plum") as server, server.client() as client:
        id = client.post("/api/conversations", json={"initial_message": "say plum"}).json()["id"]
        path = f"/api/conversations/{id}"
        assert client.post(f"{path}/run?", json={"wait": 60}, headers={"traceparent": above}).json()["output"]
        assert client.get("/api/nothing?word=plum").status_code == 404
    found = {span.name: span for span in spans.get_finished_spans()}
    request, task = found["POST /api/conversations/{id}/run"], found["bough.task"]
    assert request.parent is not None
    assert request.context is not None
    assert task.parent is not None
    assert f"{request.parent.trace_id:032x}-{request.parent.span_id:016x}" in above
    assert (task.parent.span_id, task.parent.trace_id) == (request.context.span_id, request.parent.trace_id)
    about = dict(request.attributes or {})
    assert (about["bough.conversation"], about["bough.tenant"], about["http.response.status_code"]) == (
        id, "local", 200,
    )  # fmt: skip
    assert request.kind is trace.SpanKind.SERVER
    assert "plum" not in str([(span.name, dict(span.attributes or {})) for span in spans.get_finished_spans()])


@pytest.mark.anyio
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_an_answer_is_sent_at_once_and_waits_for_no_acknowledgement(host: str) -> None:
    listening, accepted = listen(host, 0), asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=listening)
    _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
    answering: asyncio.StreamWriter = await accepted
    connection: socket.socket = answering.get_extra_info("socket")
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    for each in (writer, answering):
        each.close()
        await each.wait_closed()
    server.close()
    await server.wait_closed()
