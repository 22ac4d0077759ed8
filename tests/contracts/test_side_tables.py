"""The contract of tables beside the log, over every store there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bough.events import PostgresEventStore, SqliteEventStore, open_store
from bough.events.store import EventStore
from bough.testing.postgres import drop_schema
from bough.testing.side_tables import NOTES, SideTablesContract, check_names
from bough.types import new_id


class TestMemory(SideTablesContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[EventStore]:
        store = await open_store("memory:")
        yield store
        await store.aclose()


class TestSqlite(SideTablesContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[EventStore]:
        store = await SqliteEventStore.open(tmp_path / "log.db")
        yield store
        await store.aclose()


class TestPostgres(SideTablesContract):
    @pytest.fixture
    async def store(self, postgres: str) -> AsyncIterator[EventStore]:
        schema = f"beside_{new_id().hex}"
        store = await PostgresEventStore.open(postgres, schema=schema)
        yield store
        await store.aclose()
        drop_schema(postgres, schema)


def test_names_begin_with_the_packages_name() -> None:
    check_names(NOTES)
