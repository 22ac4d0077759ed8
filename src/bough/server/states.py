"""Folded states of conversations, kept in memory within a bound of bytes; a hit reads only what came since."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from uuid import UUID

from bough.conversation import State
from bough.events.record import ConversationRecord
from bough.events.store import EventStore

_FIXED_BYTES = 4096


class StateCache:
    """States by conversation, the least recently used out first.

    Args:
        max_bytes: Of all states together, as estimated from the texts that they hold.
    """

    def __init__(self, store: EventStore, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._entries: OrderedDict[UUID, tuple[State, int]] = OrderedDict()
        self._locks: dict[UUID, asyncio.Lock] = {}
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    async def state_of(self, record: ConversationRecord) -> State:
        """Return the fold of a conversation at `record.head` or later. Not to be changed. O(events since it was read).

        Raises:
            CorruptLog: An event cannot be read.
        """
        lock = self._locks.setdefault(record.id, asyncio.Lock())
        async with lock:
            state = self._take(record)
            async for stored in self._store.read(record.id, state.head):
                state.apply(stored.seq, stored.event)
            self._put(record.id, state)
        if not lock.locked():
            self._locks.pop(record.id, None)
        return state

    def forget(self, cid: UUID) -> None:
        """Drop the state of a conversation that was deleted."""
        if entry := self._entries.pop(cid, None):
            self.bytes -= entry[1]

    def _take(self, record: ConversationRecord) -> State:
        entry = self._entries.get(record.id)
        if entry is None or entry[0].head > record.head:  # a log never gets shorter: this is another one
            self.misses += 1
            return State()
        self.hits += 1
        return entry[0]

    def _put(self, cid: UUID, state: State) -> None:
        self.forget(cid)
        size = _size_of(state)
        self._entries[cid] = (state, size)
        self.bytes += size
        while self.bytes > self._max_bytes and len(self._entries) > 1:
            _, (_, gone) = self._entries.popitem(last=False)
            self.bytes -= gone


def _size_of(state: State) -> int:
    """Return about how many bytes a state takes: its long texts, and as much again as is always there."""
    calls = sum(len(str(call.arguments)) + len(str(call.outcome)) for call in state.calls.values())
    return _FIXED_BYTES + len(state.instructions) + len(state.output) + len(str(state.agent)) + calls
