"""Sending one conversation's events and pieces of text to any number of readers in this process.

A reader has no queue: it is a position in a ring of the latest items. A reader that falls behind the ring reads
events from the store until it has caught up. It misses pieces of text, but the events contain the whole text. So a slow
reader never slows a run, and a thousand readers cost a thousand positions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from uuid import UUID

from bough.conversation.log.listeners import Delta
from bough.errors import BoughError
from bough.events.model import Event, TaskChanged
from bough.events.record import StoredEvent
from bough.events.store import EventStore

if TYPE_CHECKING:
    from bough.server.metrics import Metrics  # MCP and ACP over stdio work without the extra `server`

T = TypeVar("T")

RING_EVENTS = 256
RING_BYTES = 1 << 20
RING_PIECES = 256
"""Maximum number and bytes of the events in a ring, and maximum number of its pieces of text."""

IDLE_SECONDS = 30.0
"""How long a broadcast without readers continues."""


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """A piece of a response that is being generated; never recorded.

    Attributes:
        order: Its number among all pieces of the broadcast, from 0.
    """

    order: int
    piece: Delta


@dataclass(frozen=True)
class CaughtUp:
    """Sent once to a reader when it has read all events that existed when it joined."""

    seq: int


@dataclass(frozen=True)
class RunEnded:
    """One or more runs of the conversation have ended, or have asked for input, since the last such item.

    Attributes:
        started: When the latest of these runs was submitted, by the loop's clock. If the broadcast began after that,
            when the broadcast began.
    """

    started: float


EndReason = Literal["deleted", "drain", "failed", "key"]


@dataclass(frozen=True)
class StreamEnd:
    """The last item that a reader gets."""

    reason: EndReason


StreamItem = StoredEvent | Fragment | CaughtUp | RunEnded | StreamEnd


class Broadcast:
    """The ring of one conversation and its readers. Must be used on the server's event loop.

    Args:
        head: The current number of events. Readers get these from the store.
    """

    def __init__(self, store: EventStore, cid: UUID, head: int, metrics: Metrics) -> None:
        self._store = store
        self._cid = cid
        self._first_seq = head  # of the events in the ring
        self._events: deque[StoredEvent] = deque()
        self._bytes = 0
        self._encodings: dict[int, dict[Hashable, Any]] = {}  # by seq and key
        self._pieces: deque[Fragment] = deque(maxlen=RING_PIECES)
        self._piece_count = 0
        self._ended_runs = 0
        self._run_started = 0.0
        self._submitted: dict[str, float] = {}  # when each unfinished task was submitted
        self._created = asyncio.get_running_loop().time()
        self._changed = asyncio.Event()
        self._end: EndReason | None = None
        self._metrics = metrics
        self.readers = 0
        self._follower = asyncio.create_task(self._follow_store(), name=f"broadcast {cid}")

    @property
    def head(self) -> int:
        """The number of events in the log that this broadcast has received or skipped."""
        return self._first_seq + len(self._events)

    @property
    def has_ended(self) -> bool:
        """Whether the broadcast delivers no more events."""
        return self._end is not None

    async def wait_closed(self) -> None:
        """Wait until the task that reads the store has ended."""
        await asyncio.wait({self._follower})

    def share(self, seq: int, key: Hashable, make: Callable[[], T]) -> T:
        """Return an encoding of an event. The first reader makes it, and it is cached while the event is in the ring.

        Args:
            key: Identifies the encoding; an event may have several.
        """
        if not self._first_seq <= seq < self.head:
            return make()
        encodings = self._encodings.setdefault(seq, {})
        if key not in encodings:
            encodings[key] = make()
        return encodings[key]

    def forget(self, seq: int, key: Hashable) -> None:
        """Drop a cached encoding of an event, so that the next reader makes it again."""
        self._encodings.get(seq, {}).pop(key, None)

    def publish(self, piece: Delta) -> None:
        """Send a piece of a response to the readers."""
        self._pieces.append(Fragment(order=self._piece_count, piece=piece))
        self._piece_count += 1
        self.wake()

    def publish_run_end(self, started: float) -> None:
        """Send the end of a run to the readers. It is not in the ring, so a slow reader does not miss it.

        Args:
            started: When the run was submitted, by the loop's clock.
        """
        self._ended_runs += 1
        self._run_started = started
        self.wake()

    def end(self, reason: EndReason) -> None:
        """End each reader after the items in the ring; the first reason is the one that readers get."""
        self._end = self._end or reason
        self._follower.cancel()
        self.wake()

    async def read(self, after: int, is_refused: Callable[[], bool] | None = None) -> AsyncIterator[StreamItem]:
        """Yield the items after seq `after`: each event once and in order, pieces in between, a `StreamEnd` last.

        Args:
            is_refused: Returns whether the reader's key has become invalid; called before each event, and whenever
                the readers are woken.
        """
        next_seq, next_order = after + 1, self._piece_count
        reported_runs, has_caught_up = self._ended_runs, False
        initial_head = max(self.head, next_seq)
        while True:
            async for stored in self._events_from(next_seq):
                if is_refused is not None and is_refused():
                    break
                yield stored
                next_seq = stored.seq + 1
            if is_refused is not None and is_refused():
                yield StreamEnd("key")
                return
            if not has_caught_up and next_seq >= initial_head:
                has_caught_up = True
                yield CaughtUp(next_seq - 1)
            for fragment in self._pieces_from(next_order):
                next_order = fragment.order + 1
                yield fragment
            if next_seq < self.head or next_order < self._piece_count:
                continue
            if reported_runs != self._ended_runs:
                reported_runs = self._ended_runs
                yield RunEnded(self._run_started)
                continue
            if self._end is not None:
                yield StreamEnd(self._end)
                return
            await self._changed.wait()

    def wake(self) -> None:
        """Wake all readers."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _events_from(self, next_seq: int) -> AsyncIterator[StoredEvent]:
        """Yield the events up to the head: those that precede the ring from the store, the others from the ring."""
        while next_seq < self.head:
            if next_seq >= self._first_seq:
                yield self._events[next_seq - self._first_seq]
                next_seq += 1
                continue
            self._metrics.stream_lag.observe(self.head - next_seq)
            async for stored in self._store.read(self._cid, next_seq, self._first_seq):
                yield stored
                next_seq = stored.seq + 1

    def _pieces_from(self, next_order: int) -> Sequence[Fragment]:
        """Return the pieces from `next_order` on that are in the ring, and count the missing ones as dropped."""
        oldest = self._piece_count - len(self._pieces)
        self._metrics.deltas_dropped.inc(max(oldest - next_order, 0))
        return [fragment for fragment in self._pieces if fragment.order >= next_order]

    async def _follow_store(self) -> None:
        """Add new events to the ring until the conversation is deleted or the store fails."""
        try:
            async for stored in self._store.subscribe(self._cid, self.head - 1):
                self._add_to_ring(stored)
            self._end = self._end or "deleted"
        except BoughError:
            self._end = self._end or "failed"  # clients reconnect with their last seq once the store is available
        self.wake()

    def _add_to_ring(self, stored: StoredEvent) -> None:
        """Add an event, drop the oldest ones beyond the size of the ring, and wake the readers."""
        self._events.append(stored)
        self._track_run(stored.event)
        self._bytes += len(stored.raw)
        while len(self._events) > RING_EVENTS or (self._bytes > RING_BYTES and len(self._events) > 1):
            self._bytes -= len(self._events.popleft().raw)
            self._encodings.pop(self._first_seq, None)
            self._first_seq += 1
        self.wake()

    def _track_run(self, event: Event) -> None:
        """Record when a run of any process was submitted, and publish when it ends or asks for input."""
        if not isinstance(event, TaskChanged):
            return
        if event.state == "pending":
            self._submitted[event.task_id] = asyncio.get_running_loop().time()
        elif event.state != "running":
            self.publish_run_end(self._submitted.pop(event.task_id, self._created))


