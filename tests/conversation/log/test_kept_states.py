"""Kept states: what is read of a long log, that it is what the whole log says, and when a state is not trusted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from bough.conversation import AsyncConversation, Turn
from bough.conversation.log import kept_states
from bough.conversation.log import state as state_module
from bough.conversation.log.journal import Journal
from bough.conversation.log.kept_states import FIELDS, SNAPSHOT, dump_state, load_state
from bough.conversation.log.state import STEP, State, TaskLink, ToolCall
from bough.events import PostgresEventStore, codec, open_store
from bough.events.model import (
    Event,
    ModelResponded,
    SkillActivated,
    StateChanged,
    TaskLinked,
    ToolCalled,
    ToolReturned,
    Usage,
    UserMessage,
)
from bough.events.store import EventStore
from bough.events.stores.postgres.reading import PostgresReading
from bough.events.stores.sqlite.reading import SqliteReading
from bough.testing.postgres import drop_schema
from bough.types import new_id

ALL_STATES = {"cid": 0, "seq": 0, "limit": 1 << 30}
pytestmark = pytest.mark.anyio

EVENTS = 2_000
WINDOW = STEP + 8
"""At most so many events are decoded: those of a step, and those of one turn in which no state fits."""


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    if request.param != "postgres":
        opened = await open_store("memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'log.db'}")
        yield opened
        await opened.aclose()
        return
    url, schema = request.getfixturevalue("postgres"), f"kept_{new_id().hex}"
    opened = await PostgresEventStore.open(url, schema=schema)
    yield opened
    await opened.aclose()
    drop_schema(url, schema)


class Reads:
    """Counts what a store is asked: rows of statements, rows of events, and events that were decoded."""

    def __init__(self) -> None:
        self.rows = self.events = self.decoded = 0

    def clear(self) -> None:
        self.rows = self.events = self.decoded = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted = Reads()
    decode = codec.decode

    def count_decoded(*columns: Any) -> Event:
        counted.decoded += 1
        return decode(*columns)

    monkeypatch.setattr(codec, "decode", count_decoded)
    for reading in (SqliteReading, PostgresReading):
        watch_reads(monkeypatch, reading, counted)
    return counted


def watch_reads(monkeypatch: pytest.MonkeyPatch, reading: Any, counted: Reads) -> None:
    query, page = reading.query, reading.page

    def count_rows(self: Any, statement: str, parameters: Any) -> Any:
        rows = query(self, statement, parameters)
        counted.rows += len(rows)
        return rows

    def count_events(self: Any, *given: Any) -> Any:
        before = counted.rows
        events, left = page(self, *given)
        counted.events += max(len(events), counted.rows - before)  # on Postgres a page is a query
        counted.rows = before
        return events, left

    monkeypatch.setattr(reading, "query", count_rows)
    monkeypatch.setattr(reading, "page", count_events)


def turn(number: int) -> list[Event]:
    """A turn of five events, with a call and its result."""
    call = {"part_kind": "tool-call", "tool_name": "look", "tool_call_id": f"c{number}", "args": "{}"}
    usage = Usage(requests=1, input_tokens=10, output_tokens=2)
    asked = {"kind": "response", "model_name": "m", "parts": [call], "timestamp": "2026-01-01T00:00:00Z"}
    said = asked | {"parts": [{"part_kind": "text", "content": f"answer {number}"}]}
    return [
        UserMessage.text(f"question {number}"),
        ModelResponded(response=asked, usage=usage, model="m", finish_reason="tool_call"),
        ToolCalled(tool_call_id=f"c{number}", tool="look", arguments={}),
        ToolReturned(tool_call_id=f"c{number}", tool="look", result="r" * 40),
        ModelResponded(response=said, usage=usage, model="m"),
    ]


async def write_turns(store: EventStore, cid: UUID, first: int, count: int) -> None:
    for number in range(first, first + count, 100):
        events = [event for n in range(number, min(number + 100, first + count)) for event in turn(n)]
        await store.append(cid, events)


@pytest.fixture
async def source(store: EventStore, tmp_path: Path, settings: Any, scripted: Any) -> AsyncConversation:
    """An open conversation of about 2,000 events whose states are kept."""
    made = await AsyncConversation.create(scripted("x"), workspace=tmp_path, store=store, settings=settings)
    await write_turns(store, made.id, 0, EVENTS // 5)
    opened = await reopen(made, scripted)
    await made.aclose()
    await opened._journal.aclose()
    return opened


async def reopen(conversation: AsyncConversation, scripted: Any) -> AsyncConversation:
    return await AsyncConversation.open(
        conversation.id, store=conversation.store, agent=scripted("x"), settings=conversation.settings
    )


async def whole(store: EventStore, cid: UUID, stop: int | None = None) -> State:
    state = State()
    async for stored in store.read(cid, 0, stop):
        state.apply(stored.seq, stored.event)
    return state


async def kept(store: EventStore) -> list[tuple[Any, ...]]:
    return await store.transaction(SNAPSHOT, lambda tables: tables.run("snapshot.kept", **ALL_STATES), read_only=True)


# what is read


async def test_a_fork_at_the_head_decodes_none_of_the_shared_events(source: AsyncConversation, reads: Reads) -> None:
    fork = await source.fork()
    assert reads.decoded <= 3, "its own first events"
    assert (reads.events, reads.rows <= 16) == (reads.decoded, True)
    assert fork.state.head == source.state.head + fork.state.head - fork.state.base


@pytest.mark.parametrize("back", [1, 2, 700, EVENTS // 2])
async def test_a_fork_further_back_reads_from_the_nearest_state(
    source: AsyncConversation, reads: Reads, back: int, scripted: Any
) -> None:
    for conversation in (source, await reopen(source, scripted)):
        reads.clear()
        fork = await conversation.fork(at=source.state.head - back)
        assert reads.decoded <= WINDOW
        assert reads.events <= WINDOW
        assert reads.rows <= 16, "of which one is a kept state"
        assert fork.state.base == source.state.head - back


async def test_opening_reads_the_end_alone(source: AsyncConversation, reads: Reads, scripted: Any) -> None:
    again = await reopen(source, scripted)
    assert (reads.decoded <= WINDOW, reads.events <= WINDOW, reads.rows <= 12) == (True, True, True)
    assert again.state == source.state


async def test_an_object_that_others_left_behind_reads_the_end_alone(
    source: AsyncConversation, reads: Reads, scripted: Any
) -> None:
    await write_turns(source.store, source.id, 1000, 400)
    other = await reopen(source, scripted)
    await other._journal.aclose()
    reads.clear()
    await source.set_title("new")
    assert reads.decoded <= WINDOW
    assert source.state == await whole(source.store, source.id)
    await write_turns(source.store, source.id, 2000, 400)
    await (await reopen(source, scripted))._journal.aclose()
    reads.clear()
    await source.fork()
    assert reads.decoded <= WINDOW + 3


@pytest.mark.parametrize("number", [0, 1, 57, 399, 400])
async def test_a_turn_is_found_without_reading_the_log(
    source: AsyncConversation, reads: Reads, number: int, scripted: Any
) -> None:
    again = await reopen(source, scripted)
    reads.clear()
    fork = await again.fork(at=Turn(number))
    assert reads.decoded <= 2 * WINDOW
    assert fork.state.base == source.state.head - 5 * (400 - number)


async def test_a_snapped_cut_is_found_without_reading_the_log(source: AsyncConversation, reads: Reads) -> None:
    start = source.state.head - EVENTS
    for at, expected in ((start + 503, start + 500), (start + 500, start + 500), (None, start + EVENTS)):
        reads.clear()
        fork = await source.fork(at=at, snap="turn")
        assert fork.state.base == expected
        assert reads.decoded <= 2 * WINDOW


async def test_a_fork_of_a_fork_uses_the_states_of_its_ancestors(source: AsyncConversation, reads: Reads) -> None:
    fork = source
    for _ in range(40):
        fork = await fork.fork()
        await fork._journal.aclose()  # its states are written in the background
    before = await kept(source.store)
    reads.clear()
    await fork.fork(at=300)
    assert reads.decoded <= WINDOW
    await fork._journal.aclose()
    assert await kept(source.store) == before, "it already exists"


# what is kept


async def test_states_are_written_as_the_log_grows_and_hold_no_results(
    store: EventStore, tmp_path: Path, settings: Any, scripted: Any
) -> None:
    conversation = await AsyncConversation.create(scripted("x"), workspace=tmp_path, store=store, settings=settings)
    for number in range(0, 120, 4):
        await conversation.append(*(event for n in range(number, number + 4) for event in turn(n)))
        await conversation._journal.aclose()
    places = [row[1] for row in await kept(store)]
    assert len(places) == conversation.state.head // STEP
    assert all(0 <= place - STEP * (i + 1) < 5 for i, place in enumerate(places))
    for place in places:
        state = await whole(store, conversation.id, place)
        assert all(call.outcome is None for call in state.calls.values())


async def test_a_state_is_what_the_whole_fold_comes_to(source: AsyncConversation) -> None:
    for _, seq, *_, data in await kept(source.store):
        assert load_state(kept_states.decompress(data)) == await whole(source.store, source.id, seq)


async def test_what_is_flipped_or_of_another_fold_is_passed_over_and_made_again(
    source: AsyncConversation, reads: Reads, scripted: Any
) -> None:
    number = await source.store.transaction(SNAPSHOT, lambda tables: tables.number(source.id), read_only=True)
    newest = (await kept(source.store))[-1]
    flipped = bytearray(newest[5])
    flipped[len(flipped) // 2] ^= 4

    def spoil(tables: Any) -> None:
        tables.run("snapshot.forget", cid=number, seq=newest[1])
        place = {"cid": number, "seq": newest[1], "turns": newest[3], "digest": newest[4]}
        tables.run("snapshot.keep", fold=newest[2], state=bytes(flipped), **place)

    await source.store.transaction(SNAPSHOT, spoil)
    again = await reopen(source, scripted)
    assert again.state == source.state
    assert STEP < reads.decoded <= 2 * WINDOW, "from the state before it"
    await again._journal.aclose()
    assert (await kept(source.store))[-1] == newest

    def forget_fold(tables: Any) -> None:
        for cid, seq, _, turns, digest, state in tables.run("snapshot.kept", **ALL_STATES):
            tables.run("snapshot.forget", cid=cid, seq=seq)
            tables.run("snapshot.keep", cid=cid, seq=seq, fold="0:other", turns=turns, digest=digest, state=state)

    await source.store.transaction(SNAPSHOT, forget_fold)
    reads.clear()
    again = await reopen(source, scripted)
    assert (again.state, reads.decoded >= EVENTS) == (source.state, True)
    await again._journal.aclose()
    assert {row[2] for row in await kept(source.store)} == {kept_states.name_fold()}


async def test_erasing_removes_the_states_of_the_tree_and_none_is_written_from_before(
    source: AsyncConversation, scripted: Any
) -> None:
    fork = await source.fork(at=EVENTS // 2)
    open_fork = await fork.fork()
    await source.store.delete(source.id, "erase")
    assert await kept(source.store) == []
    await open_fork.append(*(event for n in range(40) for event in turn(n)))
    await open_fork._journal.aclose()
    assert await kept(source.store) == [], "a state that was folded before would bring the erased text back"
    again = await reopen(open_fork, scripted)
    await again._journal.aclose()
    assert again.state == await whole(source.store, open_fork.id)
    assert [row for row in await kept(source.store) if b"question" in kept_states.decompress(row[5])] == []


async def test_what_a_deletion_trims_takes_its_states_along(source: AsyncConversation) -> None:
    fork = await source.fork(at=700)
    await source.store.delete(source.id)
    assert max(row[1] for row in await kept(source.store)) <= 700
    await fork.store.delete(fork.id)
    assert await kept(source.store) == []


async def test_a_large_state_is_left_out(
    source: AsyncConversation, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_states, "MOST_BYTES", 100)
    before = await kept(source.store)
    await write_turns(source.store, source.id, 5000, 100)
    again = await reopen(source, scripted)
    await again._journal.aclose()
    assert (await kept(source.store), again.state.head) == (before, source.state.head + 500)


# the loop


async def test_folding_gives_the_loop_a_turn_every_few_events(
    source: AsyncConversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "BLOCKING_SECONDS", 0.0)
    decoded, since, most = 0, 0, 0
    original = codec.decode

    def decode(*columns: Any) -> Event:
        nonlocal decoded, since
        decoded, since = decoded + 1, since + 1
        return original(*columns)

    async def tick() -> None:
        nonlocal since, most
        while True:
            most, since = max(most, since), 0
            await asyncio.sleep(0)

    monkeypatch.setattr(codec, "decode", decode)
    ticking = asyncio.create_task(tick())
    await source._journal.render()
    journal = Journal(source.store, source.id)
    monkeypatch.setattr(kept_states, "name_fold", lambda: "none")
    await journal.catch_up()
    ticking.cancel()
    assert (decoded >= 2 * EVENTS, most <= state_module.CLOCK_EVENTS) == (True, True)
    await journal.aclose()


# the form


def test_every_field_of_a_state_has_a_form() -> None:
    assert FIELDS.keys() == {field.name for field in fields(State)}, (
        "a new field of State needs a line in log/kept_states.py FIELDS, and FOLD one more"
    )


def test_a_state_reads_as_it_was_written() -> None:
    state = State(
        base=3,
        head=12,
        status="waiting_for_confirmation",
        title="t",
        tags={"a": "b"},
        agent={"name": "n"},
        workspace=Path("/w"),
        calls={"c": ToolCall(id="c", tool="t", arguments={"x": float("inf")}, started=True, carried=True)},
        waiting={"c": {"risk": None}},
        own=Usage(requests=2, input_tokens=3, cost_usd=0.5),
        task=("skill", {"a": "b"}),
        allowed_tools=("a", "b"),
        data=[1, None, {"x": "é"}],
        tasks={"t": TaskLink(agent="a", ended=3)},
        turns=2,
        response_seq=9,
        last_id=UUID(int=7),
    )
    assert load_state(dump_state(state)) == state
    assert load_state(dump_state(State())) == State()


async def test_a_new_version_of_an_event_is_another_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept_states.name_fold()
    monkeypatch.setattr(codec, "_VERSIONS", {**codec._VERSIONS, "Condensed": 9})
    assert kept_states.name_fold() != before


async def test_links_skills_and_changes_survive(store: EventStore) -> None:
    cid = (await store.create()).id
    events: list[Event] = [
        StateChanged(changes={"status": "running", "title": "x", "policies": {"a": 1}}),
        TaskLinked(task_id="t", background=True),
        SkillActivated(name="s", content_hash="h", rendered="text", trigger="task", inputs={"a": "b"}),
    ]
    await store.append(cid, events)
    await write_turns(store, cid, 0, 40)
    journal = Journal(store, cid)
    await journal.catch_up()
    await journal.aclose()
    again = Journal(store, cid)
    await again.catch_up()
    assert again.state == journal.state == await whole(store, cid)
    assert (await again.render()).messages() == (await journal.render()).messages()
