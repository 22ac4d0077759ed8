"""A kept state with the rest of the log is what the whole log says: at every cut, whatever was done to the tree."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from bough.conversation.log import kept_states
from bough.conversation.log import state as state_module
from bough.conversation.log.journal import Journal
from bough.conversation.log.kept_states import SNAPSHOT
from bough.conversation.log.state import State
from bough.conversation.log.view import View
from bough.events import PostgresEventStore, SqliteEventStore
from bough.events.model import (
    Condensed,
    Event,
    ForkedFrom,
    ModelResponded,
    SkillActivated,
    StateChanged,
    ToolCalled,
    ToolInterrupted,
    ToolReturned,
    Usage,
    UserMessage,
)
from bough.events.store import EventStore
from bough.testing.postgres import drop_schema
from bough.types import new_id

EXAMPLES = 60 if os.environ.get("CI") else 10
STEPS = 14
STEP = 8
PICK = st.integers(0, 10**6)


class Tree(RuleBasedStateMachine):
    """Appends, forks, deletes and erases; journals stay open in between, as objects of a program do."""

    store: ClassVar[EventStore]
    runner: ClassVar[asyncio.Runner]

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.living: list[UUID] = []
        self.journals: dict[UUID, Journal] = {}
        self._begin()

    def _begin(self) -> None:
        cid = self.run(self.store.create()).id
        self.living.append(cid)

    def run(self, call: Any) -> Any:
        return self.runner.run(call)

    def pick(self, pick: int) -> UUID:
        return self.living[pick % len(self.living)]

    def journal(self, cid: UUID) -> Journal:
        if cid not in self.journals:
            self.journals[cid] = Journal(self.store, cid)
        return self.journals[cid]

    @rule()
    def create(self) -> None:
        self._begin()

    @precondition(lambda self: self.living)
    @rule(pick=PICK, count=st.integers(1, 6), through=st.booleans(), shape=PICK)
    def append(self, pick: int, count: int, through: bool, shape: int) -> None:
        cid = self.pick(pick)
        events = [event for n in range(count) for event in self.turn(shape + n)]
        if through:
            journal = self.journal(cid)
            self.run(self._append(journal, events))
        else:
            self.run(self.store.append(cid, events))

    async def _append(self, journal: Journal, events: list[Event]) -> None:
        await journal.catch_up()
        for start in range(0, len(events), 3):
            await journal.append(*events[start : start + 3])
        await journal.aclose()

    @precondition(lambda self: self.living)
    @rule(pick=PICK)
    def condense(self, pick: int) -> None:
        cid = self.pick(pick)
        journal = self.journal(cid)
        self.run(journal.catch_up())
        shown = self.run(journal.render()).shown
        if len(shown) > 4:
            event = Condensed(start=shown[1].start, stop=shown[-2].stop, summary="short")
            self.run(self._append(journal, [event]))

    @precondition(lambda self: self.living)
    @rule(pick=PICK, at=PICK, kept=st.booleans())
    def fork(self, pick: int, at: int, kept: bool) -> None:
        cid = self.pick(pick)
        journal = self.journal(cid)
        self.run(journal.catch_up())
        cut = at % (journal.state.head + 1)
        there = self.run(journal.cut(cut))
        closing = [ToolInterrupted(tool_call_id=c.id, tool=c.tool, reason="forked") for c in there.state.open_calls]
        first = ForkedFrom(source=cid, at=cut, event_id=there.state.last_id, source_head=journal.state.head)
        made = self.run(self.store.fork(cid, at=cut, events=[first, *closing]))
        self.living.append(made.id)
        if kept:
            self.journals[made.id] = self.run(there.make_fork(made.id))

    @precondition(lambda self: self.living)
    @rule(pick=PICK, mode=st.sampled_from(["tombstone", "erase", "erase"]))
    def delete(self, pick: int, mode: Any) -> None:
        cid = self.pick(pick)
        self.run(self.store.delete(cid, mode))
        self.living.remove(cid)
        self.journals.pop(cid, None)

    @rule(pick=PICK)
    def damage(self, pick: int) -> None:
        def spoil(tables: Any) -> None:
            rows = tables.run("snapshot.kept", cid=0, seq=0, limit=1 << 30)
            if rows:
                cid, seq, name, turns, digest, state = rows[pick % len(rows)]
                tables.run("snapshot.forget", cid=cid, seq=seq)
                spoilt = {"fold": "0:other"} if pick % 3 == 0 else {"fold": name, "state": state[:-1]}
                tables.run("snapshot.keep", cid=cid, seq=seq, turns=turns, digest=digest, **{"state": state} | spoilt)

        self.run(self.store.transaction(SNAPSHOT, spoil))

    @precondition(lambda self: self.living)
    @rule(pick=PICK)
    def reopen(self, pick: int) -> None:
        cid = self.pick(pick)
        self.journals[cid] = journal = Journal(self.store, cid)
        self.run(journal.catch_up())
        self.run(journal.aclose())

    @invariant()
    def every_cut_is_the_whole_fold(self) -> None:
        if self.living:
            cid = self.living[self.turns % len(self.living)]
            self.run(self._compare(cid))

    async def _compare(self, cid: UUID) -> None:
        fresh = Journal(self.store, cid)
        await fresh.catch_up()
        state, view, seq = State(), View(), 0
        async for stored in self.store.read(cid):
            if seq % 5 == 0:
                assert (await fresh.cut(seq)).state == state
                nearest = await kept_states.find_nearest(self.store, cid, seq)
                assert nearest is not None
                assert nearest.state is None or nearest.state.head <= seq
            state.apply(stored.seq, stored.event)
            view.apply(stored.seq, stored.event)
            seq += 1
        assert fresh.state == state
        assert (await fresh.render()).messages() == view.messages()
        await fresh.aclose()

    def turn(self, shape: int) -> list[Event]:
        self.turns += 1
        number = self.turns
        call = {"part_kind": "tool-call", "tool_name": "look", "tool_call_id": f"c{number}", "args": "{}"}
        response = {"kind": "response", "model_name": "m", "timestamp": "2026-01-01T00:00:00Z"}
        usage = Usage(requests=1, input_tokens=number)
        asked = ModelResponded(response=response | {"parts": [call]}, usage=usage, model="m")
        said = {"part_kind": "text", "content": f"answer {number}"}
        events: list[Event] = [
            UserMessage.text(f"question {number}"),
            asked,
            ToolCalled(tool_call_id=f"c{number}", tool="look", arguments={}),
            ToolReturned(tool_call_id=f"c{number}", tool="look", result=number),
            ModelResponded(response=response | {"parts": [said]}, usage=usage, model="m"),
        ]
        match shape % 7:
            case 0:
                return events[:3]
            case 1:
                return [*events, StateChanged(changes={"status": "finished", "title": f"t{number}"})]
            case 2:
                skill = SkillActivated(name="s", content_hash="h", rendered=f"skill {number}", trigger="keyword")
                return [skill, *events]
            case _:
                return events


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[type[Tree]]:
    with asyncio.Runner() as runner:
        schema = f"kept_{new_id().hex}"
        if request.param == "postgres":
            url = request.getfixturevalue("postgres")
            opening: Any = PostgresEventStore.open(url, schema=schema)
        else:
            opening = SqliteEventStore.open_private() if request.param == "memory" else None
            opening = opening or SqliteEventStore.open(tmp_path / "log.db")
        store = runner.run(opening)
        yield type("TreeOf" + request.param, (Tree,), {"store": store, "runner": runner})
        runner.run(store.aclose())
        if request.param == "postgres":
            drop_schema(url, schema)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_kept_state_and_the_rest_are_the_whole_fold(tree: type[Tree], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "STEP", STEP)
    monkeypatch.setattr("bough.conversation.log.write_buffer.STEP", STEP)
    run_state_machine_as_test(
        tree, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None)
    )
