"""Kept states: snapshots of a log's fold in a side table, so that opening or forking a long log reads only its end.

A state is keyed by the owner of the event before it, as events are. So forks share states as they share events, and a
sibling's states are never read. States are a cache: a missing one costs one fold, and one of another fold version or
with a wrong digest is ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zlib import compress, crc32, decompress
from zlib import error as ZlibError

import pydantic_core

from bough.conversation.log.state import State, TaskLink, ToolCall
from bough.errors import BoughError, StoreError, Unavailable
from bough.events.codec import describe_versions
from bough.events.model import Usage
from bough.events.side_tables import SideTables, Tables
from bough.events.store import EventStore
from bough.types import JsonObject

SNAPSHOT = SideTables("snapshot", "bough.conversation.log.sql")
"""The table of kept states."""

FOLD = 4
"""The version of the fold. Increase it whenever `State.apply` returns another state for the same events."""

MOST_BYTES = 256 << 10
"""The largest compressed state that is kept."""

_AT_ONCE = 64
_ANY_TURN = (1 << 62) - 1
_LOG = logging.getLogger("bough.conversation")

_Convert = Callable[[Any], Any]


def _as_is(value: Any) -> Any:
    return value


def _dump_usage(usage: Usage) -> JsonObject:
    return usage.model_dump(mode="json")


def _dump_calls(calls: dict[str, ToolCall]) -> list[JsonObject]:
    return [{key: value for key, value in asdict(call).items() if key != "outcome"} for call in calls.values()]


def _load_calls(calls: list[JsonObject]) -> dict[str, ToolCall]:
    return {call["id"]: ToolCall(**call) for call in calls}


FIELDS: dict[str, tuple[_Convert, _Convert]] = {
    "base": (_as_is, _as_is),
    "head": (_as_is, _as_is),
    "status": (_as_is, _as_is),
    "title": (_as_is, _as_is),
    "tags": (_as_is, _as_is),
    "agent": (_as_is, _as_is),
    "workspace": (str, Path),
    "workspace_policy": (_as_is, _as_is),
    "instructions": (_as_is, _as_is),
    "policies": (_as_is, _as_is),
    "calls": (_dump_calls, _load_calls),
    "unanswered": (_as_is, _as_is),
    "pausing": (_as_is, _as_is),
    "waiting": (_as_is, _as_is),
    "request_tokens": (_as_is, _as_is),
    "limit": (_as_is, _as_is),
    "own": (_dump_usage, Usage.model_validate),
    "delegated": (_dump_usage, Usage.model_validate),
    "inherited": (_dump_usage, Usage.model_validate),
    "began": (_dump_usage, Usage.model_validate),
    "spent": (_as_is, _as_is),
    "active_skills": (_as_is, _as_is),
    "skill_trees": (_as_is, _as_is),
    "changed_rules": (sorted, frozenset),
    "task": (_as_is, lambda task: None if task is None else (task[0], task[1])),
    "allowed_tools": (_as_is, lambda tools: None if tools is None else tuple(tools)),
    "output": (_as_is, _as_is),
    "finish_reason": (_as_is, _as_is),
    "partial": (_as_is, _as_is),
    "data": (_as_is, _as_is),
    "tasks": (
        lambda tasks: {id: asdict(link) for id, link in tasks.items()},
        lambda tasks: {id: TaskLink(**link) for id, link in tasks.items()},
    ),
    "turns": (_as_is, _as_is),
    "turned": (_as_is, _as_is),
    "responded": (_as_is, _as_is),
    "last": (lambda id: None if id is None else id.hex, lambda text: None if text is None else UUID(text)),
    "imported": (_as_is, _as_is),
    "quarantined": (_as_is, _as_is),
    "_last_message": (_as_is, _as_is),
    "_seen": (_as_is, _as_is),
}
"""For each field of `State`, the functions that convert it to JSON and back."""


def dump_state(state: State) -> bytes:
    """Return a state as JSON, without the outcomes of calls."""
    values = {name: dump(getattr(state, name)) for name, (dump, _) in FIELDS.items()}
    return pydantic_core.to_json(values, inf_nan_mode="constants")


def load_state(data: bytes) -> State:
    """Return the state that `dump_state` wrote.

    Raises:
        ValueError, KeyError, TypeError: It is not a state of this fold.
    """
    values = pydantic_core.from_json(data)
    state = State()
    for name, (_, load) in FIELDS.items():
        setattr(state, name, load(values[name]))
    return state


def name_fold() -> str:
    """Return the identity of this fold. It changes with the version of any event, which invalidates all kept states."""
    return f"{FOLD}:{crc32(describe_versions().encode()):08x}"


class Nearest(NamedTuple):
    """The latest kept state of a log at or before a cut.

    Attributes:
        head: Number of events of the log.
        erased: Identifies what was erased in the log; it changes with every erasure.
        state: None if no state is kept.
    """

    head: int
    erased: str
    state: State | None


class LogMark(NamedTuple):
    """The length of a log and what was erased in it. Two equal marks mean that the log did not change."""

    head: int
    erased: str


class _Row(NamedTuple):
    cid: int
    seq: int
    turns: int
    digest: int
    state: bytes


async def read_mark(store: EventStore, cid: UUID) -> LogMark | None:
    """Return the length of a log and what was erased in it, or None if there is no such conversation. Reads one row.

    Raises:
        StoreError: The store has no table of kept states, and none can be created.
    """

    def look(tables: Tables) -> LogMark | None:
        head, erased = tables.one("snapshot.log", id=cid) or (None, "")
        return None if head is None else LogMark(head, erased)

    return await store.transaction(SNAPSHOT, look, read_only=True, small=True)


async def find_nearest(
    store: EventStore, cid: UUID, cut: int | None = None, turns: int | None = None
) -> Nearest | None:
    """Return the latest kept state of a log. Reads one row; damaged states are skipped and deleted.

    Args:
        cut: The highest number of events that the state may have folded.
        turns: The highest number of turns that may have begun in it.

    Returns:
        None if there is no such conversation or no table: the store is read-only, or from a newer version.
    """
    damaged: list[_Row] = []
    fold = name_fold()

    def look(tables: Tables) -> Nearest | None:
        damaged.clear()
        head, erased = tables.one("snapshot.log", id=cid) or (None, "")
        if head is None:
            return None
        place = head if cut is None else min(cut, head)
        bounds = {"id": cid, "fold": fold, "turns": _ANY_TURN if turns is None else turns}
        while (columns := tables.one("snapshot.nearest", cut=place, **bounds)) is not None:
            row = _Row(*columns)
            if (state := _read(row, fold)) is not None:
                return Nearest(head, erased, state)
            damaged.append(row)
            place = row.seq - 1
        return Nearest(head, erased, None)

    try:
        columns = await store.transaction(SNAPSHOT, look, read_only=True)
        if damaged:
            _LOG.warning("%d kept states of %s are damaged; they are made again", len(damaged), cid)
            await store.transaction(SNAPSHOT, lambda tables: _forget(tables, damaged))
    except (StoreError, Unavailable) as error:
        _LOG.debug("no kept states of %s: %s", cid, error)
        return None
    return columns


class StateCount(NamedTuple):
    """The number of kept states, of those of another fold, and of those whose digest is wrong."""

    kept: int
    other: int
    damaged: int


async def count_states(store: EventStore) -> StateCount:
    """Check every kept state against its digest. O(states), a few of them at a time in memory.

    Raises:
        Unavailable: The store is read-only and has no table of kept states.
        StoreError: They come from a newer version.
    """
    fold, counts = name_fold(), [0, 0, 0]
    cid = seq = 0
    more = True
    while more:
        place = {"cid": cid, "seq": seq, "limit": _AT_ONCE}
        rows = await store.transaction(
            SNAPSHOT, lambda tables, place=place: tables.run("snapshot.kept", **place), read_only=True
        )
        for cid, seq, made_by, turns, digest, state in rows:
            counts[0] += 1
            counts[1] += made_by != fold
            counts[2] += digest != _digest(cid, seq, made_by, turns, state)
        more = len(rows) == _AT_ONCE
    return StateCount(*counts)


def keep_states(tables: Tables, cid: UUID, states: Sequence[State], erased: str) -> bool:
    """Write states of a log. Returns False, and writes none, if something was erased since they were folded."""
    # Before the check: an erasure in between would be overwritten by a state that contains the erased text.
    tables.run("snapshot.lock", id=cid)
    _, now = tables.one("snapshot.log", id=cid) or (None, "")
    if now != erased:
        return False
    fold = name_fold()
    for state in states:
        owner = tables.one("snapshot.owner", id=cid, seq=state.head, event=state.last)
        data = compress(dump_state(state), 1)
        if owner is None or len(data) > MOST_BYTES:
            continue
        digest = _digest(owner[0], state.head, fold, state.turns, data)
        place = {"cid": owner[0], "seq": state.head}
        tables.run("snapshot.keep", **place, fold=fold, turns=state.turns, digest=digest, state=data)
    return True


def _read(row: _Row, fold: str) -> State | None:
    if row.digest != _digest(row.cid, row.seq, fold, row.turns, row.state):
        return None
    try:
        state = load_state(decompress(row.state))
    except (ValueError, KeyError, TypeError, AttributeError, ZlibError):
        return None
    return state if state.head == row.seq else None


def _digest(cid: int, seq: int, fold: str, turns: int, state: bytes) -> int:
    return crc32(f"{cid} {seq} {fold} {turns} ".encode() + state)


def _forget(tables: Tables, rows: Sequence[_Row]) -> None:
    for row in rows:
        tables.run("snapshot.forget", cid=row.cid, seq=row.seq)


class StateWriter:
    """Writes the states of a fold once their events are durable. In the background, one write at a time.

    Attributes:
        erased: Identifies what had been erased in the log when its fold began; None until it is known.
    """

    def __init__(self, store: EventStore, cid: UUID, *, after: StateWriter | None = None) -> None:
        self._store = store
        self._cid = cid
        self._written = 0 if after is None else after._written
        self._is_over = False if after is None else after._is_over
        self._task: asyncio.Task[None] | None = None if after is None else after._task
        self.erased: str | None = None if after is None else after.erased

    def skip(self, head: int) -> None:
        """Skip states of at most `head` events, which are stored already."""
        self._written = max(self._written, head)

    def write(self, states_to_keep: Sequence[State], durable: int) -> None:
        """Write the new states of at most `durable` events. O(1) if there are none."""
        if self._is_over or not states_to_keep or states_to_keep[-1].head <= self._written or not self._is_idle:
            return
        states = [state for state in states_to_keep if self._written < state.head <= durable]
        if states:
            self._task = asyncio.create_task(self._write(states), name=f"states of {self._cid}")

    async def settle(self) -> None:
        """Wait until no state is being written."""
        if self._task is not None:
            await asyncio.wait([self._task])

    @property
    def _is_idle(self) -> bool:
        return self._task is None or self._task.done()

    async def _write(self, states: Sequence[State]) -> None:
        try:
            if self.erased is None:
                self.erased = await self._learn_erased(states[0])
            if self.erased is None:
                self._is_over = True
                return
            for first in range(0, len(states), _AT_ONCE):
                some = states[first : first + _AT_ONCE]
                change = partial(keep_states, cid=self._cid, states=some, erased=self.erased)
                if not await self._store.transaction(SNAPSHOT, change):
                    self._is_over = True
                    return
                self._written = some[-1].head
        except BoughError as error:  # states are a cache: losing one costs one fold
            self._is_over = True
            _LOG.debug("states of %s are not kept: %s", self._cid, error)

    async def _learn_erased(self, state: State) -> str | None:
        """Return the present value of `erased` if folding the log again gives the same state, else None."""
        # Otherwise something was erased while the log was folded, and the states contain it.
        nearest = await find_nearest(self._store, self._cid, state.head)
        if nearest is None:
            return None
        again = State() if nearest.state is None else nearest.state
        async for stored in self._store.read(self._cid, again.head, state.head):
            again.apply(stored.seq, stored.event)
        return nearest.erased if again == state else None
