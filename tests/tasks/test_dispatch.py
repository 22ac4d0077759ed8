"""Both dispatchers keep the contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from bough.tasks import TaskStorePostgres, TaskStoreSqlite
from bough.tasks.dispatch.dispatcher import Dispatcher
from bough.tasks.dispatch.local import LocalDispatcher
from bough.tasks.dispatch.procrastinate import ProcrastinateDispatcher
from bough.tasks.stores.relational import RelationalTaskStore
from bough.testing.dispatcher import DispatcherContract
from bough.testing.postgres import make_database


class TestLocal(DispatcherContract):
    """`LocalDispatcher` on SQLite."""

    @pytest.fixture
    async def tasks(self, tmp_path: Path) -> AsyncGenerator[RelationalTaskStore]:  # pyright: ignore[reportIncompatibleMethodOverride]
        store = TaskStoreSqlite(f"sqlite:///{tmp_path / 'log.db'}")
        yield store
        await store.aclose()

    def dispatcher(self, tasks: RelationalTaskStore) -> Dispatcher:
        return LocalDispatcher()


class TestProcrastinate(DispatcherContract):
    """`ProcrastinateDispatcher` on Postgres."""

    @pytest.fixture
    async def tasks(self, postgres: str) -> AsyncGenerator[RelationalTaskStore]:  # pyright: ignore[reportIncompatibleMethodOverride]
        store = TaskStorePostgres(make_database(postgres))
        yield store
        await store.aclose()

    def dispatcher(self, tasks: RelationalTaskStore) -> Dispatcher:
        assert isinstance(tasks, TaskStorePostgres)
        return ProcrastinateDispatcher(tasks)
