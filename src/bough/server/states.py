"""A cache of the states of conversations in memory, limited in bytes, in addition to the states saved in the store.

A hit reads one row and the new events; a miss reads the latest saved state and the events after it. Therefore the
document of a conversation costs the same for a log of any length.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from bough.conversation import State
from bough.conversation.log.journal import Journal
from bough.conversation.log.kept_states import dump_state, read_mark
from bough.errors import NotFound
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.server.metrics import Metrics

T = TypeVar("T")

_FIXED_BYTES = 4096
"""The estimated overhead of a state's objects, in addition to its JSON."""

_MEASURE_AFTER_BYTES = 1 << 16
"""After this many bytes of new events, the size of a state is measured again, because it may also have shrunk."""


class Folded(NamedTuple):
    """A cached state, which must not be changed, and the erasures in the log when it was read."""

    state: State
    erased: str


_NO_DOCUMENT: tuple[object, bytes] = (None, b"")


@dataclass
class _Entry:
    """A cached state.

    Attributes:
        erased: The erasures in the log when the state was read.
        state_bytes: The size of the state when it was last measured.
        event_bytes: The size of the events applied since then.
        derived: The head of the log and a value that `derive` read at this head.
        document: The inputs of the conversation's document, and the document as JSON.
    """

    state: State
    erased: str
    state_bytes: int
    event_bytes: int = 0
    derived: tuple[int, Any] | None = None
    document: tuple[object, bytes] = _NO_DOCUMENT

    @property
    def bytes(self) -> int:
        """The size that counts towards the limit of the cache."""
        return self.state_bytes + self.event_bytes + len(self.document[1])


class StateCache:
    """The states of conversations; the least recently used state is evicted first.

    Args:
        max_bytes: Maximum size of all cached states; a larger state is not cached.

    Attributes:
        bytes: The size of all cached states.
    """

    def __init__(self, store: EventStore, max_bytes: int, metrics: Metrics) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._entries: OrderedDict[UUID, _Entry] = OrderedDict()
        self._locks: dict[UUID, asyncio.Lock] = {}
        self._saving: set[asyncio.Task[None]] = set()
        self.bytes = 0
        self._metrics = metrics
        metrics.cache_bytes.set_function(lambda: self.bytes)

    async def state_of(self, record: ConversationRecord) -> State:
        """Return the state of a conversation at `record.head` or later, which must not be changed. O(new events).

        Raises what `read` raises.
        """
        return (await self.read(record)).state

    async def read(self, record: ConversationRecord) -> Folded:
        """Return the state of a conversation at `record.head` or later, and the erasures in the log.

        Raises:
            NotFound: The conversation was deleted meanwhile.
            CorruptLog: An event cannot be read.
        """
        lock = self._locks.setdefault(record.id, asyncio.Lock())
        try:
            async with lock:
                return await self._read(record)
        finally:
            if not lock.locked():
                self._locks.pop(record.id, None)

    async def add(self, cid: UUID, state: State, *, erased: str | None = None) -> None:
        """Cache the state of a conversation that was just created.

        Args:
            erased: For a fork, the erasures when its source was read; if they have changed, the state is not cached.
        """
        mark = await read_mark(self._store, cid)
        if mark is not None and mark.erasure_token == (erased or mark.erasure_token) and cid not in self._entries:
            self._put(cid, _Entry(state.copy(), mark.erasure_token, _measure(state)))

    async def derive(self, cid: UUID, head: int, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `read` for a log with this head. The result is cached as long as the state."""
        entry = self._entries.get(cid)
        if entry is not None and entry.derived is not None and entry.derived[0] == head:
            return entry.derived[1]
        derived = await read()
        if entry is not None and self._entries.get(cid) is entry:
            entry.derived = head, derived
        return derived

    def find_document(self, cid: UUID, inputs: object) -> bytes | None:
        """Return the cached document of a conversation if it was made of exactly these inputs; else None."""
        entry = self._entries.get(cid)
        if entry is None or entry.document[0] != inputs:
            return None
        self._entries.move_to_end(cid)
        self._metrics.cache_hits.inc()
        return entry.document[1]

    def keep_document(self, cid: UUID, inputs: object, document: bytes) -> None:
        """Cache a document with the state of its conversation, if that is cached and both are small enough."""
        entry = self._entries.get(cid)
        if entry is None:
            return
        self.forget(cid)
        is_small = entry.state_bytes + entry.event_bytes + len(document) <= self._max_bytes
        entry.document = (inputs, document) if is_small else _NO_DOCUMENT
        self._put(cid, entry)

    def forget(self, cid: UUID) -> None:
        """Remove the state of a conversation from the cache."""
        entry = self._entries.pop(cid, None)
        if entry is not None:
            self.bytes -= entry.bytes

    async def aclose(self) -> None:
        """Wait until all states are saved."""
        await asyncio.gather(*self._saving)

    async def _read(self, record: ConversationRecord) -> Folded:
        # Read before the events, so that the next call notices events that are erased from here on.
        mark = await read_mark(self._store, record.id)
        if mark is None:
            raise NotFound(f"there is no conversation {record.id}")
        entry = self._entries.get(record.id)
        if entry is None or entry.erased != mark.erasure_token or entry.state.head > mark.head:
            self.forget(record.id)
            self._metrics.cache_misses.inc()
            journal = Journal(self._store, record.id)
            await journal.catch_up()
            self._save_later(journal)
            entry = _Entry(journal.state, mark.erasure_token, _measure(journal.state))
        else:
            self._metrics.cache_hits.inc()
            self.forget(record.id)
            if mark.head > entry.state.head:
                entry.document = _NO_DOCUMENT
                async for stored in self._store.read(record.id, entry.state.head):
                    entry.state.apply(stored.seq, stored.event)
                    entry.event_bytes += len(stored.raw)
            if entry.event_bytes > _MEASURE_AFTER_BYTES:
                entry.state_bytes, entry.event_bytes = _measure(entry.state), 0
        self._put(record.id, entry)
        return Folded(entry.state, entry.erased)

    def _save_later(self, journal: Journal) -> None:
        """Save states in the background, so that the request does not wait for it."""
        saving = asyncio.create_task(journal.aclose(), name=f"states of {journal.cid}")
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    def _put(self, cid: UUID, entry: _Entry) -> None:
        """Cache an entry, which must not be in the cache yet, and evict others until the limit is met."""
        if entry.bytes > self._max_bytes:
            return
        self._entries[cid] = entry
        self.bytes += entry.bytes
        while self.bytes > self._max_bytes:
            _, evicted = self._entries.popitem(last=False)
            self.bytes -= evicted.bytes


def _measure(state: State) -> int:
    """Return the size of a state as saved in a store, plus the results of its calls, which are not saved."""
    outcome_bytes = sum(len(str(call.outcome)) for call in state.calls.values() if call.outcome is not None)
    return _FIXED_BYTES + len(dump_state(state)) + outcome_bytes
