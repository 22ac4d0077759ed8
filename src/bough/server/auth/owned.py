"""The isolation of tenants: a view of the store that contains only the conversations of one owner."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack
from uuid import UUID

from bough.errors import Conflict, NotFound
from bough.events.erasure.receipt import ErasureReceipt, Tenant
from bough.events.lease_renewal import RenewedLease
from bough.events.model import Event
from bough.events.record import (
    ConversationFilter,
    ConversationRecord,
    DeleteMode,
    Lease,
    MessageQuery,
    OnIndexed,
    Order,
    Page,
    SearchPage,
    StoredEvent,
)
from bough.events.side_tables import OnAppend, SideTables, Tables
from bough.events.store import EventStore
from bough.server.auth.keys import SERVER
from bough.tasks import Task, TaskBroker, TaskFilter, TaskPage
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events.draft import ForkFields
    from bough.server.metrics import Metrics

T = TypeVar("T")
Charge: TypeAlias = Callable[[Tables, UUID, Sequence[Event]], None]
"""Charges the events appended to a conversation to a quota, in the transaction that appends them."""

_COUNT_PAGE_SIZE = 500
_OWNER_CACHE_SECONDS = 1.0


def make_taken() -> Conflict:
    """Return the error for an id in use. It does not reveal which tenant uses the id."""
    return Conflict("the id is taken", hint="use another id, or repeat the original request")


def make_missing(cid: UUID) -> NotFound:
    """Return the error for a conversation that does not exist or has another owner."""
    return NotFound(f"there is no conversation {cid}", hint="GET /api/conversations/search lists the conversations")


@contextmanager
def _hide_owner(id: UUID | None) -> Generator[None]:
    """Replace a conflict about `id` by an error that does not reveal which tenant uses the id."""
    try:
        yield
    except Conflict as error:
        if id is None or error.details.get("conversation") != str(id):
            raise
        raise make_taken() from None


class OwnedStore:
    """An `EventStore` that contains only the conversations of one owner; it reports all others as not found.

    Every method that takes an id first checks the owner of the conversation: one indexed row, at most once a second
    per id. The check is repeated because after a conversation is deleted, another owner may use its id. Conversations
    created through this view belong to the owner.

    Args:
        store: The whole store.
        owner: None for the conversations without an owner.
        metadata: Added to the `config` of conversations created or forked through this view.
        metrics: Counts the events appended through this view.
        admit: Called before a conversation is created; raises `LimitExceeded` if the owner may have no more.
    """

    def __init__(
        self,
        store: EventStore,
        owner: str | None,
        *,
        metadata: JsonObject | None = None,
        metrics: Metrics | None = None,
        admit: Callable[[str | None], Awaitable[None]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._owner = owner
        self._metadata = metadata or {}
        self._metrics = metrics
        self._admit = admit
        self._monotonic = monotonic
        self._checked_at: dict[UUID, float] = {}
        self._charge: Charge | None = None
        self.url = store.url
        self.files_key: tuple[str, ...] = getattr(store, "files_key", ())
        self.add_folder: Callable[[Path], None] | None = getattr(store, "add_folder", None)

    def with_metadata(self, metadata: JsonObject) -> OwnedStore:
        """Return a copy of this view that adds `metadata` to the `config` of conversations it creates or forks."""
        view = OwnedStore(
            self._store,
            self._owner,
            metadata=metadata,
            metrics=self._metrics,
            admit=self._admit,
            monotonic=self._monotonic,
        )
        view._checked_at, view._charge = self._checked_at, self._charge
        return view

    def with_charge(self, charge: Charge) -> OwnedStore:
        """Return a copy of this view that calls `charge` in each transaction that appends events."""
        view = self.with_metadata(self._metadata)
        view._charge = charge
        return view

    async def count_new_conversation(self) -> None:
        """Check that the owner may have one more conversation, and count it.

        Raises:
            LimitExceeded: The owner may have no more.
        """
        if self._admit is not None:
            await self._admit(self._owner)

    @property
    def owner(self) -> str | None:
        """The owner of the conversations; None for those without an owner."""
        return self._owner

    async def get(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation of the owner. Reads one row.

        Raises:
            NotFound: The conversation does not exist or has another owner; the error is the same.
        """
        try:
            record = await self._store.get(cid)
        except NotFound:
            raise make_missing(cid) from None
        if record.owner != self._owner:
            raise make_missing(cid)
        self._checked_at[cid] = self._monotonic()
        return record

    async def _require_owned(self, cid: UUID) -> None:
        """Raise `NotFound` for another owner's conversation. The store itself refuses one deleted since then."""
        checked_at = self._checked_at.get(cid)
        if checked_at is None or self._monotonic() - checked_at > _OWNER_CACHE_SECONDS:
            await self.get(cid)

    async def create(
        self, record: ConversationRecord | None = None, *, events: Sequence[Event] = (), owner: str | None = None
    ) -> ConversationRecord:
        """Create a root conversation of the view's owner; `owner` is ignored."""
        if record is None:
            raise Conflict("a conversation of an owner needs a record")
        await self.count_new_conversation()
        owned = replace(record, owner=self._owner, config=record.config | self._metadata)
        with _hide_owner(record.id):
            return await self._store.create(owned, events=events)

    async def fork(self, cid: UUID, **fields: Unpack[ForkFields]) -> ConversationRecord:
        """Fork a conversation of the owner. The fork has the same owner; the field `owner` is ignored."""
        await self._require_owned(cid)
        await self.count_new_conversation()
        fields["config"] = (fields.get("config") or {}) | self._metadata
        fields["owner"] = self._owner
        with _hide_owner(fields.get("id")):
            return await self._store.fork(cid, **fields)

    async def append(
        self, cid: UUID, events: Sequence[Event], *, generation: int | None = None, expected_head: int | None = None
    ) -> int:
        """Append to a conversation of the owner."""
        await self._require_owned(cid)
        started = time.monotonic()
        head = await self._append(cid, events, generation=generation, expected_head=expected_head)
        if self._metrics is not None:
            self._metrics.appends.inc(len(events))
            self._metrics.append_seconds.observe(time.monotonic() - started)
        return head

    async def _append(self, cid: UUID, events: Sequence[Event], **expected: Any) -> int:
        """Append events, and charge them in the same transaction if the view has a charge."""
        charge = self._charge
        if charge is None:
            return await self._store.append(cid, events, **expected)

        def append(tables: Tables) -> int:
            head = tables.append(cid, events, **expected)
            charge(tables, cid, events)
            return head

        return await self._store.transaction(SERVER, append)

    async def read(
        self,
        cid: UUID,
        start: int = 0,
        stop: int | None = None,
        *,
        reverse: bool = False,
        kinds: Collection[str] | None = None,
        after_ts: datetime | None = None,
        before_ts: datetime | None = None,
    ) -> AsyncGenerator[StoredEvent]:
        """Iterate events of a conversation of the owner."""
        await self._require_owned(cid)
        options: dict[str, Any] = {"kinds": kinds, "after_ts": after_ts, "before_ts": before_ts}
        async with aclosing(self._store.read(cid, start, stop, reverse=reverse, **options)) as events:
            async for stored in events:
                yield stored

    async def read_ids(self, cid: UUID, start: int, stop: int) -> list[tuple[int, UUID, str]]:
        """Return seq, id and kind of events of a conversation of the owner."""
        await self._require_owned(cid)
        return await self._store.read_ids(cid, start, stop)

    async def scan(self, after: int = 0, limit: int = 500) -> list[ConversationRecord]:
        """Refuse: no owner may read the whole store."""
        raise NotFound("an owner's view cannot read the whole store")

    async def tail(self, cid: UUID, n: int) -> list[StoredEvent]:
        """Return the last events of a conversation of the owner."""
        await self._require_owned(cid)
        return await self._store.tail(cid, n)

    async def locate(self, event_id: UUID, *, cid: UUID | None = None) -> tuple[UUID, int]:
        """Return the position of an event in a conversation of the owner."""
        if cid is None:
            raise NotFound(f"there is no event {event_id}")
        await self._require_owned(cid)
        try:
            return await self._store.locate(event_id, cid=cid)
        except NotFound:
            hint = "a fork contains no events of its siblings, and none that its source appended after the fork"
            raise NotFound(f"there is no event {event_id} in the log of {cid}", hint=hint) from None

    async def subscribe(self, cid: UUID, after: int = -1) -> AsyncIterator[StoredEvent]:
        """Iterate new events of a conversation of the owner."""
        await self._require_owned(cid)
        async for stored in self._store.subscribe(cid, after):
            yield stored

    async def count(self, filter: ConversationFilter | None = None) -> int:
        """Return the number of matching conversations.

        O(conversations of the owner); without an owner, O(conversations of the store).
        """
        if self._owner is not None:
            return await self._store.count(self._add_owner(filter))
        page = await self.list(filter, None, _COUNT_PAGE_SIZE)
        total = len(page.items)
        while page.next_cursor is not None:
            page = await self.list(filter, page.next_cursor, _COUNT_PAGE_SIZE)
            total += len(page.items)
        return total

    async def list(
        self,
        filter: ConversationFilter | None = None,
        cursor: str | None = None,
        limit: int = 50,
        order: Order = "updated_desc",
    ) -> Page:
        """Return a page of the owner's conversations."""
        own_filter = self._add_owner(filter)
        page = await self._store.list(own_filter, cursor, limit, order)
        if self._owner is not None:
            return page
        items = [record for record in page.items if record.owner is None]  # filters cannot select these
        while len(items) < limit and page.next_cursor is not None:
            page = await self._store.list(own_filter, page.next_cursor, limit - len(items), order)
            items += [record for record in page.items if record.owner is None]
        return replace(page, items=items)

    async def search(self, query: MessageQuery, *, on_indexed: OnIndexed | None = None) -> SearchPage:
        """Return messages of the owner's conversations; the owner in `query` is ignored."""
        own_query = replace(query, owner=self._owner, unowned=self._owner is None)
        return await self._store.search(own_query, on_indexed=on_indexed)

    async def children(self, cid: UUID) -> list[ConversationRecord]:
        """Return the direct forks of a conversation of the owner."""
        await self._require_owned(cid)
        return [child for child in await self._store.children(cid) if child.owner == self._owner]

    async def lineage(self, cid: UUID) -> list[tuple[UUID, int, int]]:
        """Return the ranges that make up the log of a conversation of the owner."""
        await self._require_owned(cid)
        return await self._store.lineage(cid)

    async def common_ancestor(self, a: UUID, b: UUID) -> tuple[UUID, int] | None:
        """Return the common ancestor of two conversations of the owner."""
        await self._require_owned(a)
        await self._require_owned(b)
        return await self._store.common_ancestor(a, b)

    async def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take the lease of a conversation of the owner."""
        await self._require_owned(cid)
        return await self._store.acquire(cid, owner, ttl)

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease."""
        return await self._store.renew(lease, ttl)

    async def release(self, lease: Lease) -> None:
        """Release a lease."""
        await self._store.release(lease)

    async def lease_owner(self, cid: UUID) -> str | None:
        """Return the owner of the lease of a conversation of the owner."""
        await self._require_owned(cid)
        return await self._store.lease_owner(cid)

    def keep_lease(self, lease: Lease, ttl: float, lost: Callable[[], object]) -> RenewedLease:
        """Renew a lease in the background, and call `lost` if that fails."""
        return self._store.keep_lease(lease, ttl, lost)

    async def delete(self, cid: UUID, mode: DeleteMode = "tombstone") -> None:
        """Delete a conversation of the owner. Its forks have the same owner, so no other owner is affected."""
        await self._require_owned(cid)
        self._checked_at.pop(cid, None)
        await self._store.delete(cid, mode)

    async def erase(
        self, cid: UUID, *, others: Collection[UUID] = (), compact: bool = True, tenant: Tenant | None = None
    ) -> ErasureReceipt:
        """Erase conversations of the owner, or the remains of a deleted one.

        A tenant does not compact the store, because the writers of every tenant would wait.
        """
        if tenant is not None and tenant.owner != self.owner:
            raise make_missing(cid)
        for id in (cid, *others):
            self._checked_at.pop(id, None)
        # The owner is checked in the transaction: the row of a deleted conversation has none, and its id can be in use.
        compact = compact and self.owner is None
        return await self._store.erase(cid, others=others, compact=compact, tenant=Tenant(self.owner))

    async def export(self, cid: UUID, file: IO[bytes], *, key: Any = None, salvage: bool = False) -> None:
        """Write a conversation of the owner to a bundle."""
        await self._require_owned(cid)
        await self._store.export(cid, file, key=key, salvage=salvage)

    async def ancestry(self, cid: UUID) -> list[ConversationRecord]:
        """Return the ancestors of a conversation of the owner."""
        await self._require_owned(cid)
        return await self._store.ancestry(cid)

    async def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation of the owner, even of a deleted one."""
        try:
            record = await self._store.peek(cid)
        except NotFound:
            raise make_missing(cid) from None
        if record.owner != self._owner and not record.deleted:  # a tombstone reveals nothing, not even its owner
            raise make_missing(cid)
        return record

    async def resolve(self, name: str) -> UUID:
        """Refuse: only the command line uses names."""
        raise NotFound("the server identifies conversations by their full id")

    async def count_imported(self, cid: UUID) -> int:
        """Return the seq before which a log has imported events; 0 if it has none."""
        await self._require_owned(cid)
        return await self._store.count_imported(cid)

    async def transaction(
        self,
        side_tables: SideTables | Collection[SideTables],
        change: Callable[[Tables], T],
        *,
        read_only: bool = False,
        small: bool = False,
    ) -> T:
        """Run a transaction on side tables. Checks no owner: callers have looked up the conversation before."""
        return await self._store.transaction(side_tables, change, read_only=read_only, small=small)

    def on_append(self, side_tables: SideTables, kinds: Collection[str], add: OnAppend) -> None:
        """Call `add` for each appended event of these kinds, in the transaction that appends it."""
        self._store.on_append(side_tables, kinds, add)

    def commits(self, *, appends: bool = True) -> AsyncIterator[None]:
        """Iterate notifications of commits; they do not contain what was committed."""
        return self._store.commits(appends=appends)

    async def aclose(self) -> None:
        """Do nothing: the server closes the store."""

    def _add_owner(self, filter: ConversationFilter | None) -> ConversationFilter:
        return replace(filter or ConversationFilter(), owner=self._owner)


class OwnedTasks:
    """The tasks of one owner's conversations; it reports all others as not found.

    Args:
        store: The owner's view of the conversations.
    """

    def __init__(self, broker: TaskBroker, store: OwnedStore) -> None:
        self._broker = broker
        self._store = store

    async def get(self, task_id: str) -> Task:
        """Return a task with its latest events.

        Raises:
            NotFound: The task does not exist or has another owner; the error is the same.
        """
        task = await self._broker.store.get(task_id)
        if task is not None and task.conversation is not None:
            try:
                await self._store.get(task.conversation)
            except NotFound:
                pass
            else:
                return task
        raise NotFound(f"there is no task {task_id}")

    async def list(self, filter: TaskFilter, cursor: str | None, limit: int) -> TaskPage:
        """Return a page of the owner's tasks, newest first; `filter` must not set an owner."""
        owner = self._store.owner
        return await self._broker.store.list(replace(filter, owner=owner, unowned=owner is None), cursor, limit)
