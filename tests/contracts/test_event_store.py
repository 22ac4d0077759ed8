"""The event store's contract, over every store there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bough.events import PostgresEventStore, SqliteEventStore, open_store
from bough.events.store import EventStore
from bough.testing.postgres import drop_schema
from bough.testing.store import EventStoreContract
from bough.types import new_id


class TestMemory(EventStoreContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[EventStore]:
        store = await open_store("memory:")
        yield store
        await store.aclose()


class TestSqlite(EventStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[EventStore]:
        store = await SqliteEventStore.open(tmp_path / "log.db")
        yield store
        await store.aclose()


class TestPostgres(EventStoreContract):
    @pytest.fixture
    async def store(self, postgres: str) -> AsyncIterator[EventStore]:
        schema = f"contract_{new_id().hex}"
        store = await PostgresEventStore.open(postgres, schema=schema)
        yield store
        await store.aclose()
        drop_schema(postgres, schema)
