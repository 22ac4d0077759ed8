"""Lists and names."""

from __future__ import annotations

from uuid import UUID

import pytest

from bough.errors import InvalidInput, NotFound
from bough.events.model import (
    StateChanged,
)
from bough.events.record import ConversationFilter, ConversationRecord
from bough.events.store import StoreAdmin
from bough.testing.store.reading import NOON, make_messages
from bough.types import new_id


class ListsContract:
    """Lists and names."""

    pytestmark = pytest.mark.anyio

    async def test_list_is_latest_first_and_pages(self, store: StoreAdmin) -> None:
        """Pages together contain every conversation once."""
        records = [await store.create() for _ in range(7)]
        await store.append(records[0].id, make_messages("now the latest"))
        expected = [records[i].id for i in (0, 6, 5, 4, 3, 2, 1)]
        page = await store.list(limit=3)
        listed = [item.id for item in page.items]
        while page.next_cursor:
            page = await store.list(cursor=page.next_cursor, limit=3)
            listed += [item.id for item in page.items]
        assert listed == expected
        assert (await store.list(limit=7)).next_cursor is None
        with pytest.raises(InvalidInput):
            await store.list(cursor="%%%")

    async def test_list_filters(self, store: StoreAdmin) -> None:
        """All fields that are set must match."""
        root = await store.create(events=[StateChanged(changes={"title": "Größe ZÄHLT", "status": "running"})])
        fork = await store.fork(root.id, tags={"a": "1", "b": "2"}, config={"agent": "coder"}, owner="me")
        other = await store.create()

        async def ids(**fields: object) -> set[UUID]:
            page = await store.list(ConversationFilter(**fields))  # pyright: ignore[reportArgumentType]
            return {record.id for record in page.items}

        assert await ids() == {root.id, fork.id, other.id}
        assert await ids(status="running") == {root.id}
        assert await ids(status="idle") == {fork.id, other.id}
        assert await ids(text="zählt") == {root.id}
        assert await ids(tags={"a": "1"}) == await ids(tags={"a": "1", "b": "2"}) == {fork.id}
        assert await ids(tags={"a": "2"}) == await ids(tags={"a": "1", "c": "3"}) == set()
        assert await ids(agent="coder") == await ids(owner="me") == {fork.id}
        assert await ids(root=root.id) == {root.id, fork.id}
        assert await ids(root=other.id, status="running") == await ids(root=new_id()) == set()

    async def test_names(self, store: StoreAdmin) -> None:
        """A name is an id, its unique start or end, or `-` for the latest. Several matches raise an error with them."""
        a, b, c = [UUID(f"{n:08x}-0000-7000-8000-{n:012x}") for n in (0xABC10001, 0xABC10002, 0xDEF10003)]
        for cid in (a, b, c):
            await store.create(ConversationRecord(id=cid, root=cid, created=NOON, updated=NOON))
        assert await store.resolve("def1") == await store.resolve("DEF1-0003") == await store.resolve(str(c)) == c
        assert await store.resolve("f10003") == c
        assert await store.resolve("-") == c
        with pytest.raises(InvalidInput) as several:
            await store.resolve("abc1")
        assert several.value.details["matches"] == [str(a), str(b)]
        with pytest.raises(NotFound):
            await store.resolve("123456")
        for bad in ("abc", "", "xyz123", "a" * 33, "%%%%"):
            with pytest.raises(InvalidInput):
                await store.resolve(bad)

    async def test_an_empty_store_has_no_latest_conversation(self, store: StoreAdmin) -> None:
        """`-` raises NotFound in an empty store."""
        with pytest.raises(NotFound):
            await store.resolve("-")
