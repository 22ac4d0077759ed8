"""Sending one conversation's events and pieces of text to any number of readers in this process.

A reader has no queue: it is a position in a ring of the latest items. One that falls behind the ring reads the
store until it has caught up, and misses pieces of text, which the events contain. So a slow reader never slows a
run, and a thousand readers cost a thousand positions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Hashable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from uuid import UUID

from bough.errors import BoughError
from bough.events.model import Event, TaskChanged
from bough.events.record import StoredEvent
from bough.events.store import EventStore
from bough.server.metrics import Metrics

T = TypeVar("T")

FRAMES = 256
FRAME_BYTES = 1 << 20
DELTAS = 256
IDLE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """A piece of a response that is being generated; never recorded.

    Attributes:
        order: Its number among all pieces in this process, from 0.
    """

    order: int
    kind: str
    text: str


@dataclass(frozen=True)
class CaughtUp:
    """Sent once to a reader when it has read all events that existed when it joined."""

    seq: int


@dataclass(frozen=True)
class RunEnded:
    """A run of the conversation has ended since the last such item; several ends may be merged.

    Attributes:
        started: When the latest of them was submitted, by the loop's clock; None if unknown here.
    """

    started: float


EndReason = Literal["deleted", "drain", "failed", "key"]


@dataclass(frozen=True)
class StreamEnd:
    """The last item of a reader."""

    reason: EndReason


Heard = StoredEvent | Fragment | CaughtUp | RunEnded | StreamEnd


class Broadcast:
    """The readers of one conversation. Must be used on the server's event loop.

    Args:
        head: The current number of events; these are read from the store.
    """

    def __init__(self, store: EventStore, cid: UUID, head: int, metrics: Metrics) -> None:
        self._store = store
        self._cid = cid
        self._first = head
        self._frames: deque[StoredEvent] = deque()
        self._bytes = 0
        self._shared: dict[int, dict[Hashable, Any]] = {}
        self._pieces: deque[Fragment] = deque(maxlen=DELTAS)
        self._said = 0
        self._runs = 0
        self._run_started = 0.0
        self._submitted: dict[str, float] = {}
        self._joined = asyncio.get_running_loop().time()
        self._changed = asyncio.Event()
        self._end: EndReason | None = None
        self._metrics = metrics
        self.readers = 0
        self._pump = asyncio.create_task(self._follow_store(), name=f"broadcast {cid}")

    @property
    def head(self) -> int:
        """The number of events in the log, as far as known here."""
        return self._first + len(self._frames)

    @property
    def has_ended(self) -> bool:
        """Whether no more events will come."""
        return self._end is not None

    async def wait_closed(self) -> None:
        """Return when all its tasks have ended."""
        await asyncio.wait({self._pump})

    def share(self, seq: int, key: Hashable, make: Callable[[], T]) -> T:
        """Return the shared encoding of an event, created by the first reader and kept while the event is in the ring.

        Args:
            key: Identifies the encoding; an event may have several.
        """
        if not self._first <= seq < self.head:
            return make()
        pieces = self._shared.setdefault(seq, {})
        if key not in pieces:
            pieces[key] = make()
        return pieces[key]

    def forget(self, seq: int, key: Hashable) -> None:
        """Drop the shared encodings of an event, so that the next reader creates them again."""
        self._shared.get(seq, {}).pop(key, None)

    def publish(self, kind: str, text: str) -> None:
        """Send a piece of a response to the readers."""
        self._pieces.append(Fragment(order=self._said, kind=kind, text=text))
        self._said += 1
        self.wake()

    def publish_run_end(self, started: float) -> None:
        """Send the end of a run to the readers; even a slow reader does not miss it."""
        self._runs += 1
        self._run_started = started
        self.wake()

    def end(self, reason: EndReason) -> None:
        """End the readers after the items in the ring."""
        self._end = self._end or reason
        self._pump.cancel()
        self.wake()

    async def read(self, after: int, is_refused: Callable[[], bool] | None = None) -> AsyncIterator[Heard]:
        """Iterate the items after seq `after`: each event once and in order, pieces in between, the end last.

        Args:
            is_refused: Returns whether the reader's key has become invalid; called whenever the readers are woken.
        """
        place, next_order, runs, was_notified = after + 1, self._said, self._runs, False
        present = max(self.head, place)  # the head when this reader joined
        while True:
            async for stored in self._events_from(place):
                if is_refused is not None and is_refused():
                    break
                yield stored
                place = stored.seq + 1
            if is_refused is not None and is_refused():
                yield StreamEnd("key")
                return
            if not was_notified and place >= present:
                was_notified = True
                yield CaughtUp(place - 1)
            for piece in self._pieces_from(next_order):
                next_order = piece.order + 1
                yield piece
            if place < self.head or next_order < self._said:
                continue
            if runs != self._runs:
                runs = self._runs
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

    async def _events_from(self, place: int) -> AsyncIterator[StoredEvent]:
        """Iterate events up to the head: those before the ring from the store, the others from the ring."""
        while place < self.head:
            if place >= self._first:
                yield self._frames[place - self._first]
                place += 1
                continue
            self._metrics.stream_lag.observe(self.head - place)
            async for stored in self._store.read(self._cid, place, self._first):
                yield stored
                place = stored.seq + 1

    def _pieces_from(self, first: int) -> Iterator[Fragment]:
        """Iterate the pieces from number `first` on that are still in the ring, and count those that are not."""
        oldest = self._said - len(self._pieces)
        self._metrics.deltas_dropped.inc(max(oldest - first, 0))
        return iter([piece for piece in self._pieces if piece.order >= first])

    async def _follow_store(self) -> None:
        try:
            async for stored in self._store.subscribe(self._cid, self.head - 1):
                self._keep(stored)
            self._end = self._end or "deleted"
        except BoughError:
            self._end = self._end or "failed"  # the readers return with their seq when the store is back
        self.wake()

    def _keep(self, stored: StoredEvent) -> None:
        self._frames.append(stored)
        self._take_transition(stored.event)
        self._bytes += len(stored.raw)
        while len(self._frames) > FRAMES or (self._bytes > FRAME_BYTES and len(self._frames) > 1):
            self._bytes -= len(self._frames.popleft().raw)
            self._shared.pop(self._first, None)
            self._first += 1
        self.wake()

    def _take_transition(self, event: Event) -> None:
        """Record when a run was submitted, and publish when it ends or asks for input, in any process."""
        if not isinstance(event, TaskChanged):
            return
        if event.state == "pending":
            self._submitted[event.task_id] = asyncio.get_running_loop().time()
        elif event.state != "running":
            self.publish_run_end(self._submitted.pop(event.task_id, self._joined))


class Broadcasts:
    """The broadcasts of a server, one per watched conversation; each ends a while after its last reader left.

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
            broadcast = self._live.get(cid)  # another reader may have come while the head was read
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
                asyncio.get_running_loop().call_later(self._idle_seconds, self._leave, cid, broadcast)

    def read_here(self) -> Collection[UUID]:
        """Return the conversations that have readers here, or had some recently."""
        return self._live.keys()

    def count_readers(self, cid: UUID) -> int:
        """Return the number of readers of a conversation here."""
        broadcast = self._live.get(cid)
        return 0 if broadcast is None else broadcast.readers

    def publish(self, cid: UUID, kind: str, text: str) -> None:
        """Send a piece of a response to the readers of a conversation."""
        if broadcast := self._live.get(cid):
            broadcast.publish(kind, text)

    def publish_run_end(self, cid: UUID) -> None:
        """Tell the readers of a conversation that a requested run is still waiting."""
        if broadcast := self._live.get(cid):
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

    def _leave(self, cid: UUID, broadcast: Broadcast) -> None:
        if broadcast.readers == 0 and self._live.get(cid) is broadcast:
            broadcast.end("drain")
            del self._live[cid]
