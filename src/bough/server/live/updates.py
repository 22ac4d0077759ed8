"""What changed in a tenant: rows of conversations and the number of those that wait, for any number of readers.

One task for each watched tenant reads the latest rows after commits, at most twice a second, and compares them with
those it knows. A reader is a position in the list of the latest changes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from bough.errors import BoughError
from bough.events.record import ConversationFilter, ConversationRecord
from bough.events.store import EventStore
from bough.types import JsonObject

_INTERVAL_SECONDS = 0.5
_ROWS = 100
_KEPT_CHANGES = 500
_CLOSED = object()
FindLive = Callable[[list[ConversationRecord]], Awaitable[frozenset[UUID]]]


@dataclass(frozen=True)
class TenantChange:
    """One change: the row of a conversation, or the number of conversations that wait for a person."""

    kind: str
    data: JsonObject


@dataclass
class _SentList:
    rows: dict[UUID, JsonObject] = field(default_factory=dict[UUID, JsonObject])
    waiting: int = 0


class TenantFeed:
    """The changes of one tenant. Must be used on the server's event loop.

    Args:
        store: The tenant's view of the store.
        find_live: Returns which of some conversations have a pending or running run.
    """

    def __init__(self, store: EventStore, find_live: FindLive) -> None:
        self._store = store
        self._find_live = find_live
        self._sent = _SentList()
        self._changes: deque[TenantChange] = deque(maxlen=_KEPT_CHANGES)
        self._count = 0
        self._changed = asyncio.Event()
        self._end: str | None = None
        self._task: asyncio.Task[None] | None = None
        self.readers = 0

    async def open(self) -> None:
        """Read the current rows, and follow the commits from then on."""
        await self._look()
        self._changes.clear()
        self._task = asyncio.create_task(self._follow(), name="updates of a tenant")

    async def aclose(self) -> None:
        """Stop following."""
        self.end("drain")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def read(self, is_refused: Callable[[], bool]) -> AsyncIterator[TenantChange]:
        """Yield the number of waiting conversations, then each change. The last item has the kind `end`."""
        yield TenantChange("approvals", {"count": self._sent.waiting})
        position = self._count
        while True:
            # Checked before the changes: a key that was revoked meanwhile reads nothing more.
            if is_refused():
                yield TenantChange("end", {"reason": "key"})
                return
            first = self._count - len(self._changes)
            for change in list(self._changes)[max(position, first) - first :]:
                yield change
            position = self._count
            if self._end is not None:
                yield TenantChange("end", {"reason": self._end})
                return
            await self._changed.wait()

    def wake(self) -> None:
        """Wake all readers."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self, reason: str) -> None:
        """End all readers after the changes that they have not read."""
        self._end = self._end or reason
        self.wake()

    async def _follow(self) -> None:
        commits = aiter(self._store.commits())
        commit = asyncio.ensure_future(anext(commits, _CLOSED))
        try:
            # Each wait begins before the look, so that no commit falls between a look and the wait after it.
            while True:
                await asyncio.sleep(_INTERVAL_SECONDS)  # commits of this time are one look
                await self._look()
                if await commit is _CLOSED:
                    return
                commit = asyncio.ensure_future(anext(commits, _CLOSED))
        except BoughError:
            self.end("failed")  # readers connect again, when the store answers
        finally:
            commit.cancel()
            await asyncio.gather(commit, return_exceptions=True)

    async def _look(self) -> None:
        """Compare the latest rows with the known ones, and publish the differences."""
        page = await self._store.list(None, None, _ROWS, "updated_desc")
        live = await self._find_live(page.items)
        waiting = await self._store.count(ConversationFilter(status="waiting_for_confirmation"))
        rows = {record.id: _describe(record, is_running=record.id in live) for record in page.items}
        changes = [TenantChange("conversation", row) for id, row in rows.items() if self._sent.rows.get(id) != row]
        if waiting != self._sent.waiting:
            changes.append(TenantChange("approvals", {"count": waiting}))
        self._sent = _SentList(rows, waiting)
        if changes:
            self._changes.extend(changes)
            self._count += len(changes)
            self.wake()


class TenantFeeds:
    """The feeds of a server, one for each tenant that has a reader."""

    def __init__(self) -> None:
        self._feeds: dict[str | None, TenantFeed] = {}
        self._opening: dict[str | None, asyncio.Lock] = {}

    @asynccontextmanager
    async def join(self, owner: str | None, make: Callable[[], TenantFeed]) -> AsyncGenerator[TenantFeed]:
        """Yield the feed of a tenant to one reader while the block runs."""
        async with self._opening.setdefault(owner, asyncio.Lock()):
            feed = self._feeds.get(owner)
            if feed is None:
                feed = make()
                await feed.open()
                self._feeds[owner] = feed
            feed.readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            if feed.readers == 0:
                self._feeds.pop(owner, None)
                await feed.aclose()

    def drain(self) -> None:
        """End all readers, because the server is stopping."""
        for feed in self._feeds.values():
            feed.end("drain")


def _describe(record: ConversationRecord, *, is_running: bool) -> dict[str, Any]:
    status = "running" if is_running and record.status != "waiting_for_confirmation" else record.status
    return {
        "id": str(record.id),
        "title": record.title,
        "execution_status": status,
        "head": record.head,
        "updated_at": record.updated.isoformat(),
        "cost_usd": record.usage.cost_usd,
    }
