"""The event store: one protocol, implemented by memory, SQLite and Postgres alike.

A conversation's log is the shared prefix of its ancestors followed by its own events. A fork writes one row: the
conversation that owns the last shared event (`parent`) and how many events are shared (`base`). Its own events start
at `seq = base`, so a lineage is a short list of disjoint `(conversation, lo, hi)` ranges.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Protocol, TypeVar, Unpack
from uuid import UUID

from bough.events.beside import Beside, Follow, Tables
from bough.events.lease_renewal import Keeping
from bough.events.record import (
    ConversationFilter,
    ConversationRecord,
    Cut,
    DeleteMode,
    Lease,
    Order,
    Page,
    Pruned,
    StoredEvent,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from bough.events.draft import ForkFields, ImportPiece
    from bough.events.integrity import Census, Integrity
    from bough.events.model import Event

T = TypeVar("T")

__all__ = ["Cut", "DeleteMode", "EventStore", "StoreAdmin"]


class EventStore(Protocol):
    """Conversations and their events. Safe for concurrent use; every method may raise `StoreError`."""

    url: str

    async def create(
        self, record: ConversationRecord | None = None, *, events: Sequence[Event] = (), owner: str | None = None
    ) -> ConversationRecord:
        """Create a root conversation with its first events, durable on return. Writes 1 + len(events) rows.

        Args:
            owner: Whose it is, in place of the record's; never changed later.

        Raises:
            Conflict: The id is taken.
        """
        ...

    async def get(self, cid: UUID) -> ConversationRecord:
        """Return the record. One row.

        Raises:
            NotFound: There is no such conversation, or it was deleted.
            CorruptLog: Its row is not what was written; so every method that needs the row.
        """
        ...

    async def resolve(self, name: str) -> UUID:
        """Return the conversation that `name` stands for.

        An id, a unique part at its start or end (at least 4 hexadecimal digits), or `-` for the most recently
        updated one.

        Raises:
            NotFound: Nothing matches.
            InvalidInput: It is no such name, or several match (`details["matches"]`).
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
        """Append all events or none, durable on return, and return the new head. O(len(events)).

        `StateChanged` events update the record's `status`, `title` and `tags` in the same transaction.

        Raises:
            NotFound: No such conversation, or it was deleted.
            Conflict: `generation` is fenced off, or the head is not `expected_head`, or an event id exists already.
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
        """Iterate the events with `start <= seq < stop`, shared ones included, in bounded memory.

        Args:
            reverse: From the newest to the oldest, in pages of 16, 64, 256, 1,024 and 4,096 events.
            kinds: Only events of these kinds.
            after_ts: Only events that happened then or later.
            before_ts: Only events that happened earlier.

        Raises:
            NotFound: There is no such conversation.
            CorruptLog: The next one is missing, or is not what its digest says; those before it were handed on.
        """
        ...

    async def read_ids(self, cid: UUID, start: int, stop: int) -> list[tuple[int, UUID, str]]:
        """Return (seq, id, kind) of the events with `start <= seq < stop`, without their payloads.

        Raises:
            NotFound: There is no such conversation.
        """
        ...

    async def tail(self, cid: UUID, n: int) -> list[StoredEvent]:
        """Return the last n events, oldest first. O(n + depth of forks).

        Raises:
            NotFound: There is no such conversation.
            CorruptLog: One is missing, or is not what its digest says.
        """
        ...

    async def locate(self, event_id: UUID, *, cid: UUID | None = None) -> tuple[UUID, int]:
        """Return (owner, seq) of an event; with `cid`, only if that conversation's log has it.

        Raises:
            NotFound: No such event, or not in that conversation's log.
        """
        ...

    async def fork(self, cid: UUID, **fields: Unpack[ForkFields]) -> ConversationRecord:
        """Fork in one transaction and return the new record.

        Writes one row, plus one for each of `events` (the fork's first own ones); the cost does not depend on the
        length of the log. Nothing is inherited: title, tags and config are what is given.

        Args:
            fields: See `ForkFields`.

        The same `id` with the same source, cut and lineage returns the fork that exists.

        Raises:
            NotFound: No such conversation, or it was deleted, or `at` names an event that its log does not have.
            InvalidInput: The cut is negative or beyond the head.
            Conflict: `id` is taken by something else.
        """
        ...

    def subscribe(self, cid: UUID, after: int = -1) -> AsyncIterator[StoredEvent]:
        """Iterate the events with `seq > after`, then live ones as they are appended, by whichever process.

        None is lost, none comes twice. Ends when the conversation is deleted or the store is closed.
        """
        ...

    async def list(
        self,
        filter: ConversationFilter | None = None,
        cursor: str | None = None,
        limit: int = 50,
        order: Order = "updated_desc",
    ) -> Page:
        """Return a page of conversations. O(the owner's conversations), or O(store) without one in the filter.

        One whose row is damaged is in `Page.damaged`, and keeps no other one from being listed.

        Raises:
            InvalidInput: The cursor or the order is none.
        """
        ...

    async def count(self, filter: ConversationFilter | None = None) -> int:
        """Return how many conversations match. As `list`."""
        ...

    async def scan(self, after: int = 0, limit: int = 500) -> list[ConversationRecord]:
        """Return conversations by `number`, those above `after`, tombstones too. O(limit).

        Those whose rows are damaged are passed over; an empty list is the end.
        """
        ...

    async def children(self, cid: UUID) -> list[ConversationRecord]:
        """Return the forks whose `forked_from` is this conversation, oldest first."""
        ...

    async def lineage(self, cid: UUID) -> list[tuple[UUID, int, int]]:
        """Return the disjoint ranges `(owner, lo, hi)` that make up the log, oldest first. O(depth)."""
        ...

    async def common_ancestor(self, a: UUID, b: UUID) -> tuple[UUID, int] | None:
        """Return (owner of the last shared event, number of shared events), or None for nothing. O(depth)."""
        ...

    async def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take the lease for `ttl` seconds, always raising the generation (also for the owner that holds it already).

        The store's clock decides: the server's, or the machine's monotonic one.

        Raises:
            Conflict: Another owner holds an unexpired lease; `details["owner"]` names it.
        """
        ...

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease by `ttl` seconds from now, its generation unchanged.

        Raises:
            Conflict: It was lost meanwhile.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give the lease back; nothing happens if it was lost meanwhile."""
        ...

    def keep(self, lease: Lease, ttl: float, lost: Callable[[], object]) -> Keeping:
        """Renew a lease three times in `ttl` seconds until `.stop()`, in a thread: whatever the event loop is doing.

        Args:
            lost: Called once in the running loop, when a renewal is refused or none was answered for `ttl` seconds.
        """
        ...

    async def together(
        self,
        beside: Beside | Collection[Beside],
        change: Callable[[Tables], T],
        *,
        read_only: bool = False,
        small: bool = False,
    ) -> T:
        """Return `change(tables)`: all it did, to rows beside the log and to the log, is durable, or nothing is.

        Args:
            beside: Whose tables and statements; they are made or brought up to date at the first use.
            change: A plain function of its tables, at most 50 ms; it may run again.
            read_only: It only looks, at one state of the store, beside writers.
            small: It reads a few rows by their keys, and may do so in the caller's thread.

        Raises:
            StoreError: The tables come from a newer version of the package.
            Unavailable: The store is read-only and has no such tables.
            BoughError: Whatever the change raises; nothing is written then.
        """
        ...

    def follow(self, beside: Beside, kinds: Collection[str], add: Follow) -> None:
        """Call `add(tables, conversation, event)` for events of these kinds, in the transaction that appends them.

        `add` writes rows and no events; what it raises is what the append raises. Imports are not followed. The same
        call again changes nothing; it holds for this store object.
        """
        ...

    def commits(self, *, appends: bool = True) -> AsyncIterator[None]:
        """Iterate moments: after each, some process has committed since the one before. Several may come as one.

        Args:
            appends: False leaves out commits that are known to have only appended events.
        """
        ...

    async def delete(self, cid: UUID, mode: DeleteMode = "tombstone") -> None:
        """Delete a conversation.

        `tombstone`: it is gone from lists; events that live forks reach stay, the rest is removed. `erase`: shared
        payloads are scrubbed too, for every branch, typed stubs stay. `cascade`: all its forks go too.
        """
        ...

    async def export(
        self, cid: UUID, file: IO[bytes], *, key: Ed25519PrivateKey | None = None, salvage: bool = False
    ) -> None:
        """Write the conversation and its lineage to a bundle, signed by `key`. See `bundle.write_bundle`."""
        ...

    async def count_imported(self, cid: UUID) -> int:
        """Return before which seq a log has events that came by import; 0 where none did. O(depth).

        Raises:
            NotFound: There is no such conversation, or it was deleted.
        """
        ...

    async def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record even of a deleted conversation, as long as a living fork needs its tombstone.

        Raises:
            NotFound: There is no such row.
        """
        ...

    async def ancestry(self, cid: UUID) -> list[ConversationRecord]:
        """Return the conversations this one descends from, tombstones too, each after those it descends from itself.

        Raises:
            NotFound: There is no such conversation, or it was deleted.
        """
        ...

    async def aclose(self) -> None:
        """Finish what is being written and close; subscribers end."""
        ...


class StoreAdmin(EventStore, Protocol):
    """A whole store, with what only its operator does: pruning, checks and imports, whoever owns the rows.

    What `open_store` returns. A server gives its callers views of one owner, which are `EventStore`s only.
    """

    def every(self, kind: str) -> AsyncIterator[StoredEvent]:
        """Iterate all events of a kind in the store, each once, tombstones' too. O(all events) on SQLite.

        Raises:
            CorruptLog: The next one is not what its digest says.
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
        """Delete (tombstone) what fits the filter and has not changed for so long.

        Never one that has a live lease, or runs, or waits. What a living fork needs stays, as after every deletion.

        Args:
            keep_tagged: Leave those with tags.
            dry_run: Delete nothing, and say what would be.
        """
        ...

    async def import_(
        self, file: IO[bytes], *, trusted: Collection[bytes] | None = None, owner: str | None = None
    ) -> ConversationRecord:
        """Read a bundle, signed by one of `trusted` if given; twice adds nothing. See `bundle.read_bundle`.

        Args:
            owner: Whose the conversation is here, where it is new.
        """
        ...

    async def check(self) -> Integrity:
        """Look at every row and return what does not add up. O(store)."""
        ...

    async def span(self, owner: UUID, lo: int, hi: int) -> list[StoredEvent]:
        """Return an owner's own events with `lo <= seq < hi`, tombstone or not, each checked against its digest.

        Raises:
            CorruptLog: One of them is missing or damaged.
        """
        ...

    async def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert what an import found missing, in one transaction.

        Raises:
            Conflict: The store changed since the pieces were made, or an event's id is used elsewhere.
        """
        ...

    async def census(self) -> Census:
        """Return how many events are stored, and what the database's own check finds. O(store)."""
        ...
