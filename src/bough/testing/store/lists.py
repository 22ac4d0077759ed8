"""Lists and names."""

from __future__ import annotations

import io
from uuid import UUID

import pytest

from bough.errors import InvalidInput, NotFound
from bough.events.model import ModelResponded, StateChanged, ToolReturned, Usage, UsageAdded
from bough.events.record import ConversationFilter, ConversationRecord, Order
from bough.events.store import StoreAdmin
from bough.events.usage import NO_USAGE, ConversationUsage
from bough.testing.store.reading import NOON, export_bundle, make_messages
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

    async def test_usage_of_own_events(self, store: StoreAdmin) -> None:
        """A record has the usage of the conversation's events, appended or imported, but not of its source's events."""
        response = ModelResponded(
            response={}, usage=Usage(requests=2, input_tokens=30, output_tokens=4, cost_usd=0.0000000015)
        )
        tool = ToolReturned(tool_call_id="c", tool="t", result=1, usage=Usage(requests=1, cost_usd=0.25))
        record = await store.create(events=[response])
        assert (await store.get(record.id)).usage == record.usage == ConversationUsage(2, 30, 4, 2)
        await store.append(record.id, [*make_messages("no usage"), tool])
        await store.append(record.id, [ToolReturned(tool_call_id="d", tool="t", result=1)])
        total = ConversationUsage(3, 30, 4, 250_000_002)
        assert (await store.get(record.id)).usage == total
        assert total.cost_usd == 0.250000002
        fork = await store.fork(record.id, events=[self._usage(0.5)])
        assert (await store.get(fork.id)).usage == fork.usage == ConversationUsage(1, 10, 1, 500_000_000)
        assert (await store.fork(record.id)).usage == NO_USAGE
        bundle = await export_bundle(store, fork.id)
        await store.delete(record.id, "cascade")
        assert {record.usage for record in await store.scan()} <= {NO_USAGE}
        assert (await store.import_(io.BytesIO(bundle))).usage == fork.usage
        await store.append(fork.id, [self._usage(0.5)])
        assert (await store.get(fork.id)).usage.cost_usd == 1

    async def test_usage_of_a_tombstone_that_is_imported_again(self, store: StoreAdmin) -> None:
        """Events that forks share remain in the store. If their conversation is imported again, they count once."""
        record = await store.create(events=[self._usage(1), *make_messages("a"), self._usage(2)])
        fork = await store.fork(record.id, at=1)
        bundle = await export_bundle(store, record.id)
        await store.delete(record.id)
        assert (await store.import_(io.BytesIO(bundle))).usage.cost_usd == 3
        assert (await store.get(fork.id)).usage == NO_USAGE
        await store.delete(record.id, "erase")
        assert (await store.check()).findings == ()

    async def test_amounts_beyond_what_a_database_stores(self, store: StoreAdmin) -> None:
        """The record stores the largest possible amount; the event keeps the original one."""
        usage = Usage(requests=-1, input_tokens=10**30, output_tokens=1, cost_usd=float("inf"))
        broken = UsageAdded(purpose="ask", usage=Usage(requests=0, cost_usd=float("nan")))
        record = await store.create(events=[UsageAdded(purpose="ask", usage=usage), broken])
        await store.append(record.id, [UsageAdded(purpose="ask", usage=usage)])
        stored = (await store.get(record.id)).usage
        assert stored == ConversationUsage(0, 2 << 40, 2, 2 << 50)

    async def test_list_by_cost(self, store: StoreAdmin) -> None:
        """Pages are exact where costs are equal; `min_cost_usd` includes its bound."""
        costs = (0.1, 0.3, 0.1, 0, 0.1, 0.2)
        records = [await store.create(events=[self._usage(usd)] if usd else []) for usd in costs]
        ascending = [records[i].id for i in (3, 0, 2, 4, 5, 1)]
        orders: dict[Order, list[UUID]] = {"cost": ascending, "cost_desc": ascending[::-1]}
        for order, expected in orders.items():
            for limit in (1, 2, 4, 6):
                page = await store.list(limit=limit, order=order)
                listed = [item.id for item in page.items]
                while page.next_cursor:
                    page = await store.list(cursor=page.next_cursor, limit=limit, order=order)
                    listed += [item.id for item in page.items]
                assert listed == expected, (order, limit)
        page = await store.list(ConversationFilter(min_cost_usd=0.1), order="cost")
        assert [item.id for item in page.items] == ascending[1:]
        assert await store.count(ConversationFilter(min_cost_usd=0.2)) == 2
        assert await store.count(ConversationFilter(min_cost_usd=0.300000001)) == 0
        assert await store.count(ConversationFilter(min_cost_usd=0)) == 6
        for bad in (-1, float("nan"), float("inf"), True, "1"):
            with pytest.raises(InvalidInput, match="lowest cost"):
                ConversationFilter(min_cost_usd=bad)  # pyright: ignore[reportArgumentType]

    def _usage(self, usd: float) -> UsageAdded:
        return UsageAdded(purpose="ask", usage=Usage(requests=1, input_tokens=10, output_tokens=1, cost_usd=usd))

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
