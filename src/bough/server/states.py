"""A cache of folded states of conversations in memory, bounded in bytes, above the states saved in the store.

A hit reads one row and the events since then; a miss reads the nearest saved state and the events after it. So the
document of a conversation costs the same for every length.
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
"""The overhead of a state's objects, in addition to its JSON."""

_MEASURE_EVERY = 1 << 16
"""After this many bytes of events a state is weighed again, because it can also shrink."""


class Folded(NamedTuple):
    """A state, which must not be changed, and the erasures in its log when it was folded."""

    state: State
    erased: str


_NO_DOCUMENT: tuple[object, bytes] = (None, b"")


@dataclass
class _Entry:
    """A cached state, the erasures when it was folded, its weight, and the bytes of events folded since it was weighed.

    Attributes:
        derived: A value read from the log's first events in addition to the state, with their number.
        document: Everything that the conversation's document was made of, and the document as JSON.
    """

    state: State
    erased: str
    weight: int
    since: int = 0
    derived: tuple[int, Any] | None = None
    document: tuple[object, bytes] = _NO_DOCUMENT

    @property
    def bytes(self) -> int:
        """Its weight in the cache."""
        return self.weight + self.since + len(self.document[1])


class StateCache:
    """States by conversation; the least recently used one is dropped first.

    Args:
        max_bytes: Bound on all states together; a larger state is not cached.

    Attributes:
        bytes: The weight of the cached states.
    """

    def __init__(self, store: EventStore, max_bytes: int, metrics: Metrics) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._entries: OrderedDict[UUID, _Entry] = OrderedDict()
        self._locks: dict[UUID, asyncio.Lock] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self.bytes = 0
        self._metrics = metrics
        metrics.cache_bytes.set_function(lambda: self.bytes)

    async def state_of(self, record: ConversationRecord) -> State:
        """Return the fold of a conversation at `record.head` or later, which must not be changed. O(new events).

        Raises what `read` raises.
        """
        return (await self.read(record)).state

    async def read(self, record: ConversationRecord) -> Folded:
        """Return the fold of a conversation at `record.head` or later, and its erasures.

        Raises:
            NotFound: It was deleted meanwhile.
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
            erased: For a fork, the erasures when its source was read; if these have changed, nothing is cached.
        """
        mark = await read_mark(self._store, cid)
        if mark is not None and mark.erased == (erased or mark.erased) and cid not in self._entries:
            self._put(cid, _Entry(state.copy(), mark.erased, _weigh(state)))

    async def derive(self, cid: UUID, head: int, read: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `read` for a log of `head` events; calls it once, as long as the state is cached."""
        entry = self._entries.get(cid)
        if entry is not None and entry.derived is not None and entry.derived[0] == head:
            return entry.derived[1]
        derived = await read()
        if entry is not None and self._entries.get(cid) is entry:
            entry.derived = head, derived
        return derived

    def find_document(self, cid: UUID, inputs: object) -> bytes | None:
        """Return the document that was made of exactly these inputs; None if it is not cached."""
        entry = self._entries.get(cid)
        if entry is None or entry.document[0] != inputs:
            return None
        self._entries.move_to_end(cid)
        self._metrics.cache_hits.inc()
        return entry.document[1]

    def keep_document(self, cid: UUID, inputs: object, document: bytes) -> None:
        """Cache a document as long as the state that it was made of."""
        if (entry := self._entries.get(cid)) is not None:
            self.forget(cid)
            is_small = entry.weight + entry.since + len(document) <= self._max_bytes
            entry.document = (inputs, document) if is_small else _NO_DOCUMENT
            self._put(cid, entry)

    def forget(self, cid: UUID) -> None:
        """Drop the state of a conversation that was deleted."""
        if entry := self._entries.pop(cid, None):
            self.bytes -= entry.bytes

    async def aclose(self) -> None:
        """Return when no state is being written."""
        await asyncio.gather(*self._settling)

    async def _read(self, record: ConversationRecord) -> Folded:
        # Before the events: what is erased after this is noticed by the next one who asks.
        mark = await read_mark(self._store, record.id)
        if mark is None:
            raise NotFound(f"there is no conversation {record.id}")
        entry = self._entries.get(record.id)
        if entry is None or entry.erased != mark.erased or entry.state.head > mark.head:
            self.forget(record.id)
            self._metrics.cache_misses.inc()
            journal = Journal(self._store, record.id)
            await journal.catch_up()
            self._settle_later(journal)
            entry = _Entry(journal.state, mark.erased, _weigh(journal.state))
        else:
            self._metrics.cache_hits.inc()
            self.forget(record.id)
            if mark.head > entry.state.head:
                entry.document = _NO_DOCUMENT
                async for stored in self._store.read(record.id, entry.state.head):
                    entry.state.apply(stored.seq, stored.event)
                    entry.since += len(stored.raw)
            if entry.since > _MEASURE_EVERY:
                entry.weight, entry.since = _weigh(entry.state), 0
        self._put(record.id, entry)
        return Folded(entry.state, entry.erased)

    def _settle_later(self, journal: Journal) -> None:
        """Save states that the store lacks, in the background, so that the request does not wait."""
        settling = asyncio.create_task(journal.aclose(), name=f"states of {journal.cid}")
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    def _put(self, cid: UUID, entry: _Entry) -> None:
        if entry.bytes > self._max_bytes:
            return
        self._entries[cid] = entry
        self.bytes += entry.bytes
        while self.bytes > self._max_bytes:
            _, gone = self._entries.popitem(last=False)
            self.bytes -= gone.bytes


def _weigh(state: State) -> int:
    """Return the bytes of a state as saved in a store, plus those of call results, which are not saved."""
    outcomes = sum(len(str(call.outcome)) for call in state.calls.values() if call.outcome is not None)
    return _FIXED_BYTES + len(dump_state(state)) + outcomes
