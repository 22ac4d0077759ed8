"""Leases and fencing."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic

import pytest

from bough.errors import Conflict
from bough.events.store import StoreAdmin
from bough.testing.store.reading import SECONDS, make_messages


class LeasesContract:
    """Leases and fencing."""

    pytestmark = pytest.mark.anyio

    async def test_a_lease_excludes_other_owners(self, store: StoreAdmin) -> None:
        """A second owner gets a Conflict that names the first. Appends without a generation still succeed."""
        record = await store.create()
        lease = await store.acquire(record.id, "one", 60)
        with pytest.raises(Conflict) as refused:
            await store.acquire(record.id, "two", 60)
        assert refused.value.details["owner"] == "one"
        assert await store.append(record.id, make_messages("a"), generation=lease.generation) == 1
        assert await store.append(record.id, make_messages("b")) == 2
        await store.release(lease)
        assert (await store.acquire(record.id, "two", 60)).generation > lease.generation

    async def test_the_owner_of_a_lease_is_known_while_it_lasts(self, store: StoreAdmin) -> None:
        """An expired, released or missing lease has no owner."""
        record = await store.create()
        assert await store.lease_owner(record.id) is None
        lease = await store.acquire(record.id, "one", 60)
        assert await store.lease_owner(record.id) == "one"
        await store.release(lease)
        assert await store.lease_owner(record.id) is None
        await store.acquire(record.id, "two", 0)
        assert await store.lease_owner(record.id) is None

    async def test_a_fenced_generation_never_appends(self, store: StoreAdmin) -> None:
        """After a takeover, the old runner's appends, renewal and release have no effect."""
        record = await store.create()
        old = await store.acquire(record.id, "one", 0)
        new = await store.acquire(record.id, "two", 60)
        assert new.generation > old.generation
        with pytest.raises(Conflict):
            await store.append(record.id, make_messages("late"), generation=old.generation)
        with pytest.raises(Conflict):
            await store.renew(old, 60)
        await store.release(old)
        with pytest.raises(Conflict):
            await store.acquire(record.id, "one", 60)
        assert await store.append(record.id, make_messages("a"), generation=new.generation) == 1

    async def test_renewing_keeps_the_generation(self, store: StoreAdmin) -> None:
        """`renew` extends the lease; `acquire` raises the generation, also for the same owner."""
        record = await store.create()
        lease = await store.acquire(record.id, "one", 1)
        renewed = await store.renew(lease, 60)
        assert renewed.generation == lease.generation
        assert renewed.expires > lease.expires
        again = await store.acquire(record.id, "one", 60)
        assert again.generation > lease.generation
        with pytest.raises(Conflict):
            await store.renew(lease, 60)
        await store.release(again)
        with pytest.raises(Conflict):
            await store.renew(again, 60)

    async def test_only_one_of_concurrent_runners_gets_the_lease(self, store: StoreAdmin) -> None:
        """Concurrent calls of `acquire` give one lease."""
        record = await store.create()
        calls = [store.acquire(record.id, f"runner {i}", 60) for i in range(8)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(result, Conflict) for result in results) == 7

    async def test_a_lease_is_renewed_while_the_event_loop_is_blocked(self, store: StoreAdmin) -> None:
        """A tool that blocks the loop for longer than the duration of the lease does not lose the lease."""
        record = await store.create()
        lease = await store.acquire(record.id, "one", 1)
        lost: list[bool] = []
        keeper = store.keep_lease(lease, 1, lambda: lost.append(True))
        # Longer than the lease of 1 s, so that only a renewal outside of the loop can keep it.
        deadline = monotonic() + 1.5
        while monotonic() < deadline:
            pass  # blocks the loop, like a tool that never awaits
        with pytest.raises(Conflict):
            await store.acquire(record.id, "two", 60)
        await store.append(record.id, make_messages("still mine"), generation=lease.generation)
        keeper.stop()
        assert not lost
        await store.release(lease)

    async def test_a_lost_lease_is_reported_once(self, store: StoreAdmin) -> None:
        """After a takeover, the keeper calls its callback once, in its event loop, and stops renewing."""
        record = await store.create()
        lease, other = await store.acquire(record.id, "one", 0.3), await store.create()
        notified = asyncio.Event()
        calls: list[str] = []

        def record_loss() -> None:
            calls.append(threading.current_thread().name)
            notified.set()

        other_keeper = store.keep_lease(await store.acquire(other.id, "one", 60), 0.3, lambda: calls.append("other"))
        keeper = store.keep_lease(lease, 0.3, record_loss)
        await store.acquire(record.id, "one", 60)
        async with asyncio.timeout(SECONDS):
            await notified.wait()
        assert keeper.has_ended
        assert not other_keeper.has_ended
        other_keeper.stop()
        assert calls == [threading.current_thread().name]

    async def test_a_stopped_keeper_does_not_renew(self, store: StoreAdmin) -> None:
        """A lease whose keeper was stopped expires, and the callback is not called."""
        record = await store.create()
        lease = await store.acquire(record.id, "one", 0.2)
        keeper = store.keep_lease(lease, 0.2, lambda: pytest.fail("lost"))
        keeper.stop()
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    await store.acquire(record.id, "two", 60)
                except Conflict:
                    continue
                break
