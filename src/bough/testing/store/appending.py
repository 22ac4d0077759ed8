"""Appending and reading."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bough.errors import Conflict, InvalidInput, NotFound
from bough.events.model import (
    Event,
    StateChanged,
    ToolCalled,
    ToolReturned,
)
from bough.events.store import StoreAdmin
from bough.testing.store.reading import make_messages, message_text, read_log, read_texts


class AppendingContract:
    """Appending and reading."""

    pytestmark = pytest.mark.anyio

    async def test_events_read_back_as_they_were(self, store: StoreAdmin) -> None:
        """Id, kind, payload and time in microseconds are unchanged."""
        call = ToolCalled(tool_call_id="1", tool="t", arguments={"a": [1, 2.5, "ü", None, {"b": True}]})
        events: Sequence[Event] = [
            *make_messages("hi"),
            call,
            ToolReturned(tool_call_id="1", tool="t", result={"x": 1}),
        ]
        record = await store.create()
        assert await store.append(record.id, events) == 3
        log = await read_log(store, record.id)
        assert [stored.event for stored in log] == events
        assert [(s.id, s.kind, s.ts) for s in log] == [(e.id, e.kind, e.ts) for e in events]
        assert [s.seq for s in log] == [0, 1, 2]

    async def test_seqs_are_gap_free_under_concurrency(self, store: StoreAdmin) -> None:
        """Concurrent appends get consecutive seqs, and no event is lost."""
        record = await store.create()
        heads = await asyncio.gather(*(store.append(record.id, make_messages(i)) for i in range(50)))
        assert sorted(heads) == list(range(1, 51))
        log = await read_log(store, record.id)
        assert [stored.seq for stored in log] == list(range(50))
        assert {message_text(stored) for stored in log} == {str(i) for i in range(50)}
        assert all(message_text(log[head - 1]) == str(i) for i, head in enumerate(heads))

    async def test_an_append_is_all_or_nothing(self, store: StoreAdmin) -> None:
        """A batch with an event that is already stored writes nothing, and the next append works."""
        old, *new = make_messages("old", "new", "newer")
        record = await store.create(events=[old])
        with pytest.raises(Conflict):
            await store.append(record.id, [*new, old])
        with pytest.raises(Conflict):
            await store.append(record.id, [new[0], new[0]])
        assert await read_texts(store, record.id) == ["old"]
        assert await store.append(record.id, new) == 3

    async def test_a_failing_append_harms_no_other(self, store: StoreAdmin) -> None:
        """Of concurrent appends, only the invalid ones fail."""
        old = make_messages("old")
        record = await store.create(events=old)
        calls = [
            store.append(record.id, [*make_messages(i), *old] if i % 3 == 0 else make_messages(i)) for i in range(30)
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(result, Conflict) for result in results] == [i % 3 == 0 for i in range(30)]
        assert len(await read_log(store, record.id)) == 21

    async def test_appending_nothing_changes_nothing(self, store: StoreAdmin) -> None:
        """An empty batch returns the head and does not change `updated`."""
        record = await store.create(events=make_messages("a"))
        assert await store.append(record.id, []) == 1
        assert await store.get(record.id) == record

    async def test_expected_head_lets_exactly_one_win(self, store: StoreAdmin) -> None:
        """Of concurrent appends with the same `expected_head`, all but one raise Conflict."""
        record = await store.create(events=make_messages("a"))
        calls = [store.append(record.id, make_messages(i), expected_head=1) for i in range(8)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(map(type, results), key=str) == sorted([int, *[Conflict] * 7], key=str)
        assert (await store.get(record.id)).head == 2

    async def test_state_changes_reach_the_record(self, store: StoreAdmin) -> None:
        """`status`, `title` and `tags` follow the events; other changes stay in the log."""
        record = await store.create()
        await store.append(record.id, [StateChanged(changes={"status": "running", "policy": {"a": 1}})])
        await store.append(
            record.id, [StateChanged(changes={"title": "T"}), StateChanged(changes={"tags": {"x": "y"}})]
        )
        record_after = await store.get(record.id)
        assert (record_after.status, record_after.title, record_after.tags, record_after.head) == (
            "running",
            "T",
            {"x": "y"},
            3,
        )
        await store.append(record.id, [StateChanged(changes={"status": "idle", "title": None, "tags": {}})])
        record_after = await store.get(record.id)
        assert (record_after.status, record_after.title, record_after.tags) == ("idle", None, {})

    async def test_invalid_characters_in_titles_are_replaced(self, store: StoreAdmin) -> None:
        """Lone surrogates and NUL characters in a title or tag are replaced or removed; the append does not fail."""
        record = await store.create(
            events=[StateChanged(changes={"title": "a\ud800b\x00c", "tags": {"k\x00": "\udfff"}})]
        )
        assert (record.title, record.tags) == ("a?bc", {"k": "?"})
        assert await store.get(record.id) == record

    @pytest.mark.parametrize("changes", [{"status": "dancing"}, {"title": 7}, {"tags": ["a"]}, {"tags": {"a": 1}}])
    async def test_a_bad_state_change_is_refused(self, store: StoreAdmin, changes: dict[str, object]) -> None:
        """A status, title or tags of the wrong type raise InvalidInput and write nothing."""
        record = await store.create()
        with pytest.raises(InvalidInput):
            await store.append(record.id, [*make_messages("a"), StateChanged(changes=changes)])
        assert await store.get(record.id) == record

    async def test_reading_a_range(self, store: StoreAdmin) -> None:
        """`start`, `stop` and `reverse` work as in slices; a range outside the log is empty."""
        record = await store.create(events=make_messages(*range(10)))
        fork = await store.fork(record.id, at=6, events=make_messages("f6", "f7"))

        async def seqs(**fields: int | bool | None) -> list[int]:
            return [stored.seq async for stored in store.read(fork.id, **fields)]  # pyright: ignore[reportArgumentType]

        assert await seqs(start=4, stop=7) == [4, 5, 6]
        assert await seqs(start=4, stop=7, reverse=True) == [6, 5, 4]
        assert await seqs(start=-5) == list(range(8))
        assert await seqs(start=8) == await seqs(start=5, stop=5) == await seqs(start=99, stop=3) == []
        assert await seqs(stop=100, reverse=True) == list(range(7, -1, -1))

    async def test_tail(self, store: StoreAdmin) -> None:
        """Returns the last n events, oldest first, across a fork's cut."""
        record = await store.create(events=make_messages(*range(10)))
        fork = await store.fork(record.id, at=6, events=make_messages("f6", "f7"))
        assert [message_text(stored) for stored in await store.tail(fork.id, 3)] == ["5", "f6", "f7"]
        assert len(await store.tail(fork.id, 100)) == 8
        assert await store.tail(fork.id, 0) == []

    async def test_a_log_of_many_pages(self, store: StoreAdmin) -> None:
        """A log longer than a page is read completely, in both directions."""
        record = await store.create(events=make_messages(*range(3000)))
        fork = await store.fork(record.id, at=2500, events=make_messages(*range(700)))
        assert [stored.seq async for stored in store.read(fork.id)] == list(range(3200))
        assert [stored.seq async for stored in store.read(fork.id, reverse=True)] == list(range(3199, -1, -1))

    async def test_large_and_odd_payloads(self, store: StoreAdmin) -> None:
        """Ten megabytes, lone surrogates and NUL characters are stored, and the next append works."""
        record = await store.create()
        big = ToolReturned(tool_call_id="1", tool="t", result="x" * 10_000_000)
        odd = ToolReturned(tool_call_id="2", tool="t", result="a\ud800b\x00c")
        await store.append(record.id, [big])
        await store.append(record.id, [odd, *make_messages("next")])
        log = await read_log(store, record.id)
        assert log[0].event == big
        assert isinstance(log[1].event, ToolReturned)
        assert log[1].event.result == "a\ufffdb\x00c"
        assert message_text(log[2]) == "next"

    async def test_locate(self, store: StoreAdmin) -> None:
        """Returns owner and seq of an event; with `cid`, only if this log contains the event."""
        events = make_messages(*range(4))
        record = await store.create(events=events)
        early, late = await store.fork(record.id, at=2), await store.fork(record.id, at=4)
        assert await store.locate(events[2].id) == (record.id, 2)
        assert await store.locate(events[2].id, cid=late.id) == (record.id, 2)
        with pytest.raises(NotFound):
            await store.locate(events[2].id, cid=early.id)
