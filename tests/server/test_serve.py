"""A server in a loop that others use too."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest

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
