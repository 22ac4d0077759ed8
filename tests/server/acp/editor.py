"""An editor: the client of the package `agent-client-protocol`, over the streams of a real `bough acp`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from acp import schema, spawn_agent_process
from acp.core import ClientSideConnection

from bough.testing import OpenAIServer
from bough.testing.openai_server import Step

Decide = Callable[[schema.ToolCallUpdate], Awaitable[dict[str, Any]]]
Update = tuple[str, Any]

ALLOWED = {"outcome": {"outcome": "selected", "optionId": "allow"}}
REJECTED = {"outcome": {"outcome": "selected", "optionId": "reject"}}


class Editor:
    """Keeps what it is sent, and answers permission requests with `decide`."""

    def __init__(self, decide: Decide | None = None) -> None:
        self.updates: list[Update] = []
        self.asked: list[schema.ToolCallUpdate] = []
        self._decide = decide
        self._changed = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append((session_id, update))
        self._changed.set()

    async def request_permission(
        self, session_id: str, tool_call: schema.ToolCallUpdate, options: Any, **_: Any
    ) -> schema.RequestPermissionResponse:
        self.asked.append(tool_call)
        self._changed.set()
        assert self._decide is not None
        return schema.RequestPermissionResponse.model_validate(await self._decide(tool_call))

    def on_connect(self, conn: Any) -> None:
        """Nothing is kept."""

    def list_updates(self, session: str, kind: str) -> list[Any]:
        return [update for id, update in self.updates if id == session and update.session_update == kind]

    def read_text(self, session: str, kind: str = "agent_message_chunk") -> str:
        return "".join(getattr(update.content, "text", "") for update in self.list_updates(session, kind))

    async def wait_for(self, is_reached: Callable[[], bool]) -> None:
        while not is_reached():
            self._changed.clear()
            await self._changed.wait()


class Connected(NamedTuple):
    """An editor, its connection, the process that serves it, and its model."""

    editor: Editor
    agent: ClientSideConnection
    process: asyncio.subprocess.Process
    model: OpenAIServer


def make_environment(home: Path) -> dict[str, str]:
    return {
        "BOUGH_HOME": str(home),
        "HOME": str(home),
        "OPENAI_API_KEY": "none",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": ":".join(sys.path),
    }


@asynccontextmanager
async def connect(
    folder: Path, home: Path, steps: Iterable[Step], *options: str, decide: Decide | None = None
) -> AsyncGenerator[Connected]:
    """An initialized editor in `folder`, whose model answers with `steps`."""
    with OpenAIServer(steps) as model:
        async with connect_to(model, folder, home, *options, decide=decide) as connected:
            yield connected


@asynccontextmanager
async def connect_to(
    model: OpenAIServer, folder: Path, home: Path, *options: str, decide: Decide | None = None
) -> AsyncGenerator[Connected]:
    """An initialized editor in `folder`, with the process that serves it."""
    editor = Editor(decide)
    command = [sys.executable, "-m", "bough.cli.main", "acp", "-m", "openai:test", "--base-url", model.url, *options]
    client: Any = editor  # it has only the methods of a client that bough calls
    async with spawn_agent_process(
        client, *command, env=make_environment(home), cwd=folder, use_unstable_protocol=True
    ) as (agent, process):
        await agent.initialize(protocol_version=1)
        yield Connected(editor, agent, process, model)
