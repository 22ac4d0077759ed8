"""Kept states: snapshots of a log's fold in a side table, so that opening or forking a long log reads only its end.

A state has the key of the event before it: the conversation that wrote the event, and a seq. So forks share states as
they share events, and a sibling's states are never read. States are a cache: a missing state costs one fold, and a
state of another fold version or with a wrong digest is ignored.
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

from bough.conversation.log.state import KeptFiles, State, TaskLink, ToolCall
from bough.errors import BoughError, StoreError, Unavailable
from bough.events.codec import describe_versions
from bough.events.model import Usage
from bough.events.side_tables import SideTables, Tables
from bough.events.store import EventStore
from bough.types import JsonObject

SNAPSHOT = SideTables("snapshot", "bough.conversation.log.sql")
"""The table of kept states."""

FOLD = 5
"""The version of the fold. Increase it whenever `State.apply` results in another state for the same events."""

MOST_BYTES = 256 << 10
"""The largest compressed state that is kept."""

_BATCH_STATES = 64
"""How many states are read or written in one transaction."""

_MAX_TURNS = (1 << 62) - 1
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
    "used_before_run": (_dump_usage, Usage.model_validate),
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
    "turn_start": (_as_is, _as_is),
    "response_seq": (_as_is, _as_is),
    "last_id": (lambda id: None if id is None else id.hex, lambda text: None if text is None else UUID(text)),
    "import_seq": (_as_is, _as_is),
    "quarantined": (_as_is, _as_is),
    "files": (
        lambda files: None if files is None else asdict(files),
        lambda files: None if files is None else KeptFiles(**files),
    ),
    "_last_message": (_as_is, _as_is),
    "_seen": (_as_is, _as_is),
}
"""For each field of `State`, the functions that convert it to JSON and back."""

_KEYS = {
    "used_before_run": "began",
    "turn_start": "turned",
    "response_seq": "responded",
    "last_id": "last",
    "import_seq": "imported",
}
"""JSON keys of the fields whose key is not their name: kept states are read again as long as the keys stay."""


def dump_state(state: State) -> bytes:
    """Return a state as JSON, without the outcomes of calls."""
    values = {_KEYS.get(name, name): dump(getattr(state, name)) for name, (dump, _) in FIELDS.items()}
    return pydantic_core.to_json(values, inf_nan_mode="constants")


def load_state(data: bytes) -> State:
    """Return the state that `dump_state` wrote.

    Raises:
        ValueError, KeyError, TypeError: The data is not a state of this fold version.
    """
    values = pydantic_core.from_json(data)
    state = State()
    for name, (_, load) in FIELDS.items():
        setattr(state, name, load(values[_KEYS.get(name, name)]))
    return state


def name_fold() -> str:
    """Return the identity of this fold: its version and a digest of all event versions. Other states are ignored."""
    return f"{FOLD}:{crc32(describe_versions().encode()):08x}"


class Nearest(NamedTuple):
    """The latest kept state of a log at or before a cut.

    Attributes:
        head: Number of events of the log.
        erasure_token: Changes with every erasure in the log.
        state: None if no state is kept.
    """

    head: int
    erasure_token: str
    state: State | None


class LogMark(NamedTuple):
    """The length of a log and its erasure token. If two marks are equal, the log did not change."""

    head: int
    erasure_token: str


class _Row(NamedTuple):
    cid: int
    seq: int
    turns: int
    digest: int
    state: bytes


async def read_mark(store: EventStore, cid: UUID) -> LogMark | None:
    """Return the mark of a log; None if the conversation does not exist. Reads one row.

    Raises:
        StoreError: The store has no table of kept states, and none can be created.
    """

    def query(tables: Tables) -> LogMark | None:
        head, erasure_token = tables.one("snapshot.log", id=cid) or (None, "")
        return None if head is None else LogMark(head, erasure_token)

    return await store.transaction(SNAPSHOT, query, read_only=True, small=True)


async def find_nearest(
    store: EventStore, cid: UUID, cut: int | None = None, turns: int | None = None
) -> Nearest | None:
    """Return the latest kept state of a log. Reads one row; damaged states are skipped and deleted.

    Args:
        cut: The highest number of events that the state may have folded.
        turns: The highest number of turns that may have begun in the state.

    Returns:
        None if the conversation does not exist, or if the table of kept states cannot be used: it is missing in a
        read-only store, or comes from a newer version.
    """
    damaged: list[_Row] = []
    fold = name_fold()

    def query(tables: Tables) -> Nearest | None:
        damaged.clear()
        head, erasure_token = tables.one("snapshot.log", id=cid) or (None, "")
        if head is None:
            return None
        max_head = head if cut is None else min(cut, head)
        conditions = {"id": cid, "fold": fold, "turns": _MAX_TURNS if turns is None else turns}
        while (columns := tables.one("snapshot.nearest", cut=max_head, **conditions)) is not None:
            row = _Row(*columns)
            state = _load_row(row, fold)
            if state is not None:
                return Nearest(head, erasure_token, state)
            damaged.append(row)
            max_head = row.seq - 1
        return Nearest(head, erasure_token, None)

    try:
        nearest = await store.transaction(SNAPSHOT, query, read_only=True)
        if damaged:
            _LOG.warning("%d kept states of %s are damaged and will be rebuilt", len(damaged), cid)
            await store.transaction(SNAPSHOT, lambda tables: _delete_rows(tables, damaged))
    except (StoreError, Unavailable) as error:
        _LOG.debug("no kept states of %s: %s", cid, error)
        return None
    return nearest


class StateCount(NamedTuple):
    """Numbers of kept states.

    Attributes:
        total: All kept states.
        outdated: States of another fold version.
        damaged: States with a wrong digest.
    """

    total: int
    outdated: int
    damaged: int


async def count_states(store: EventStore) -> StateCount:
    """Check every kept state against its digest, and count them. O(states), 64 at a time in memory.

    Raises:
        Unavailable: The store is read-only and has no table of kept states.
        StoreError: The table comes from a newer version.
    """
    fold = name_fold()
    total = outdated = damaged = 0
    cid = seq = 0
    has_more = True
    while has_more:
        page = {"cid": cid, "seq": seq, "limit": _BATCH_STATES}
        rows = await store.transaction(
            SNAPSHOT, lambda tables, page=page: tables.run("snapshot.kept", **page), read_only=True
        )
        for cid, seq, state_fold, turns, digest, state in rows:
            total += 1
            outdated += state_fold != fold
            damaged += digest != _compute_digest(cid, seq, state_fold, turns, state)
        has_more = len(rows) == _BATCH_STATES
    return StateCount(total, outdated, damaged)


def keep_states(tables: Tables, cid: UUID, states: Sequence[State], erasure_token: str) -> bool:
    """Write states of a log. Returns False, and writes none, if something was erased since they were folded.

    Args:
        erasure_token: The erasure token of the log when the states were folded.
    """
    # Locked before the check: otherwise text could be erased after the check, and be written again with a state.
    tables.run("snapshot.lock", id=cid)
    _, present_token = tables.one("snapshot.log", id=cid) or (None, "")
    if present_token != erasure_token:
        return False
    fold = name_fold()
    for state in states:
        owner = tables.one("snapshot.owner", id=cid, seq=state.head, event=state.last_id)
        data = compress(dump_state(state), 1)
        if owner is None or len(data) > MOST_BYTES:
            continue
        digest = _compute_digest(owner[0], state.head, fold, state.turns, data)
        tables.run(
            "snapshot.keep",
            cid=owner[0],
            seq=state.head,
            fold=fold,
            turns=state.turns,
            digest=digest,
            state=data,
        )
    return True


def _load_row(row: _Row, fold: str) -> State | None:
    """Return the state of a row; None if the row is damaged."""
    if row.digest != _compute_digest(row.cid, row.seq, fold, row.turns, row.state):
        return None
    try:
        state = load_state(decompress(row.state))
    except (ValueError, KeyError, TypeError, AttributeError, ZlibError):
        return None
    return state if state.head == row.seq else None


def _compute_digest(cid: int, seq: int, fold: str, turns: int, state: bytes) -> int:
    return crc32(f"{cid} {seq} {fold} {turns} ".encode() + state)


def _delete_rows(tables: Tables, rows: Sequence[_Row]) -> None:
    for row in rows:
        tables.run("snapshot.forget", cid=row.cid, seq=row.seq)


class StateWriter:
    """Writes the states of a fold in the background once their events are durable. One write at a time.

    Attributes:
        erasure_token: The erasure token of the log when the fold began; None until it is known.
    """

    def __init__(self, store: EventStore, cid: UUID, *, predecessor: StateWriter | None = None) -> None:
        """Create the writer. `predecessor` is the writer of a log that shares all kept states so far."""
        self._store = store
        self._cid = cid
        self._written_head = 0 if predecessor is None else predecessor._written_head
        self._has_stopped = False if predecessor is None else predecessor._has_stopped
        self._task: asyncio.Task[None] | None = None if predecessor is None else predecessor._task
        self.erasure_token: str | None = None if predecessor is None else predecessor.erasure_token

    def skip(self, head: int) -> None:
        """Skip states of at most `head` events, which are stored already."""
        self._written_head = max(self._written_head, head)

    def write(self, checkpoints: Sequence[State], durable: int) -> None:
        """Start to write the new states of at most `durable` events, unless a write is in progress. O(1) if none."""
        if self._has_stopped or not self._is_idle:
            return
        if not checkpoints or checkpoints[-1].head <= self._written_head:
            return
        states = [state for state in checkpoints if self._written_head < state.head <= durable]
        if states:
            self._task = asyncio.create_task(self._write(states), name=f"states of {self._cid}")

    async def settle(self) -> None:
        """Wait until no state is being written."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    @property
    def _is_idle(self) -> bool:
        return self._task is None or self._task.done()

    async def _write(self, states: Sequence[State]) -> None:
        try:
            if self.erasure_token is None:
                self.erasure_token = await self._find_erasure_token(states[0])
            if self.erasure_token is None:
                self._has_stopped = True
                return
            for start in range(0, len(states), _BATCH_STATES):
                batch = states[start : start + _BATCH_STATES]
                change = partial(keep_states, cid=self._cid, states=batch, erasure_token=self.erasure_token)
                if not await self._store.transaction(SNAPSHOT, change):
                    self._has_stopped = True
                    return
                self._written_head = batch[-1].head
        except BoughError as error:  # states are a cache: a missing state costs one fold
            self._has_stopped = True
            _LOG.debug("states of %s are not kept: %s", self._cid, error)

    async def _find_erasure_token(self, state: State) -> str | None:
        """Return the present erasure token of the log if its events still fold to `state`; else None.

        None: something was erased during the fold, so `state` has erased text; or no kept states can be read.
        """
        nearest = await find_nearest(self._store, self._cid, state.head)
        if nearest is None:
            return None
        refolded = State() if nearest.state is None else nearest.state
        async for stored in self._store.read(self._cid, refolded.head, state.head):
            refolded.apply(stored.seq, stored.event)
        return nearest.erasure_token if refolded == state else None
