"""The lease of a conversation across processes that are gone and processes that live."""

from __future__ import annotations

from pathlib import Path

import pytest

from bough.errors import Conflict
from bough.events import open_store
from bough.events.lease import hold_lease, owner
from bough.testing.task_store.claims import make_gone_owner

pytestmark = pytest.mark.anyio


async def test_a_lease_that_was_taken_over_is_in_the_takers_name(tmp_path: Path) -> None:
    """In the dead owner's name it would look free to every third process, although its holder lives."""
    store = await open_store(f"sqlite:///{tmp_path / 'log.db'}")
    record = await store.create()
    lost = await store.acquire(record.id, make_gone_owner(), 60)
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
