"""The event store's contract, over every store there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bough.events import MemoryEventStore, SqliteEventStore
from bough.events.store import EventStore
from bough.testing.store import EventStoreContract


class TestMemory(EventStoreContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[EventStore]:
        store = MemoryEventStore()
        yield store
        await store.aclose()


class TestSqlite(EventStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[EventStore]:
        store = await SqliteEventStore.open(tmp_path / "log.db")
        yield store
        await store.aclose()
