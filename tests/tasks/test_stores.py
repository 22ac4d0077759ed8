"""Every task store keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from bough.events.stores.postgres import PostgresEventStore
from bough.tasks import TaskStore, TaskStoreJson, TaskStoreMemory, TaskStoreSqlite
from bough.tasks.stores.backends import TaskStorePostgres
from bough.testing.postgres import drop_schema
from bough.testing.task_store import TaskStoreContract
from bough.types import new_id


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


class TestJson(TaskStoreContract):
    """`TaskStoreJson`."""

    @pytest.fixture
    async def tasks(self, tmp_path: Path) -> AsyncGenerator[TaskStore]:  # pyright: ignore[reportIncompatibleMethodOverride]
        store = TaskStoreJson(tmp_path / "tasks")
        yield store
        await store.aclose()


class TestPostgres(TaskStoreContract):
    """`TaskStorePostgres`."""

    @pytest.fixture
    async def tasks(self, postgres: str) -> AsyncGenerator[TaskStore]:  # pyright: ignore[reportIncompatibleMethodOverride]
        schema = f"t{new_id().hex[-12:]}"
        log = await PostgresEventStore.open(postgres, schema=schema)
        store = TaskStorePostgres(log)
        await store.open()
        yield store
        await log.aclose()
        drop_schema(postgres, schema)
