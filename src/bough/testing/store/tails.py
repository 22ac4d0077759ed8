"""Subscriptions to events."""

from __future__ import annotations

import asyncio

import pytest

from bough.errors import StoreError
from bough.events.store import StoreAdmin
from bough.testing.store.reading import SECONDS, make_messages, read_remaining, take


class TailsContract:
    """Subscriptions to events."""

    pytestmark = pytest.mark.anyio

    async def test_a_subscriber_gets_every_event_once(self, store: StoreAdmin) -> None:
        """A subscription yields stored events, then new ones, in order, also if events are appended meanwhile."""
        root = await store.create(events=make_messages(*range(3)))
        fork = await store.fork(root.id, at=2)
        tails = [asyncio.create_task(take(store, fork.id, 42)) for _ in range(3)]
        for i in range(40):
            await store.append(fork.id, make_messages(i))
        for tail in tails:
            assert [stored.seq for stored in await tail] == list(range(42))
        assert [stored.seq for stored in await take(store, fork.id, 2, after=39)] == [40, 41]

    async def test_a_slow_subscriber_misses_nothing(self, store: StoreAdmin) -> None:
        """A subscriber that falls behind by more events than any buffer holds still gets all events."""
        record = await store.create()
        tail = store.subscribe(record.id)
        await store.append(record.id, make_messages("first"))
        assert (await anext(tail)).seq == 0
        for i in range(200):
            await store.append(record.id, make_messages(i))
        async with asyncio.timeout(SECONDS):
            assert [(await anext(tail)).seq for _ in range(200)] == list(range(1, 201))

    async def test_subscribers_end_with_the_conversation_and_with_the_store(self, store: StoreAdmin) -> None:
        """Deleting the conversation or closing the store ends a subscription without an error."""
        deleted, closed = await store.create(events=make_messages("a")), await store.create(events=make_messages("a"))
        tails = [store.subscribe(record.id) for record in (deleted, closed)]
        assert [(await anext(tail)).seq for tail in tails] == [0, 0]
        waiting = [asyncio.create_task(read_remaining(tail)) for tail in tails]
        async with asyncio.timeout(SECONDS):
            await store.delete(deleted.id)
            assert await waiting[0] == []
            await store.aclose()
            assert await waiting[1] == []
        with pytest.raises(StoreError):
            await store.get(closed.id)
        await store.aclose()
