"""A page of events reads what it shows, and is encoded from rows to the very bytes that typed events gave."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pydantic_core
import pytest

from bough.errors import CorruptLog, StoreError
from bough.events import SqliteEventStore
from bough.events.codec import encode
from bough.events.model import ModelResponded, ToolReturned, UserMessage
from bough.events.record import StoredEvent
from bough.server.auth.owned import OwnedStore
from bough.server.bodies.events import EventPage, OurEvents
from bough.server.bodies.openhands_events import OpenHandsEvents
from bough.server.reading import EventReader
from bough.types import new_id

pytestmark = pytest.mark.anyio

WIRE: dict[str, Any] = json.loads((Path(__file__).parent.parent / "golden" / "wire" / "events.json").read_text("utf-8"))
"""By name, a row and what both forms made of it when messages were still encoded from typed events."""

LENGTH = 600


def stored_of(row: Any, raw: bytes) -> StoredEvent:
    ts = datetime.fromisoformat(row["ts"])
    return StoredEvent(seq=3, id=UUID(row["id"]), kind=row["kind"], ts=ts, raw=raw)


@pytest.mark.parametrize("name", WIRE)
def test_a_row_is_encoded_to_the_bytes_of_its_typed_event(name: str) -> None:
    row = WIRE[name]
    stored = stored_of(row, row["raw"].encode())
    upcast = stored_of(row, encode(stored.event))  # every field is set
    form = OpenHandsEvents()
    for event in (stored, upcast) if row["kind"] in ("UserMessage", "ModelResponded") else (stored,):
        assert pydantic_core.to_json(form.encode(event, {"c1": "made-c1"})).decode() == row["openhands"]
        assert form.calls_made(event) == row["calls"]
    assert pydantic_core.to_json(OurEvents().encode(stored, {})).decode() == row["ours"]


@pytest.mark.parametrize("kind", ["UserMessage", "ModelResponded"])
def test_a_row_that_cannot_be_read_says_why(kind: str) -> None:
    row = WIRE[f"v2/{kind}"]
    for raw, error in ((b"{}", CorruptLog), (b"[]", CorruptLog), (b"{", CorruptLog)):
        with pytest.raises(error):
            OpenHandsEvents().encode(stored_of(row, raw), {})
    with pytest.raises(StoreError, match="newer bough"):
        OpenHandsEvents().encode(stored_of(row, b'{"schema_version":99,"content":[],"response":{}}'), {})


class CountingStore(SqliteEventStore):
    """Counts the rows that are read."""

    rows = 0

    async def _read_log(self, *given: Any) -> Any:
        answer = await super()._read_log(*given)
        self.rows += len(answer[0])
        return answer


async def read_page(store: CountingStore, cid: UUID, limit: int, **query: Any) -> tuple[list[Any], str | None, int]:
    owned = OwnedStore(store, None)
    reader = EventReader(store=owned, cid=cid, head=(await owned.get(cid)).head, form=OpenHandsEvents())
    store.rows = 0
    page = await reader.page(EventPage(limit=limit, **query), limit=limit)
    return page.items, page.next_page_id, store.rows


async def read_all(store: CountingStore, cid: UUID, limit: int, **query: Any) -> list[Any]:
    items, next_id, _ = await read_page(store, cid, limit, **query)
    while next_id is not None:
        more, next_id, _ = await read_page(store, cid, limit, page_id=next_id, **query)
        items += more
    return items


@pytest.mark.parametrize("order", ["TIMESTAMP", "TIMESTAMP_DESC"])
async def test_a_page_reads_one_row_more_than_it_shows(tmp_path: Path, order: str) -> None:
    store = await CountingStore.open(tmp_path / "log.db")
    try:
        record = await store.create(events=[UserMessage.text(str(n)) for n in range(LENGTH)])
        for limit in (1, 10, 100):
            items, next_id, rows = await read_page(store, record.id, limit, sort_order=order)
            assert (len(items), rows) == (limit, limit + 1)
            items, next_id, rows = await read_page(store, record.id, limit, sort_order=order, page_id=next_id)
            assert (len(items), rows) == (limit, limit + 1), "in the middle too"
        last, next_id, rows = await read_page(store, record.id, 10, sort_order=order, after=LENGTH - 5)
        assert (len(last), next_id, rows) == (4, None, 4)
    finally:
        await store.aclose()


async def test_pages_of_any_size_show_the_same_parts(tmp_path: Path) -> None:
    """Results name the call that made them, wherever a page ends: before it, behind it, or between its parts."""
    call = {"part_kind": "tool-call", "tool_name": "t", "args": {}}
    store = await CountingStore.open(tmp_path / "log.db")
    try:
        record = await store.create()
        for n in range(30):
            calls = [call | {"tool_call_id": f"{n}-{i}"} for i in range(3)]
            results = [ToolReturned(tool_call_id=f"{n}-{i}", tool="t", result=i) for i in range(3)]
            response = ModelResponded(response={"parts": calls})
            await store.append(record.id, [UserMessage.text("go"), response, *results])
        whole = await read_all(store, record.id, 500)
        assert len(whole) == 30 * 7
        made = {part["tool_call_id"]: part["id"] for part in whole if part["kind"] == "ActionEvent"}
        observations = [part for part in whole if part["kind"] == "ObservationEvent"]
        assert all(part["action_id"] == made[part["tool_call_id"]] for part in observations)
        for limit in (1, 2, 5, 16, 100):
            assert await read_all(store, record.id, limit) == whole
            assert await read_all(store, record.id, limit, sort_order="TIMESTAMP_DESC") == whole[::-1]
        assert await read_all(store, record.id, 4, kind="ObservationEvent") == observations
        descending = await read_all(store, record.id, 4, kind="ObservationEvent", sort_order="TIMESTAMP_DESC")
        assert descending == observations[::-1]
    finally:
        await store.aclose()


async def test_a_part_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    from bough.errors import NotFound

    store = await CountingStore.open(tmp_path / "log.db")
    try:
        id = new_id()
        record = await store.create(events=[UserMessage.text("x", id=id)])
        reader = EventReader(store=OwnedStore(store, None), cid=record.id, head=1, form=OpenHandsEvents())
        assert (await reader.one(str(id)))["id"] == str(id)
        with pytest.raises(NotFound):
            await reader.one(f"{id}.1")
    finally:
        await store.aclose()
