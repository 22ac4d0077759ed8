"""Where the conversations of a test are: in this process, or on an agent server, under the same names.

The server runs in the loop of the test, so that models, tools and stores of its agents are objects in the test's hands;
what the test does goes over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation import AsyncConversation
from bough.conversation.remote.remote import RemoteConversation
from bough.events.store import EventStore
from bough.settings import Settings

_SERVED = "server"

everywhere = pytest.mark.parametrize("store", ["memory", "sqlite", _SERVED], indirect=True)
"""Marks a test that says the same of a conversation of a server."""

here_and_served = pytest.mark.parametrize("store", ["memory", _SERVED], indirect=True)
"""The same, for a test of decisions, which no kind of store changes."""

OF_TASKS = frozenset({"TaskChanged", "TaskNoted", "MessageStored"})
"""Kinds that say who runs a conversation, and not what happens in it."""


class Place(Protocol):
    """Starts conversations and opens them once more."""

    async def start(self, agent: AgentSpec, **given: Any) -> AsyncConversation:
        """Start a conversation of an agent."""
        ...

    async def reopen(self, id: UUID, agent: AgentSpec) -> AsyncConversation:
        """Open a conversation as another process does."""
        ...


def is_served(request: pytest.FixtureRequest) -> bool:
    """Whether a test asks for a server."""
    callspec = getattr(request.node, "callspec", None)
    return callspec is not None and callspec.params.get("store") == _SERVED


def name_of(conversation: Any, by: str) -> str:
    """Return who is on record for what `by` did: on a server it is the key's name."""
    return "local" if isinstance(conversation, RemoteConversation) else by


class Here:
    """This process."""

    def __init__(self, store: EventStore, settings: Settings, workspace: Path) -> None:
        self._where: Any = {"store": store, "settings": settings}
        self._workspace = workspace

    async def start(self, agent: AgentSpec, **given: Any) -> AsyncConversation:
        """Start a conversation of an agent."""
        return await AsyncConversation.create(agent, **{"workspace": self._workspace, **self._where, **given})

    async def reopen(self, id: UUID, agent: AgentSpec) -> AsyncConversation:
        """Open a conversation as another process does."""
        return await AsyncConversation.open(id, agent=agent, **self._where)


class Served:
    """A server. The conversations that are made of it are closed with it; forks are the test's to close."""

    def __init__(self, url: str, services: Any, workspace: Path, closing: AsyncExitStack) -> None:
        self.url = url
        self._services = services
        self._workspace = workspace
        self._closing = closing

    async def start(self, agent: AgentSpec, **given: Any) -> AsyncConversation:
        """Start a conversation of an agent, which the server is given under a name of its own."""
        agents = self._services.agents._registered
        name = f"{agent.name}-{len(agents)}"
        agents[name] = agent.model_copy(update={"name": name})
        self._services.runs.broker.register_agents({name: agents[name]})
        given = {"workspace": self._workspace, **given}
        return self._close(await AsyncConversation.create(AgentSpec(name=name), server=self.url, **given))

    async def reopen(self, id: UUID, agent: AgentSpec) -> AsyncConversation:
        """Open a conversation by another connection; the server has its agent."""
        return self._close(await AsyncConversation.open(id, server=self.url))

    async def settle(self) -> None:
        """Return when the states of conversations that were folded are in the store."""
        await self._services.states.aclose()

    def _close(self, conversation: AsyncConversation) -> AsyncConversation:
        self._closing.push_async_callback(conversation.aclose)
        return conversation


@asynccontextmanager
async def serving(store: EventStore, settings: Settings, workspace: Path) -> AsyncIterator[Served]:
    """Serve a store on a free port of this machine."""
    from bough.server.app import create_app
    from bough.server.serve import listen, serve
    from bough.server.settings import ServerSettings

    options = ServerSettings(shutdown_seconds=5)
    app = create_app(settings, server=options, store=store)
    listening, ready = listen("127.0.0.1", 0), asyncio.Event()
    task = asyncio.create_task(serve(app, options, listening, ready=ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not ready.is_set():
        waiting.cancel()
        task.result()
    try:
        async with AsyncExitStack() as closing:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            yield Served(url, app.state.services, workspace, closing)
    finally:
        app.state.stop()
        await task
