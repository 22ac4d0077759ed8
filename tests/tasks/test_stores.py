"""Every task store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from bough.tasks import TaskStore, TaskStoreMemory, TaskStoreSqlite
from bough.testing.task_store import TaskStoreContract


class TestMemory(TaskStoreContract):
    """`TaskStoreMemory`."""

    @pytest.fixture
    async def tasks(self) -> AsyncGenerator[TaskStore]:  # pyright: ignore[reportIncompatibleMethodOverride]
        store = TaskStoreMemory()
        yield store
        await store.aclose()


class TestSqlite(TaskStoreContract):
    """`TaskStoreSqlite`."""

    @pytest.fixture
    async def tasks(self, tmp_path: Path) -> AsyncGenerator[TaskStore]:  # pyright: ignore[reportIncompatibleMethodOverride]
        store = TaskStoreSqlite(f"sqlite:///{tmp_path / 'log.db'}")
        yield store
        await store.aclose()
