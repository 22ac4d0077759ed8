"""Creating and finding conversations."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bough.errors import Conflict, NotFound
from bough.events.model import (
    ConversationStarted,
    StateChanged,
)
from bough.events.record import ConversationRecord
from bough.events.store import StoreAdmin
from bough.testing.store.reading import make_messages, read_log, read_texts, take
from bough.types import new_id


class ConversationsContract:
    """Creating and finding conversations."""

    pytestmark = pytest.mark.anyio

    async def test_a_created_conversation_is_found(self, store: StoreAdmin) -> None:
        """A record is returned unchanged."""
        created = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
        cid = new_id()
        record = ConversationRecord(
            id=cid, root=cid, title="Ünïcode ✓", tags={"a": "b"}, config={"agent": "x", "n": [1, None]},
            owner="me", lineage={"why": "because"}, status="paused", created=created, updated=created,
        )  # fmt: skip
        assert await store.create(record) == record
        assert await store.get(cid) == record

    async def test_create_without_a_record_makes_a_root(self, store: StoreAdmin) -> None:
        """A root is its own root, has no parent and is idle."""
        record = await store.create()
        assert (record.root, record.parent, record.base, record.head) == (record.id, None, 0, 0)
        assert (record.forked_from, record.forked_at, record.fork_event) == (None, None, None)
        assert (record.status, record.generation, record.deleted) == ("idle", 0, False)
        assert await store.get(record.id) == record
        assert await read_log(store, record.id) == []
        assert await store.lineage(record.id) == []

    async def test_create_writes_its_events(self, store: StoreAdmin) -> None:
        """The first events are stored with the record and update its fields."""
        events = [ConversationStarted(title="t"), StateChanged(changes={"title": "later", "tags": {"k": "v"}})]
        record = await store.create(events=events)
        assert (record.head, record.title, record.tags) == (2, "later", {"k": "v"})
        assert [stored.event for stored in await read_log(store, record.id)] == events

    async def test_an_id_is_used_once(self, store: StoreAdmin) -> None:
        """Creating with a taken id is a conflict and changes nothing."""
        record = await store.create(events=make_messages("a"))
        with pytest.raises(Conflict):
            await store.create(record, events=make_messages("b"))
        assert await read_texts(store, record.id) == ["a"]
        assert len((await store.list()).items) == 1

    async def test_unknown_conversations_are_not_found(self, store: StoreAdmin) -> None:
        """Every method raises NotFound for an unknown conversation."""
        unknown = new_id()
        for call in (
            store.get(unknown), store.append(unknown, make_messages("a")), store.tail(unknown, 1), store.fork(unknown),
            store.children(unknown), store.lineage(unknown), store.acquire(unknown, "me", 1), store.delete(unknown),
            store.ancestry(unknown), store.peek(unknown), store.locate(new_id()), read_log(store, unknown),
            take(store, unknown, 1), store.lease_owner(unknown),
        ):  # fmt: skip
            with pytest.raises(NotFound):
                await call