class Broadcasts:
    """The broadcasts of a server, one per watched conversation. Each ends `idle_seconds` after its last reader left.

    Attributes:
        on_watch: Called when a conversation gets its first reader.
    """

    def __init__(self, store: EventStore, metrics: Metrics, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._store = store
        self._metrics = metrics
        self._idle_seconds = idle_seconds
        self._live: dict[UUID, Broadcast] = {}
        self._draining = False
        self.on_watch: Callable[[UUID], None] | None = None

    @asynccontextmanager
    async def join(self, cid: UUID, *, kind: str = "sse") -> AsyncGenerator[Broadcast]:
        """Yield the broadcast of a conversation to one reader while the block runs.

        Raises:
            NotFound: The conversation does not exist.
        """
        broadcast = self._live.get(cid)
        if broadcast is None or broadcast.has_ended:
            head = (await self._store.get(cid)).head
            broadcast = self._live.get(cid)  # another reader may have joined while the head was read
            if broadcast is None or broadcast.has_ended:
                broadcast = self._live[cid] = Broadcast(self._store, cid, head, self._metrics)
        if self.on_watch is not None and broadcast.readers == 0:
            self.on_watch(cid)
        if self._draining:
            broadcast.end("drain")
        broadcast.readers += 1
        self._metrics.streams.labels(kind).inc()
        try:
            yield broadcast
        finally:
            broadcast.readers -= 1
            self._metrics.streams.labels(kind).dec()
            if broadcast.readers == 0:
                asyncio.get_running_loop().call_later(self._idle_seconds, self._end_if_idle, cid, broadcast)

    def list_watched(self) -> Collection[UUID]:
        """Return the conversations that have readers in this process, or had some in the last `idle_seconds`."""
        return self._live.keys()

    def count_readers(self, cid: UUID) -> int:
        """Return the number of readers of a conversation in this process."""
        broadcast = self._live.get(cid)
        return 0 if broadcast is None else broadcast.readers

    def publish(self, cid: UUID, piece: Delta) -> None:
        """Send a piece of a response to the readers of a conversation."""
        broadcast = self._live.get(cid)
        if broadcast is not None:
            broadcast.publish(piece)

    def publish_run_end(self, cid: UUID) -> None:
        """Send `RunEnded` to the readers of a conversation, as after a request to run it that started nothing."""
        broadcast = self._live.get(cid)
        if broadcast is not None:
            broadcast.publish_run_end(asyncio.get_running_loop().time())

    def drain(self) -> None:
        """End all readers, because the server is stopping."""
        self._draining = True
        for broadcast in self._live.values():
            broadcast.end("drain")

    async def aclose(self) -> None:
        """End all broadcasts."""
        self.drain()
        await asyncio.gather(*(broadcast.wait_closed() for broadcast in self._live.values()))
        self._live.clear()

    def _end_if_idle(self, cid: UUID, broadcast: Broadcast) -> None:
        if broadcast.readers == 0 and self._live.get(cid) is broadcast:
            broadcast.end("drain")
            del self._live[cid]
