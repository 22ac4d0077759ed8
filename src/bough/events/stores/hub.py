"""Publish events and commits to subscribers in any event loop, from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from bough.errors import NotFound, StoreError, Unavailable
from bough.events.record import StoredEvent

if TYPE_CHECKING:
    from bough.events.store import EventStore

_MAX_BATCHES = 64
_RETRY_SECONDS = 0.5
_MAX_RETRY_SECONDS = 5.0


class End:
    """The type of `END`, which tells a watcher that no batch follows."""


END: Final = End()

Batch = list[StoredEvent] | None | End
"""New events; None if the watcher must read the store; or `END`."""


class Watcher:
    """The queue of one subscriber, of limited length. If it drops batches, the subscriber reads the store instead."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._batches: deque[Batch] = deque(maxlen=_MAX_BATCHES)
        self._ended = False
        self._arrived = asyncio.Event()

    def put(self, batch: Batch) -> None:
        """Add a batch. Must be called in the watcher's loop."""
        if isinstance(batch, End):
            self._ended = True
        else:
            self._batches.append(batch)
        self._arrived.set()

    async def next_batch(self) -> Batch:
        """Wait for the next batch and return it; return `END` after the last one."""
        while not self._batches:
            if self._ended:
                return END
            self._arrived.clear()
            await self._arrived.wait()
        return self._batches.popleft()


class CommitWatcher:
    """A subscriber to commits. Several commits set `arrived` only once while the subscriber is busy.

    Attributes:
        appends: Whether it is notified of commits that only appended events or added conversations.
        arrived: Set after a commit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, appends: bool) -> None:
        self.loop = loop
        self.appends = appends
        self.arrived = asyncio.Event()


class Hub:
    """The watchers of a store. Thread-safe; publishing costs one callback per event loop, not per watcher.

    Attributes:
        closed: Whether `close` was called.
        on_first: Called when the first watcher is added, so that the store starts polling for commits of other
            processes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: dict[UUID, list[Watcher]] = {}
        self._commit_watchers: list[CommitWatcher] = []
        self.on_first: Callable[[], None] = lambda: None
        self.closed = False

    def list_watched(self) -> list[UUID]:
        """Return the conversations that have watchers."""
        with self._lock:
            return list(self._watchers)

    def has_watchers(self) -> bool:
        """Whether there are any watchers."""
        return bool(self._watchers or self._commit_watchers)

    def is_watched(self, cid: UUID) -> bool:
        """Whether the conversation has watchers."""
        return cid in self._watchers

    @contextmanager
    def watch(self, cid: UUID) -> Generator[Watcher]:
        """Watch a conversation; the watcher belongs to the running loop."""
        watcher = Watcher(asyncio.get_running_loop())
        with self._lock:
            is_first = not self.has_watchers()
            self._watchers.setdefault(cid, []).append(watcher)
            if self.closed:  # under the lock: `close` either has already published `END`, or will see this watcher
                watcher.put(END)
        if is_first:
            self.on_first()
        try:
            yield watcher
        finally:
            self._remove_watcher(cid, watcher)

    @contextmanager
    def watch_commits(self, *, appends: bool = True) -> Generator[CommitWatcher]:
        """Watch for commits; the watcher belongs to the running loop."""
        watcher = CommitWatcher(asyncio.get_running_loop(), appends=appends)
        with self._lock:
            is_first = not self.has_watchers()
            self._commit_watchers.append(watcher)
        if is_first:
            self.on_first()
        try:
            yield watcher
        finally:
            with self._lock:
                self._commit_watchers.remove(watcher)

    def publish_commit(self, *, is_addition: bool = False) -> None:
        """Notify the commit watchers. Callable from any thread.

        Args:
            is_addition: Whether the commit only appended events or added conversations.
        """
        with self._lock:
            watchers = tuple(watcher for watcher in self._commit_watchers if watcher.appends or not is_addition)
        for watcher in watchers:
            try:
                watcher.loop.call_soon_threadsafe(watcher.arrived.set)
            except RuntimeError:
                if not watcher.loop.is_closed():
                    raise  # a closed loop has no subscribers

    def publish(self, cid: UUID, batch: Batch) -> None:
        """Send a batch to the watchers of a conversation. Callable from any thread."""
        with self._lock:
            watchers = tuple(self._watchers.get(cid, ()))
        by_loop: dict[asyncio.AbstractEventLoop, list[Watcher]] = {}
        for watcher in watchers:
            by_loop.setdefault(watcher.loop, []).append(watcher)
        for loop, loop_watchers in by_loop.items():
            _send(loop, loop_watchers, batch)

    def close(self) -> None:
        """End every subscription, including those that are started later."""
        with self._lock:
            self.closed = True
        for cid in self.list_watched():
            self.publish(cid, END)
        self.publish_commit()

    def _remove_watcher(self, cid: UUID, watcher: Watcher) -> None:
        with self._lock:
            watchers = self._watchers[cid]
            watchers.remove(watcher)
            if not watchers:
                del self._watchers[cid]


async def follow(store: EventStore, hub: Hub, cid: UUID, after: int) -> AsyncIterator[StoredEvent]:
    """Iterate over the events with `seq > after`, then over new ones, each exactly once.

    A batch that starts at or before the next expected seq is yielded from that seq on. A batch that starts later, or
    None, makes it read the store.

    Raises:
        NotFound: The conversation does not exist when the iteration starts.
    """
    next_seq, was_found = max(after + 1, 0), False
    # Watching starts before the first read, so that an event appended in between is in the store or in a batch.
    with hub.watch(cid) as watcher:
        batch: Batch = None
        pause = _RETRY_SECONDS
        while not isinstance(batch, End):
            if batch is None or batch[0].seq > next_seq:
                try:
                    async for stored in store.read(cid, next_seq):
                        yield stored
                        next_seq, was_found = stored.seq + 1, True
                    pause, was_found = _RETRY_SECONDS, True
                except NotFound:
                    if not was_found:
                        raise
                    return  # deleted during the iteration
                except (StoreError, Unavailable) as error:
                    if hub.closed:
                        return
                    if not error.details.get("transient"):
                        raise
                    # The next read starts at the same seq, so an unavailable store only delays events.
                    batch = await _wait_for_end(watcher, pause)
                    pause = min(pause * 2, _MAX_RETRY_SECONDS)
                    continue
            else:
                for stored in batch[max(next_seq - batch[0].seq, 0) :]:
                    yield stored
                    next_seq = stored.seq + 1
            batch = await watcher.next_batch()


async def follow_commits(hub: Hub, *, appends: bool = True) -> AsyncIterator[None]:
    """Yield after each commit until the store is closed. Several commits may cause a single yield."""
    with hub.watch_commits(appends=appends) as watcher:
        while not hub.closed:
            await watcher.arrived.wait()
            watcher.arrived.clear()  # before yielding: a commit during the caller's work must yield again
            if not hub.closed:
                yield


async def _wait_for_end(watcher: Watcher, seconds: float) -> Batch:
    """Discard batches for `seconds`, then return None (read the store). Return `END` as soon as it arrives."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not isinstance(await watcher.next_batch(), End):
                pass
            return END
    return None


def _send(loop: asyncio.AbstractEventLoop, watchers: list[Watcher], batch: Batch) -> None:
    try:
        loop.call_soon_threadsafe(_put_all, watchers, batch)
    except RuntimeError:
        if not loop.is_closed():
            raise  # a closed loop has no subscribers


def _put_all(watchers: list[Watcher], batch: Batch) -> None:
    for watcher in watchers:
        watcher.put(batch)
