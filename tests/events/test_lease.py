"""The lease of a conversation across processes that are gone and processes that live."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.held_writer import cancel_while_writer_is_held

from bough.errors import Conflict
from bough.events import open_store
from bough.events.lease import hold_lease, owner
from bough.testing.task_store.claims import make_dead_owner
from bough.types import SystemClock

pytestmark = pytest.mark.anyio


class SkewedClock(SystemClock):
    """A machine's clock that is wrong by so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._skew = timedelta(seconds=seconds)

    def now(self) -> datetime:
        """What this clock takes for the present moment."""
        return super().now() + self._skew


@pytest.mark.parametrize("skew", [3600, 20, -20, -3600])
async def test_a_wrong_clock_neither_takes_a_lease_nor_holds_one_back(place: Any, skew: float) -> None:
    """Postgres decides by its own clock, SQLite by the one that all processes of the machine share."""
    mine, theirs = await place.open(), await place.open(SkewedClock(skew))
    record = await mine.create()
    held = await mine.acquire(record.id, "mine", 600)
    with pytest.raises(Conflict) as refused:
        await theirs.acquire(record.id, "theirs", 600)
    assert refused.value.details["owner"] == "mine"
    await mine.release(held)
    over = await theirs.acquire(record.id, "theirs", 0)
    taken = await mine.acquire(record.id, "mine", 600)
    assert taken.generation > over.generation, "a moment of a clock that is ahead blocks nobody"
    await mine.aclose()
    await theirs.aclose()


async def test_a_lease_that_was_taken_over_is_in_the_takers_name(tmp_path: Path) -> None:
    """In the dead owner's name it would look free to every third process, although its holder lives."""
    store = await open_store(f"sqlite:///{tmp_path / 'log.db'}")
    record = await store.create()
    lost = await store.acquire(record.id, make_dead_owner(), 60)
    async with hold_lease(store, record.id) as lease:
        assert lease.generation > lost.generation
        with pytest.raises(Conflict):
            await store.renew(lost, 60)
        with pytest.raises(Conflict) as held:
            await store.acquire(record.id, owner(), 60)
        assert held.value.details["owner"] == lease.owner
        with pytest.raises(Conflict):
            async with hold_lease(store, record.id):
                pass
    await store.acquire(record.id, owner(), 60)
    await store.aclose()


async def test_a_lease_that_is_granted_to_a_cancelled_waiter_is_released(place: Any) -> None:
    store = await place.open()
    record = await store.create()

    async def run() -> None:
        async with hold_lease(store, record.id, ttl_seconds=600):
            raise AssertionError("it was cancelled before")

    await cancel_while_writer_is_held(store, run())
    await store.release(await store.acquire(record.id, "another", 60))
    await store.aclose()
