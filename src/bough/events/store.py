"""The event store: one protocol, implemented by memory, SQLite and Postgres alike.

A conversation's log is the shared prefix of its ancestors followed by its own events. A fork writes one row: the
conversation that owns the last shared event (`parent`) and how many events are shared (`base`). Its own events start
at `seq = base`, so a lineage is a short list of disjoint `(conversation, lo, hi)` ranges.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Protocol, TypeVar, Unpack, runtime_checkable
from uuid import UUID

from bough.events.lease_renewal import RenewedLease
from bough.events.record import (
    ConversationFilter,
    ConversationRecord,
    Cut,
    DeleteMode,
    Lease,
    MessageQuery,
    OnIndexed,
    Order,
    Page,
    Pruned,
    SearchPage,
    StoredEvent,
)
from bough.events.side_tables import OnAppend, SideTables, Tables

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from bough.events.draft import ForkFields, ImportPiece
    from bough.events.erasure.receipt import ErasureReceipt, Tenant
    from bough.events.integrity import Census, Integrity
    from bough.events.model import Event

T = TypeVar("T")

__all__ = ["Cut", "DeleteMode", "EventStore", "StoreAdmin"]


class EventStore(Protocol):
    """Stores conversations and their events. Safe for concurrent use; every method may raise `StoreError`."""

    url: str

    async def create(
        self, record: ConversationRecord | None = None, *, events: Sequence[Event] = (), owner: str | None = None
    ) -> ConversationRecord:
        """Create a root conversation with its first events. Durable on return; writes 1 + len(events) rows.

        Args:
            owner: Replaces the owner of `record`. The owner never changes later.

        Raises:
            Conflict: A conversation has the id already.
        """
        ...

    async def get(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation. One row.

        Raises:
            NotFound: The conversation does not exist, or was deleted.
            CorruptLog: The row is damaged. Every method that needs the row raises this.
        """
        ...

    async def resolve(self, name: str) -> UUID:
        """Return the id of the conversation that `name` denotes.

        A name is an id, its unique beginning or end of at least 4 hexadecimal digits, or `-` for the most recently
        updated conversation.

        Raises:
            NotFound: No conversation matches.
            InvalidInput: The name is invalid, or several match (`details["matches"]`).
        """
        ...

    async def append(
        self,
        cid: UUID,
        events: Sequence[Event],
        *,
        generation: int | None = None,
        expected_head: int | None = None,
    ) -> int:
        """Append all events or none, and return the new head. Durable on return; O(len(events)).

        `StateChanged` events update the record's `status`, `title` and `tags` in the same transaction.

        Raises:
            NotFound: The conversation does not exist, or was deleted.
            Conflict: `generation` is outdated, the head is not `expected_head`, or an event id exists already.
        """
        ...

    def read(
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
        """Iterate over the events with `start <= seq < stop`, including shared ones, in bounded memory.

        Args:
            reverse: Newest first, in pages of 16, 64, 256, 1,024 and 4,096 events.
            kinds: Only events of these kinds.
            after_ts: Only events at this time or later.
            before_ts: Only earlier events.

        Raises:
            NotFound: The conversation does not exist.
            CorruptLog: The next event is missing or damaged. The events before it were yielded.
        """
        ...

    async def read_ids(self, cid: UUID, start: int, stop: int) -> list[tuple[int, UUID, str]]:
        """Return (seq, id, kind) of the events with `start <= seq < stop`, without their payloads.

        Raises:
            NotFound: The conversation does not exist.
        """
        ...

    async def tail(self, cid: UUID, n: int) -> list[StoredEvent]:
        """Return the last n events, oldest first. O(n + depth of forks).

        Raises:
            NotFound: The conversation does not exist.
            CorruptLog: An event is missing or damaged.
        """
        ...

    async def locate(self, event_id: UUID, *, cid: UUID | None = None) -> tuple[UUID, int]:
        """Return (owner, seq) of an event; with `cid`, only if that conversation's log has it.

        Raises:
            NotFound: The event does not exist, or is not in that conversation's log.
        """
        ...

    async def fork(self, cid: UUID, **fields: Unpack[ForkFields]) -> ConversationRecord:
        """Fork a conversation in one transaction and return the new record.

        Writes one row, plus one for each of `events` (the fork's first own events); the cost does not depend on the
        length of the log. Title, tags and config are not inherited. The same `id` with the same source, cut and
        lineage returns the existing fork.

        Args:
            fields: See `ForkFields`.

        Raises:
            NotFound: The conversation does not exist or was deleted, or its log lacks the event `at`.
            InvalidInput: The cut is negative or beyond the head.
            Conflict: Another conversation has the `id`.
        """
        ...

    def subscribe(self, cid: UUID, after: int = -1) -> AsyncIterator[StoredEvent]:
        """Iterate over the events with `seq > after`, then over new ones that any process appends.

        Yields each event exactly once. Ends when the conversation is deleted or the store is closed.
        """
        ...

    async def list(
        self,
        filter: ConversationFilter | None = None,
        cursor: str | None = None,
        limit: int = 50,
        order: Order = "updated_desc",
    ) -> Page:
        """Return a page of conversations. O(the owner's conversations), or O(store) without an owner in the filter.

        Conversations with damaged rows are in `Page.damaged`.

        Raises:
            InvalidInput: The cursor or the order is invalid.
        """
        ...

    async def count(self, filter: ConversationFilter | None = None) -> int:
        """Return the number of matching conversations. Cost as for `list`."""
        ...

    async def scan(self, after: int = 0, limit: int = 500) -> list[ConversationRecord]:
        """Return conversations with `number > after` in that order, including tombstones. O(limit).

        Damaged rows are skipped. An empty list means the end.
        """
        ...

    async def search(self, query: MessageQuery, *, on_indexed: OnIndexed | None = None) -> SearchPage:
        """Return messages and answers that match a query, the newest first.

        Indexes the messages appended since the last search first; the first search of a store indexes all of them. The
        search itself reads the hits, whatever the size of the store; with tags and on Postgres, it reads the matches.

        Args:
            on_indexed: Called as `on_indexed(done, total)` while messages are indexed.

        Raises:
            InvalidInput: The query has no words or too many, or its cursor or limit is invalid.
            Unavailable: The store is read-only and was never searched, or SQLite was built without FTS5.
            StoreError: The store is read-only and has messages that are not indexed.
        """
        ...

    async def children(self, cid: UUID) -> list[ConversationRecord]:
        """Return the forks whose `forked_from` is this conversation, oldest first."""
        ...

    async def lineage(self, cid: UUID) -> list[tuple[UUID, int, int]]:
        """Return the disjoint ranges `(owner, lo, hi)` that make up the log, oldest first. O(depth)."""
        ...

    async def common_ancestor(self, a: UUID, b: UUID) -> tuple[UUID, int] | None:
        """Return (owner of the last shared event, number of shared events); None if nothing is shared. O(depth)."""
        ...

    async def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take the lease for `ttl` seconds. Increments the generation, even if the owner already holds the lease.

        Expiry is measured by the store's clock: the database server's, or the monotonic clock of this machine.

        Raises:
            Conflict: Another owner holds an unexpired lease; `details["owner"]` names it.
        """
        ...

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease by `ttl` seconds from now, its generation unchanged.

        Raises:
            Conflict: The lease was lost.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Release a lease. Does nothing if it was lost."""
        ...

    async def lease_owner(self, cid: UUID) -> str | None:
        """Return the owner of the unexpired lease of a conversation, or None if no owner holds one.

        Raises:
            NotFound: The conversation does not exist.
        """
        ...

    def keep_lease(self, lease: Lease, ttl: float, lost: Callable[[], object]) -> RenewedLease:
        """Renew a lease three times in `ttl` seconds until `.stop()`, in a thread, so that a busy loop never loses it.

        Args:
            lost: Called once in the running loop, if a renewal is refused or none succeeds for `ttl` seconds.
        """
        ...

    async def transaction(
        self,
        side_tables: SideTables | Collection[SideTables],
        change: Callable[[Tables], T],
        *,
        read_only: bool = False,
        small: bool = False,
    ) -> T:
        """Run `change(tables)` in one transaction over side tables and log, and return its result. Durable on return.

        Args:
            side_tables: Packages whose tables and statements it uses. The first use creates or upgrades the tables.
            change: A plain function that takes at most 50 ms and may run again.
            read_only: The change only reads. It sees one snapshot and does not block writers.
            small: The change reads a few rows by their keys, and may run in the caller's thread.

        Raises:
            StoreError: The tables come from a newer version of the package.
            Unavailable: The store is read-only and lacks the tables.
            BoughError: Raised by the change; nothing is written.
        """
        ...

    def on_append(self, side_tables: SideTables, kinds: Collection[str], add: OnAppend) -> None:
        """Call `add(tables, conversation, event)` for events of these kinds, in the transaction that appends them.

        `add` may write rows but no events; the append raises what `add` raises. Not called for imports. Applies to
        this store object; repeating the call has no effect.
        """
        ...

    def commits(self, *, appends: bool = True) -> AsyncIterator[None]:
        """Yield after each commit of any process. Several commits may yield once.

        Args:
            appends: Whether to yield for commits that only appended events or added conversations.
        """
        ...

    async def delete(self, cid: UUID, mode: DeleteMode = "tombstone") -> None:
        """Delete a conversation.

        `tombstone`: remove it from lists, and delete its events except those that live forks share. `erase`: also
        replace shared payloads by typed stubs, in every branch, as `erase` does. `cascade`: also delete all its forks.
        """
        ...

    async def erase(
        self, cid: UUID, *, others: Collection[UUID] = (), compact: bool = True, tenant: Tenant | None = None
    ) -> ErasureReceipt:
        """Delete a conversation so that the store's files keep no byte of its content. Also erases deleted ones.

        Forks that share its events keep typed stubs. Repeating the call returns the same receipt. O(store): SQLite's
        file and Postgres' tables are rewritten, and other writers wait.

        Args:
            others: Living conversations that are erased with it, in the same transaction and receipt. Those that were
                deleted meanwhile are left out.
            compact: Whether to rewrite them. Until that is done, for example by the next erasure, free space of the
                store may have remains.
            tenant: Erase only what belongs to this tenant; checked in the transaction of the erasure.

        Raises:
            NotFound: No row of the conversation exists, and no receipt of its erasure; or one of `others` belongs to
                another tenant. Nothing was erased.
        """
        ...

    async def export(
        self, cid: UUID, file: IO[bytes], *, key: Ed25519PrivateKey | None = None, salvage: bool = False
    ) -> None:
        """Write the conversation and its lineage to a bundle, signed by `key`. See `bundle.write_bundle`."""
        ...

    async def count_imported(self, cid: UUID) -> int:
        """Return the seq before which a log has imported events; 0 if it has none. O(depth).

        Raises:
            NotFound: The conversation does not exist, or was deleted.
        """
        ...

    async def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record of a conversation, also of a tombstone that a live fork needs.

        Raises:
            NotFound: The row does not exist.
        """
        ...

    async def ancestry(self, cid: UUID) -> list[ConversationRecord]:
        """Return the ancestors of a conversation, including tombstones, each after its own ancestors.

        Raises:
            NotFound: The conversation does not exist, or was deleted.
        """
        ...

    async def aclose(self) -> None:
        """Finish pending writes and close. Subscriptions end."""
        ...


@runtime_checkable
class StoreAdmin(EventStore, Protocol):
    """A whole store, with what only its operator does: pruning, checks and imports, whoever owns the rows.

    What `open_store` returns. A server gives its callers views of one owner, which are `EventStore`s only.
    """

    def every(self, kind: str) -> AsyncIterator[StoredEvent]:
        """Iterate over all events of a kind in the store, once each, including those of tombstones.

        O(all events) on SQLite.

        Raises:
            CorruptLog: The next event is damaged.
        """
        ...

    async def prune(
        self,
        older_than: timedelta,
        filter: ConversationFilter | None = None,
        *,
        keep_tagged: bool = False,
        dry_run: bool = False,
    ) -> Pruned:
        """Delete (tombstone) conversations that match the filter and have not changed for `older_than`.

        Skips conversations with a live lease and those that run or wait. Events that live forks share stay, as after
        every deletion.

        Args:
            keep_tagged: Skip conversations with tags.
            dry_run: Delete nothing, and return what would be deleted.
        """
        ...

    async def import_(
        self, file: IO[bytes], *, trusted: Collection[bytes] | None = None, owner: str | None = None
    ) -> ConversationRecord:
        """Import a bundle, signed by one of `trusted` if given. Idempotent. See `bundle.read_bundle`.

        Args:
            owner: Owner of the conversation, if it is new here.
        """
        ...

    async def check(self) -> Integrity:
        """Check every row and return the inconsistencies. O(store)."""
        ...

    async def span(self, owner: UUID, lo: int, hi: int) -> list[StoredEvent]:
        """Return own events of a conversation with `lo <= seq < hi`, also of a tombstone, and verify their checksums.

        Raises:
            CorruptLog: An event is missing or damaged.
        """
        ...

    async def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert the missing parts of an import in one transaction.

        Raises:
            Conflict: The store changed since the import was planned, or another event has the id of one of these.
        """
        ...

    async def census(self) -> Census:
        """Return the number of events, and the result of the database's own check. O(store)."""
        ...
