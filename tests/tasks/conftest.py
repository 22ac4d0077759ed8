"""Fixtures of the tests of tasks: stores, and brokers whose agents have scripted models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bough.agents.spec import AgentSpec
from bough.settings import Settings
from bough.tasks import TaskStoreMemory, TaskStoreSqlite
from bough.tasks.stores.relational import RelationalTaskStore
from bough.testing import ScriptedModel


@pytest.fixture(params=["memory", "sqlite"])
async def tasks(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RelationalTaskStore]:
    """A store in memory, and one in a file."""
    store = TaskStoreMemory() if request.param == "memory" else TaskStoreSqlite(f"sqlite:///{tmp_path / 'log.db'}")
    yield store
    await store.aclose()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a home of its own."""
    return Settings.load(home=tmp_path / "home", env={}, cwd=tmp_path)


@pytest.fixture
def scripted() -> Callable[..., AgentSpec]:
    """Makes an agent whose model answers with given steps."""

    def spec(name: str, *steps: Any, **fields: Any) -> AgentSpec:
        return AgentSpec(name=name, model=ScriptedModel(steps), skills=(), **fields)

    return spec
