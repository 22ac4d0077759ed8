"""Who waits for which conversation's events, and how they are told, whatever thread or loop they live in."""

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

_BACKLOG = 64
_RETRY_SECONDS = 0.5
_MOST_RETRY_SECONDS = 5.0


class End:
    """Said to a watcher when there will be no more."""


END: Final = End()

Batch = list[StoredEvent] | None | End
"""New events, or None for "there is something: look", or `END`."""


class Watcher:
    """One subscriber's mailbox. It may lose old batches (it is bounded); the subscriber then reads the store."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._batches: deque[Batch] = deque(maxlen=_BACKLOG)
        self._ended = False
        self._arrived = asyncio.Event()

    def put(self, batch: Batch) -> None:
        """Leave a batch; called in the watcher's own loop."""
        if isinstance(batch, End):
            self._ended = True
        else:
            self._batches.append(batch)
        self._arrived.set()

    async def take(self) -> Batch:
        """Return the next batch, waiting for one; `END` only after all others."""
        while not self._batches:
            if self._ended:
                return END
            self._arrived.clear()
            await self._arrived.wait()
        return self._batches.popleft()


class CommitWatcher:
    """One who wants to know that something was committed. Commits that come while it is busy count as one.

    Attributes:
        appends: Whether it is told of commits that only appended events.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, appends: bool) -> None:
        self.loop = loop
        self.appends = appends
        self.arrived = asyncio.Event()


class Hub:
    """The watchers of a store. Thread-safe; publishing costs one call a loop, not one a watcher.

    Attributes:
        closed: No more will be published.
        on_first: Called when the first watcher comes, so that a store can begin to look for other processes' work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watchers: dict[UUID, list[Watcher]] = {}
        self._commit_watchers: list[CommitWatcher] = []
        self.on_first: Callable[[], None] = lambda: None
        self.closed = False

    def list_watched(self) -> list[UUID]:
        """Return the conversations that someone watches."""
        with self._lock:
            return list(self._watchers)

    def any(self) -> bool:
        """Whether anyone watches anything."""
        return bool(self._watchers or self._commit_watchers)

    def watches(self, cid: UUID) -> bool:
        """Whether anyone watches the conversation."""
        return cid in self._watchers

    @contextmanager
    def watch(self, cid: UUID) -> Generator[Watcher]:
        """Watch a conversation; the watcher belongs to the running loop."""
        watcher = Watcher(asyncio.get_running_loop())
        with self._lock:
            first = not self.any()
            self._watchers.setdefault(cid, []).append(watcher)
            if self.closed:
                watcher.put(END)
        if first:
            self.on_first()
        try:
            yield watcher
        finally:
            self._leave(cid, watcher)

    @contextmanager
    def watch_commits(self, *, appends: bool = True) -> Generator[CommitWatcher]:
        """Watch for commits; the watcher belongs to the running loop."""
        watcher = CommitWatcher(asyncio.get_running_loop(), appends=appends)
        with self._lock:
            first = not self.any()
            self._commit_watchers.append(watcher)
        if first:
            self.on_first()
        try:
            yield watcher
        finally:
            with self._lock:
                self._commit_watchers.remove(watcher)

    def publish_commit(self, *, is_append: bool = False) -> None:
        """Tell everyone who watches for commits. Callable from any thread.

        Args:
            is_append: Only events were written.
        """
        with self._lock:
            watchers = tuple(each for each in self._commit_watchers if each.appends or not is_append)
        for watcher in watchers:
            try:
                watcher.loop.call_soon_threadsafe(watcher.arrived.set)
            except RuntimeError:
                if not watcher.loop.is_closed():
                    raise  # a closed loop has nobody left to tell

    def publish(self, cid: UUID, batch: Batch) -> None:
        """Tell everyone who watches the conversation. Callable from any thread."""
        with self._lock:
            watchers = tuple(self._watchers.get(cid, ()))
        by_loop: dict[asyncio.AbstractEventLoop, list[Watcher]] = {}
        for watcher in watchers:
            by_loop.setdefault(watcher.loop, []).append(watcher)
        for loop, mine in by_loop.items():
            _tell(loop, mine, batch)

    def close(self) -> None:
        """End every subscription, present and future."""
        with self._lock:
            self.closed = True
        for cid in self.list_watched():
            self.publish(cid, END)
        self.publish_commit()

    def _leave(self, cid: UUID, watcher: Watcher) -> None:
        with self._lock:
            watchers = self._watchers[cid]
            watchers.remove(watcher)
            if not watchers:
                del self._watchers[cid]


async def follow(store: EventStore, hub: Hub, cid: UUID, after: int) -> AsyncIterator[StoredEvent]:
    """Iterate the events with `seq > after`, then live ones: none lost, none twice.

    The place is kept by seq: a batch that continues there is handed on, any other one makes it read the store.

    Raises:
        NotFound: There is no such conversation when the iteration starts.
    """
    place, is_first = max(after + 1, 0), True
    with hub.watch(cid) as watcher:
        batch: Batch = None
        pause = _RETRY_SECONDS
        while not isinstance(batch, End):
            if batch is None or batch[0].seq > place:
                try:
                    async for stored in store.read(cid, place):
                        yield stored
                        place, is_first = stored.seq + 1, False
                    pause, is_first = _RETRY_SECONDS, False
                except NotFound:
                    if is_first:
                        raise
                    return
                except (StoreError, Unavailable) as error:
                    if hub.closed:
                        return
                    if not error.details.get("transient"):
                        raise
                    # The store is away; nothing is lost meanwhile, so watchers need not know.
                    batch, pause = await _take_within(watcher, pause), min(pause * 2, _MOST_RETRY_SECONDS)
                    continue
            else:
                for stored in batch[max(place - batch[0].seq, 0) :]:
                    yield stored
                    place = stored.seq + 1
            batch = await watcher.take()


async def follow_commits(hub: Hub, *, appends: bool = True) -> AsyncIterator[None]:
    """Iterate moments after each of which something was committed since the one before; ends with the store."""
    with hub.watch_commits(appends=appends) as watcher:
        while not hub.closed:
            await watcher.arrived.wait()
            watcher.arrived.clear()  # before whoever iterates looks: what is committed from here on is another moment
            if not hub.closed:
                yield


async def _take_within(watcher: Watcher, seconds: float) -> Batch:
    """Return `END` as soon as it is said, else None, which makes a subscriber read the store, after that time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not isinstance(await watcher.take(), End):
                pass
            return END
    return None


def _tell(loop: asyncio.AbstractEventLoop, watchers: list[Watcher], batch: Batch) -> None:
    try:
        loop.call_soon_threadsafe(_put_all, watchers, batch)
    except RuntimeError:
        if not loop.is_closed():
            raise  # a closed loop has nobody left to tell


def _put_all(watchers: list[Watcher], batch: Batch) -> None:
    for watcher in watchers:
        watcher.put(batch)
