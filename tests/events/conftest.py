"""Fixtures of the store tests: where a store of each kind can be, and opening it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import pytest

from bough.events import PostgresEventStore, SqliteEventStore, open_store
from bough.events.store import EventStore
from bough.testing.postgres import drop_schema
from bough.types import Clock, new_id


class Place(NamedTuple):
    """Where a durable store is."""

    url: str
    schema: str

    async def open(self, clock: Clock | None = None) -> EventStore:
        if self.url.startswith("sqlite:///"):
            return await SqliteEventStore.open(Path(self.url.removeprefix("sqlite:///")), clock=clock)
        return await PostgresEventStore.open(self.url, schema=self.schema, clock=clock)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where a durable store may be made."""
    if request.param == "sqlite":
        yield Place(f"sqlite:///{tmp_path / 'log.db'}", "unused")
        return
    url, schema = request.getfixturevalue("postgres"), f"test_{new_id().hex}"
    yield Place(url, schema)
    drop_schema(url, schema)


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqliteEventStore]:
    store = await SqliteEventStore.open(tmp_path / "log.db")
    yield store
    await store.aclose()


@pytest.fixture
async def store() -> AsyncIterator[EventStore]:
    async with aclosing(await open_store("memory:")) as store:
        yield store


@pytest.fixture
async def elsewhere() -> AsyncIterator[EventStore]:
    async with aclosing(await open_store("memory:")) as store:
        yield store
