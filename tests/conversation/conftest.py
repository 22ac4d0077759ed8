"""Fixtures of the conversation tests: stores of each kind, and an agent whose model is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conversation.places import Here, Place, is_served, serving

from bough.agents.spec import AgentSpec
from bough.events import open_store
from bough.events.store import EventStore
from bough.settings import Settings
from bough.testing import ScriptedModel


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A store of each kind; of tests that run `everywhere` also that of an agent server."""
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'log.db'}"
    opened = await open_store(url)
    yield opened
    await opened.aclose()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)


@pytest.fixture
def scripted() -> Callable[..., AgentSpec]:
    def spec(*steps: Any, tools: tuple[Any, ...] = (), **fields: Any) -> AgentSpec:
        return AgentSpec(name="tester", model=ScriptedModel(steps), tools=tools, skills=(), **fields)

    return spec


@pytest.fixture
async def place(
    request: pytest.FixtureRequest, store: EventStore, settings: Settings, tmp_path: Path
) -> AsyncIterator[Place]:
    """Where the conversations of a test are: in this process, or on a server, as its parameter `store` says."""
    if not is_served(request):
        yield Here(store, settings, tmp_path)
        return
    async with serving(store, settings, tmp_path) as served:
        yield served


@pytest.fixture
def start(place: Place) -> Callable[..., Any]:
    """Return what starts a conversation of an agent."""
    return place.start


@pytest.fixture
def reopen(place: Place) -> Callable[..., Any]:
    """Return what opens a conversation once more, as another process does: of its id and its agent."""
    return place.reopen
