"""Fixtures of the conversation tests: stores of each kind, and an agent whose model is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.config import Settings
from bough.conversation import AsyncConversation
from bough.events import open_store
from bough.events.store import EventStore
from bough.testing import ScriptedModel


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
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
def start(store: EventStore, settings: Settings, tmp_path: Path) -> Callable[..., Any]:
    async def start(agent: AgentSpec, **fields: Any) -> AsyncConversation:
        return await AsyncConversation.create(agent, workspace=tmp_path, store=store, settings=settings, **fields)

    return start
