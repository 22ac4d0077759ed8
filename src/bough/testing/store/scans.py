"""Reading parts of a log and of the store, and pruning."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bough.errors import InvalidInput, NotFound
from bough.events.model import StateChanged, UserMessage
from bough.events.record import ConversationFilter, ConversationRecord, Order, StoredEvent
from bough.events.store import StoreAdmin
from bough.testing.store.reading import NOON, export_bundle, make_messages, read_log
from bough.types import new_id


class ScansContract:
    """Reading parts of a log and of the store."""

    pytestmark = pytest.mark.anyio

    async def test_a_log_is_read_by_kind_and_time(self, store: StoreAdmin) -> None:
        """In both directions, over all ranges of a lineage, from any position."""
        tip = (await store.create(events=self._make_events(0, 6))).id
        for minute in (6, 9):
            tip = (await store.fork(tip, at=minute - 1, events=self._make_events(minute, 4))).id
        log = await read_log(store, tip)
        later, earlier = NOON + timedelta(minutes=3), NOON + timedelta(minutes=8)
        for reverse in (False, True):
            for start, stop in ((0, None), (2, 9)):
                events = [
                    stored
                    async for stored in store.read(
                        tip, start, stop, reverse=reverse, kinds=["UserMessage"], after_ts=later, before_ts=earlier
                    )
                ]
                expected = [
                    stored
                    for stored in log[start:stop]
                    if stored.kind == "UserMessage" and later <= stored.ts < earlier
                ]
                assert events == (expected[::-1] if reverse else expected)
                assert expected
        assert [stored async for stored in store.read(tip, kinds=["ToolCalled"])] == []
        assert [stored async for stored in store.read(tip, after_ts=later)] == [s for s in log if s.ts >= later]
        with pytest.raises(NotFound):
            await anext(aiter(store.read(new_id(), kinds=["UserMessage"])))

    async def test_a_log_is_read_backwards_over_its_lineage(self, store: StoreAdmin) -> None:
        """Returns the same events in reverse, for a lineage of many forks and from any position."""
        tip = (await store.create(events=make_messages(*range(100)))).id
        for n in range(40):
            tip = (await store.fork(tip, events=make_messages(f"fork {n}"))).id
        log = await read_log(store, tip)
        for start, stop in ((0, None), (90, 130), (99, 101), (139, None), (5, 5)):
            events = [stored async for stored in store.read(tip, start, stop, reverse=True)]
            assert events == log[start:stop][::-1]

    async def test_ids_are_read_without_payloads(self, store: StoreAdmin) -> None:
        """Returns seqs, ids and kinds of a range, over a lineage."""
        root = await store.create(events=self._make_events(0, 4))
        fork = await store.fork(root.id, at=3, events=self._make_events(5, 3))
        log = await read_log(store, fork.id)
        assert await store.read_ids(fork.id, 1, 5) == [(s.seq, s.id, s.kind) for s in log[1:5]]
        assert await store.read_ids(fork.id, 6, 6) == []

    async def test_every_event_of_a_kind_is_found_once(self, store: StoreAdmin) -> None:
        """Shared events are found once, also those of a tombstone; unreachable events are not found."""
        root = await store.create(events=self._make_events(0, 4))
        fork = await store.fork(root.id, at=3, events=self._make_events(5, 3))
        expected = {stored.id for stored in await read_log(store, fork.id) if stored.kind == "UserMessage"}
        await store.delete(root.id)
        events: list[StoredEvent] = [stored async for stored in store.every("UserMessage")]
        assert len(events) == len(expected)
        assert {stored.id for stored in events} == expected
        with pytest.raises(InvalidInput):
            await anext(aiter(store.every("x' or '1' = '1")))

    async def test_lists_have_four_orders(self, store: StoreAdmin) -> None:
        """Pages of each order contain every conversation once; `count` returns their number."""
        records = [await store.create(self._make_record(minute=n)) for n in range(5)]
        for n in (2, 0):
            await store.append(records[n].id, make_messages("a"))
        created = [record.id for record in records]
        changed = [created[n] for n in (1, 3, 4, 2, 0)]
        orders: list[tuple[Order, list[UUID]]] = [
            ("created", created), ("created_desc", created[::-1]), ("updated", changed), ("updated_desc", changed[::-1])
        ]  # fmt: skip
        for order, expected in orders:
            listed: list[UUID] = []
            page = await store.list(limit=2, order=order)
            while page.next_cursor:
                listed += [item.id for item in page.items]
                page = await store.list(cursor=page.next_cursor, limit=2, order=order)
            assert listed + [item.id for item in page.items] == expected, order
        assert await store.count() == 5
        with pytest.raises(InvalidInput):
            await store.list(order="title")  # pyright: ignore[reportArgumentType]

    async def test_filters_of_time_ids_statuses_project_and_owner(self, store: StoreAdmin) -> None:
        """All fields that are set must match; a fork is in its root's project."""
        first, second, third = [await store.create(self._make_record(minute=n, project=f"p{n % 2}")) for n in range(3)]
        fork = await store.fork(second.id, owner="me")
        own = await store.create(self._make_record(minute=9), owner="me")
        await store.append(third.id, [StateChanged(changes={"status": "running"})])
        current_time = datetime.now(UTC)

        async def find_ids(**fields: object) -> set[UUID]:
            criteria = ConversationFilter(**fields)  # pyright: ignore[reportArgumentType]
            page = await store.list(criteria)
            assert await store.count(criteria) == len(page.items)
            return {record.id for record in page.items}

        assert await find_ids(ids=[first.id, own.id, new_id()]) == {first.id, own.id}
        assert await find_ids(ids=[]) == set()
        assert await find_ids(statuses=["running", "error"]) == await find_ids(status="running") == {third.id}
        assert await find_ids(status="running", statuses=["idle"]) == set()
        assert await find_ids(project="p1") == {second.id, fork.id}
        assert await find_ids(owner="me") == {fork.id, own.id}
        bounds = {"created_after": NOON + timedelta(minutes=1), "created_before": NOON + timedelta(minutes=9)}
        assert await find_ids(**bounds) == {second.id, third.id}
        assert await find_ids(updated_before=NOON + timedelta(minutes=2)) == {first.id, second.id}
        assert await find_ids(updated_after=current_time - timedelta(hours=1)) == {third.id, fork.id}

    async def test_a_scan_is_ordered_by_number(self, store: StoreAdmin) -> None:
        """Returns every conversation once, including tombstones, also during writes."""
        records = [await store.create(events=make_messages("a")) for _ in range(5)]
        fork = await store.fork(records[1].id)
        await store.delete(records[1].id)
        scanned: list[ConversationRecord] = []
        while page := await store.scan(scanned[-1].number if scanned else 0, 2):
            assert len(page) <= 2
            scanned += page
            await store.create()
            if len(scanned) > 20:
                break
        assert [record.id for record in scanned[:6]] == [record.id for record in [*records, fork]]
        assert [record.deleted for record in scanned[:6]] == [False, True, False, False, False, False]
        assert len({record.number for record in scanned}) == len(scanned)

    async def test_pruning_keeps_conversations_in_use(self, store: StoreAdmin) -> None:
        """Running, waiting, leased, tagged and changed conversations remain, and events that living forks need."""
        old = [await store.create(self._make_record(minute=n)) for n in range(6)]
        running = StateChanged(changes={"status": "running"})
        await store.create(self._make_record(minute=7), events=[running])
        await store.acquire(old[1].id, "me", 60)
        await store.append(old[2].id, make_messages("changed"))
        tagged = await store.create(self._make_record(minute=8, tags={"a": "b"}))
        source = await store.create(self._make_record(minute=9), events=make_messages("shared"))
        fork = await store.fork(source.id)
        day, criteria = timedelta(days=1), ConversationFilter(created_before=NOON + timedelta(hours=1))
        planned = await store.prune(day, criteria, keep_tagged=True, dry_run=True)
        assert await store.count() == 10
        pruned = await store.prune(day, criteria, keep_tagged=True)
        assert pruned == planned
        assert (pruned.deleted, pruned.bytes > 0) == (5, True)
        remaining = {record.id for record in (await store.list()).items}
        assert {old[1].id, old[2].id, tagged.id, fork.id} < remaining
        assert len(remaining) == 5
        assert len(await read_log(store, fork.id)) == 1
        assert (await store.prune(day)).deleted == 1
        assert (await store.check()).findings == ()

    async def test_owner_and_origin_of_an_import(self, store: StoreAdmin) -> None:
        """The importer sets the owner; the record counts the imported events."""
        record = await store.create(events=make_messages("a", "b"), owner="one")
        bundle = await export_bundle(store, record.id)
        await store.delete(record.id)
        imported = await store.import_(io.BytesIO(bundle), owner="two")
        await store.append(record.id, make_messages("mine"))
        assert (imported.owner, imported.imported) == ("two", 2)
        assert (await store.get(record.id)).imported == 2
        assert (await store.fork(record.id)).imported is None

    async def test_a_folder_narrows_to_workspaces_in_it_and_to_forks_of_their_conversations(
        self, store: StoreAdmin
    ) -> None:
        """A neighbour whose name starts alike is outside; so is a text elsewhere in a config that looks like it."""

        async def create(minute: int, workspace: str) -> ConversationRecord:
            config = {"agent": f'"workspace":"/work{minute}"', "workspace": workspace}
            return await store.create(replace(self._make_record(minute=minute), config=config))

        async def find_ids(folder: str) -> set[UUID]:
            criteria = ConversationFilter(folder=folder)
            page = await store.list(criteria)
            assert await store.count(criteria) == len(page.items)
            return {record.id for record in page.items}

        top = await create(1, "/work")
        below = await create(2, '/work/a "b" ü/c')
        neighbour = await create(3, "/work2")
        await create(4, "/other/work")
        await store.create(self._make_record(minute=5))
        fork = await store.fork(below.id, config={"workspace": "/copies/1"})
        again = await store.fork(fork.id)
        assert await find_ids("/work") == {top.id, below.id, fork.id, again.id}
        assert await find_ids('/work/a "b" ü/') == {below.id, fork.id, again.id}
        assert await find_ids("/work2") == {neighbour.id}
        assert len(await find_ids("/")) == 6
        await store.delete(below.id)
        assert await find_ids("/copies") == {fork.id}
        assert again.id not in await find_ids("/work")
        for bad in ("work", "", 7):
            with pytest.raises(InvalidInput):
                ConversationFilter(folder=bad)  # pyright: ignore[reportArgumentType]

    def _make_events(self, first: int, n: int) -> list[UserMessage | StateChanged]:
        """Return `n` events, one per minute from minute `first`; every third is a StateChanged."""
        times = [NOON + timedelta(minutes=first + i) for i in range(n)]
        return [
            StateChanged(changes={}, ts=ts) if i % 3 == 2 else UserMessage.text(str(ts), ts=ts)
            for i, ts in enumerate(times)
        ]

    def _make_record(
        self, *, minute: int, project: str | None = None, tags: dict[str, str] | None = None
    ) -> ConversationRecord:
        id, at = new_id(), NOON + timedelta(minutes=minute)
        return ConversationRecord(id=id, root=id, created=at, updated=at, project=project, tags=tags or {})
