"""An event store in dictionaries: the reference model with which tests compare real stores."""

from __future__ import annotations

import builtins
import threading
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from bough.errors import InvalidInput
from bough.events.codec import stub
from bough.events.draft import Draft, ImportPiece, clean_changes, encode_draft, new_record
from bough.events.erasure.receipt import ErasureReceipt, Tenant
from bough.events.integrity import Census
from bough.events.record import (
    ConversationFilter,
    ConversationRecord,
    Cut,
    DeleteMode,
    Lease,
    Page,
    Range,
    StoredEvent,
    clip,
    decode_cursor,
    encode_cursor,
    find_owner,
    microseconds,
)
from bough.events.stores import faults
from bough.events.stores.base import LATEST, BaseEventStore, parse_digits, require_one_match
from bough.events.stores.hub import END
from bough.events.usage import NO_USAGE, sum_payloads
from bough.types import Clock, JsonObject, SystemClock, new_id

if TYPE_CHECKING:
    from bough.events.model import Event


@dataclass
class _Log:
    """A conversation: its record, and `own`, the events that it wrote itself, from seq `record.base` on."""

    record: ConversationRecord
    number: int
    own: builtins.list[StoredEvent] = field(default_factory=builtins.list[StoredEvent])
    lease: Lease | None = None


class ModelEventStore(BaseEventStore):
    """Stores conversations in memory. Thread-safe."""

    url = "memory:"

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._logs: dict[UUID, _Log] = {}
        self._positions: dict[bytes, tuple[UUID, int]] = {}
        self._receipts: dict[UUID, ErasureReceipt] = {}
        self._numbers = 0

    async def create(
        self, record: ConversationRecord | None = None, *, events: Sequence[Event] = ()
    ) -> ConversationRecord:
        """Create a root conversation. See `EventStore.create`."""
        batch = encode_draft(events)
        record = record or new_record(new_id(), self._clock.now())
        with self._open():
            # All checks precede the first change, so that an error leaves the store unchanged.
            if record.id in self._logs:
                raise faults.id_taken(record.id)
            self._check_new(record.id, batch)
            record = replace(record, base=0, head=0, **clean_changes(record, batch.changes))
            return self._insert(record, batch)

    async def get(self, cid: UUID) -> ConversationRecord:
        """Return the record. See `EventStore.get`."""
        with self._open():
            return self._require_living(cid).record

    async def resolve(self, name: str) -> UUID:
        """Return the conversation with this name. See `EventStore.resolve`."""
        with self._open():
            if name.strip() == LATEST:
                return require_one_match(
                    name, [log.record.id for log in self._sort_logs() if not log.record.deleted][:1]
                )
            digits = parse_digits(name)
            living = (log.record.id for log in self._logs.values() if not log.record.deleted)
            return require_one_match(
                name, [cid for cid in living if cid.hex.startswith(digits) or cid.hex.endswith(digits)][:6]
            )

    async def append(
        self,
        cid: UUID,
        events: Sequence[Event],
        *,
        generation: int | None = None,
        expected_head: int | None = None,
    ) -> int:
        """Append all events or none. See `EventStore.append`."""
        batch = encode_draft(events)
        with self._open():
            log = self._require_living(cid)
            record = log.record
            if generation is not None and generation != record.generation:
                raise faults.generation_conflict(cid, generation, record.generation)
            if expected_head is not None and expected_head != record.head:
                raise faults.head_conflict(cid, expected_head, record.head)
            if batch.rows:
                self._check_new(cid, batch)
                log.record = replace(record, updated=max(record.updated, self._now()), **batch.changes)
                self._extend(log, batch)
            return log.record.head

    async def read(
        self, cid: UUID, start: int = 0, stop: int | None = None, *, reverse: bool = False,
        kinds: Collection[str] | None = None,
    ) -> AsyncGenerator[StoredEvent]:  # fmt: skip
        """Iterate events. See `EventStore.read`."""
        with self._open():
            events = [stored for stored in self._read_range(cid, start, stop) if kinds is None or stored.kind in kinds]
        for stored in reversed(events) if reverse else events:
            yield stored

    async def tail(self, cid: UUID, n: int) -> builtins.list[StoredEvent]:
        """Return the last n events. See `EventStore.tail`."""
        with self._open():
            return self._read_range(cid, self._require_living(cid).record.head - max(n, 0), None)

    async def locate(self, event_id: UUID, *, cid: UUID | None = None) -> tuple[UUID, int]:
        """Return (owner, seq). See `EventStore.locate`."""
        with self._open():
            return self._locate(event_id, cid)

    async def fork(
        self,
        cid: UUID,
        *,
        at: Cut | None = None,
        id: UUID | None = None,
        events: Sequence[Event] = (),
        title: str | None = None,
        tags: Mapping[str, str] | None = None,
        config: JsonObject | None = None,
        owner: str | None = None,
        lineage: JsonObject | None = None,
    ) -> ConversationRecord:
        """Fork by adding one record. See `EventStore.fork`."""
        batch, id, created = encode_draft(events), id or new_id(), self._now()
        record = ConversationRecord(
            id=id, root=id, title=title, tags=dict(tags or {}), config=config or {}, owner=owner,
            lineage=lineage or {}, created=created, updated=created,
        )  # fmt: skip
        with self._open():
            source = self._require_living(cid).record
            fields = clean_changes(record, batch.changes)
            # Before `_check_new`, because the events of a repeated fork are already stored, which is not a conflict.
            existing = self._logs.get(id)
            if existing is not None:
                return self._require_same_fork(existing.record, source, at, fields["lineage"])
            cut = self._resolve_cut(source, at)
            self._check_new(id, batch)
            parent = find_owner(self._list_ranges(cid), cut - 1)
            position: dict[str, Any] = {"root": source.root, "parent": parent, "base": cut, "head": cut}
            origin = {"forked_from": cid, "forked_at": cut, "fork_event": self._find_event_id(source, cut - 1)}
            return self._insert(replace(record, **position, **origin, **fields), batch)

    async def list(self, filter: ConversationFilter | None = None, cursor: str | None = None, limit: int = 50) -> Page:
        """Return a page of conversations. O(conversations in the store). See `EventStore.list`."""
        criteria, end = filter or ConversationFilter(), decode_cursor(cursor)
        with self._open():
            logs = [log for log in self._sort_logs() if _matches_filter(log.record, criteria)]
        if end is not None:
            logs = [log for log in logs if _sort_key(log) < end]
        has_more = len(logs) > limit
        items = [log.record for log in logs[:limit]]
        return Page(items=items, next_cursor=encode_cursor(*_sort_key(logs[limit - 1])) if has_more else None)

    async def children(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the forks. See `EventStore.children`."""
        with self._open():
            self._require_living(cid)
            return [
                log.record for log in self._logs.values() if log.record.forked_from == cid and not log.record.deleted
            ]

    async def lineage(self, cid: UUID) -> builtins.list[Range[UUID]]:
        """Return the ranges of the log. See `EventStore.lineage`."""
        with self._open():
            self._require_living(cid)
            return self._list_ranges(cid)

    async def acquire(self, cid: UUID, owner: str, ttl: float) -> Lease:
        """Take the lease. See `EventStore.acquire`."""
        with self._open():
            log, time = self._require_living(cid), self._now()
            if log.lease and log.lease.owner != owner and log.lease.expires > time:
                raise faults.lease_conflict(cid, log.lease.owner, (log.lease.expires - time).total_seconds())
            # A new generation even for the same owner, so that the owner's earlier lease is fenced.
            log.record = replace(log.record, generation=log.record.generation + 1)
            expires = time + timedelta(seconds=ttl)
            log.lease = Lease(conversation=cid, owner=owner, generation=log.record.generation, expires=expires)
            return log.lease

    async def renew(self, lease: Lease, ttl: float) -> Lease:
        """Extend a lease. See `EventStore.renew`."""
        with self._open():
            log = self._require_living(lease.conversation)
            current = log.lease
            if not current or (current.owner, log.record.generation) != (lease.owner, lease.generation):
                raise faults.generation_conflict(lease.conversation, lease.generation, log.record.generation)
            log.lease = replace(lease, expires=self._now() + timedelta(seconds=ttl))
            return log.lease

    async def release(self, lease: Lease) -> None:
        """Release the lease. See `EventStore.release`."""
        with self._open():
            log = self._logs.get(lease.conversation)
            current = log and log.lease
            if log and current and (current.owner, current.generation) == (lease.owner, lease.generation):
                log.lease = None

    async def lease_owner(self, cid: UUID) -> str | None:
        """Return the owner of the lease. See `EventStore.lease_owner`."""
        with self._open():
            lease = self._require_living(cid).lease
            return lease.owner if lease is not None and lease.expires > self._now() else None

    async def delete(self, cid: UUID, mode: DeleteMode = "tombstone") -> None:
        """Delete a conversation. See `EventStore.delete`."""
        if mode == "erase":
            await self.erase(cid)
            return
        with self._open():
            self._require_living(cid)
            if mode == "cascade":
                for fork in self._list_descendants(cid):
                    self._mark_deleted(fork)
            elif mode != "tombstone":
                raise InvalidInput(f"unknown delete mode {mode!r}", hint="use tombstone, erase or cascade")
            self._mark_deleted(cid)

    async def erase(
        self, cid: UUID, *, others: Collection[UUID] = (), compact: bool = True, tenant: Tenant | None = None
    ) -> ErasureReceipt:
        """Erase a conversation. See `EventStore.erase`."""
        with self._open():
            log, receipt = self._logs.get(cid), self._receipts.get(cid)
            owner = self._find_owner(log, receipt)
            if (log is None and receipt is None) or (tenant is not None and tenant != owner):
                raise faults.no_remains(cid)
            if log is None:
                return cast("ErasureReceipt", receipt)
            logs = {cid: log} | self._list_others(cid, others, tenant)
            sizes = [size for member in logs.values() for size in self._erase(member)]
            if log.record.deleted and not sizes and receipt is not None:
                return receipt
            heads = [id for id, other in self._logs.items() if id not in logs and not other.record.deleted]
            forks = tuple(id for id in heads if logs.keys() & {owner for owner, *_ in self._list_ranges(id)})
            for id, member in logs.items():
                if not member.record.deleted:
                    self._mark_deleted(id)
            shared = sum(len(member.own) for id, member in logs.items() if id in self._logs)
            receipt = ErasureReceipt(
                id=cid,
                erased_at=self._clock.now(),
                events=len(sizes),
                bytes=sum(sizes),
                shared_events=shared,
                forks=tuple(sorted(forks)),
                conversations=tuple(id for id in logs if id != cid),
                is_compacted=True,
                owner=None if owner is None else owner.owner,
            )
            self._receipts |= dict.fromkeys(logs, receipt)
            return receipt

    def _list_others(self, cid: UUID, others: Collection[UUID], tenant: Tenant | None) -> dict[UUID, _Log]:
        logs: dict[UUID, _Log] = {}
        for id in others:
            log = None if id == cid else self._logs.get(id)
            if log is None or log.record.deleted:
                continue
            if tenant is not None and log.record.owner != tenant.owner:
                raise faults.no_remains(id)
            logs[id] = log
        return logs

    def _find_owner(self, log: _Log | None, receipt: ErasureReceipt | None) -> Tenant | None:
        """Return the owner of a conversation: by its record, by a living fork, or by the receipt of its erasure."""
        if log is not None:
            forks = [] if not log.record.deleted else self._list_descendants(log.record.id)
            if not log.record.deleted or forks:
                return Tenant(self._logs[forks[0]].record.owner if forks else log.record.owner)
        return None if receipt is None else Tenant(receipt.owner)

    async def scan(self, after: int = 0, limit: int = 500) -> builtins.list[ConversationRecord]:
        """Return conversations by number. See `EventStore.scan`."""
        with self._open():
            logs = sorted(self._logs.values(), key=lambda log: log.number)
            return [replace(log.record, number=log.number) for log in logs if log.number > after][:limit]

    async def peek(self, cid: UUID) -> ConversationRecord:
        """Return the record, also of a tombstone. See `EventStore.peek`."""
        with self._open():
            if cid not in self._logs:
                raise faults.no_conversation(cid)
            return self._logs[cid].record

    async def ancestry(self, cid: UUID) -> builtins.list[ConversationRecord]:
        """Return the ancestors of a conversation. See `EventStore.ancestry`."""
        with self._open():
            ancestors, pending = set[UUID](), [self._require_living(cid).record]
            while pending:
                record = pending.pop()
                new_ancestors = {record.parent, record.forked_from, record.root} - {None, cid} - ancestors
                ancestors |= cast("set[UUID]", new_ancestors)
                pending += [self._logs[id].record for id in cast("set[UUID]", new_ancestors)]
            return [log.record for log in self._logs.values() if log.record.id in ancestors]

    async def span(self, owner: UUID, lo: int, hi: int) -> builtins.list[StoredEvent]:
        """Return the events that a conversation itself wrote, also of a tombstone. See `EventStore.span`."""
        with self._open():
            return list(self._read_own(owner, lo, hi))

    async def restore(self, pieces: Sequence[ImportPiece]) -> None:
        """Insert the conversations and events of an import. See `EventStore.restore`."""
        with self._open():
            for piece in pieces:
                self._check_piece(piece, pieces)
            # Only after all pieces were checked, so that an import is stored completely or not at all.
            for piece in pieces:
                self._restore(piece)

    async def census(self) -> Census:
        """Count the events. See `EventStore.census`."""
        with self._open():
            return Census(len(self._positions))

    async def aclose(self) -> None:
        """Close the store, and end its subscriptions. See `EventStore.aclose`."""
        self._closed = True
        self._hub.close()

    def _open(self) -> threading.RLock:
        """Return the lock, which the caller holds during an operation; raise if the store is closed."""
        if self._closed:
            raise faults.store_closed(self.url)
        return self._lock

    def _now(self) -> datetime:
        return self._clock.now()

    def _require_living(self, cid: UUID) -> _Log:
        """Return the log of a conversation; raise `NotFound` if it is unknown or a tombstone."""
        log = self._logs.get(cid)
        if log is None or log.record.deleted:
            raise faults.no_conversation(cid)
        return log

    def _sort_logs(self) -> builtins.list[_Log]:
        """Return all logs, the last updated first."""
        return sorted(self._logs.values(), key=_sort_key, reverse=True)

    def _check_new(self, cid: UUID, batch: Draft) -> None:
        if any(row.id in self._positions for row in batch.rows):
            raise faults.event_exists(cid)

    def _insert(self, record: ConversationRecord, batch: Draft) -> ConversationRecord:
        self._numbers += 1
        log = self._logs[record.id] = _Log(record, self._numbers)
        self._extend(log, batch)
        return log.record

    def _extend(self, log: _Log, batch: Draft) -> None:
        """Append events to a log, and publish them to subscribers."""
        record, events = log.record, batch.make_stored(log.record.head)
        log.own += events
        self._positions |= {stored[1]: (record.id, stored.seq) for stored in events}
        usage = record.usage + sum_payloads((row.kind, row.data) for row in batch.rows)
        log.record = replace(record, head=record.head + len(events), usage=NO_USAGE if record.deleted else usage)
        if events:
            self._hub.publish(record.id, events)

    def _list_ranges(self, cid: UUID) -> builtins.list[Range[UUID]]:
        """Return the ranges (owner, start, end) that make up a log, oldest first."""
        ranges, hi, owner = builtins.list[Range[UUID]](), self._logs[cid].record.head, cid
        while owner is not None:
            record = self._logs[owner].record
            ranges.append((owner, record.base, hi))
            hi, owner = record.base, record.parent
        return [part for part in reversed(ranges) if part[1] < part[2]]

    def _read_range(self, cid: UUID, start: int, stop: int | None) -> builtins.list[StoredEvent]:
        head = self._require_living(cid).record.head
        parts = clip(self._list_ranges(cid), start, head if stop is None else stop)
        return [stored for owner, lo, hi in parts for stored in self._read_own(owner, lo, hi)]

    def _read_own(self, owner: UUID, lo: int, hi: int) -> Iterator[StoredEvent]:
        log = self._logs[owner]
        return iter(log.own[lo - log.record.base : hi - log.record.base])

    def _find_event_id(self, record: ConversationRecord, seq: int) -> UUID | None:
        """Return the id of the event at `seq` in a log; None if there is none."""
        parts = clip(self._list_ranges(record.id), seq, seq + 1)
        return next((stored.id for owner, lo, hi in parts for stored in self._read_own(owner, lo, hi)), None)

    def _locate(self, event_id: UUID, cid: UUID | None) -> tuple[UUID, int]:
        position = self._positions.get(event_id.bytes)
        if position is None:
            raise faults.no_event(event_id)
        if cid is not None:
            self._require_living(cid)
            owner, seq = position
            if find_owner(self._list_ranges(cid), seq) != owner:
                raise faults.no_event(event_id, cid)
        return position

    def _resolve_cut(self, source: ConversationRecord, at: Cut | None) -> int:
        """Return the number of events that a fork at `at` shares with its source."""
        if isinstance(at, UUID):
            _, seq = self._locate(at, source.id)
            cut = seq + 1
        else:
            cut = source.head if at is None else at
        if not isinstance(cut, int) or isinstance(cut, bool) or not 0 <= cut <= source.head:  # pyright: ignore
            raise faults.invalid_cut(at, source.head)
        return cut

    def _require_same_fork(
        self, existing: ConversationRecord, source: ConversationRecord, at: Cut | None, lineage: JsonObject
    ) -> ConversationRecord:
        """Return an existing fork with the requested id; raise if it is not the fork that the arguments describe."""
        is_same = not existing.deleted and existing.forked_from == source.id and existing.lineage == lineage
        if not is_same or (at is not None and self._resolve_cut(source, at) != existing.forked_at):
            raise faults.id_taken(existing.id)
        return existing

    def _check_piece(self, piece: ImportPiece, pieces: Sequence[ImportPiece]) -> None:
        """Raise if a piece does not continue the stored conversation, or if events of its parent are missing."""
        self._check_new(piece.record.id, piece.events)
        existing = self._logs.get(piece.record.id)
        if existing and existing.record.head != piece.first:
            raise faults.import_conflict(piece.record.id)
        parent = piece.record.parent
        inserted = {other.record.id: other.first + len(other.events.rows) for other in pieces}
        if parent and not existing and piece.first > inserted.get(parent, 0):
            parent_log = self._logs.get(parent)
            if parent_log is None or parent_log.record.head < piece.first:
                raise faults.import_conflict(piece.record.id)

    def _restore(self, piece: ImportPiece) -> None:
        """Store a piece: as a new conversation, in place of a tombstone, or at the end of an existing conversation."""
        record, existing = piece.record, self._logs.get(piece.record.id)
        if existing is None:
            fields = clean_changes(record, {}) | {"owner": None, "head": record.base, "generation": 0}
            self._insert(replace(record, **fields), Draft((), {}))
        elif existing.record.deleted:
            positions = {
                "base": existing.record.base,
                "head": existing.record.head,
                "generation": existing.record.generation,
                "usage": sum_payloads((stored.kind, stored.raw) for stored in existing.own),
            }
            existing.record = replace(record, **positions)
        else:
            changes = {key: getattr(record, key) for key in ("status", "title", "tags")}
            existing.record = replace(existing.record, updated=max(existing.record.updated, record.updated), **changes)
        self._extend(self._logs[record.id], piece.events)
        log = self._logs[record.id]
        if record.forked_at is not None:
            log.record = replace(log.record, fork_event=self._find_event_id(log.record, record.forked_at - 1))

    def _list_descendants(self, cid: UUID) -> builtins.list[UUID]:
        """Return the living forks of a conversation, their forks, and so on."""
        descendants, pending = builtins.list[UUID](), [cid]
        while pending:
            source = pending.pop()
            forks = [log.record for log in self._logs.values() if log.record.forked_from == source]
            pending += [fork.id for fork in forks]
            descendants += [fork.id for fork in forks if not fork.deleted]
        return descendants

    def _erase(self, log: _Log) -> list[int]:
        """Replace payloads by stubs, and return the size in bytes of each payload that had content."""
        sizes = [len(stored.raw) for stored in log.own if stub(stored.kind, stored.raw) != stored.raw]
        log.own = StoredEvent.of_rows((*stored[:4], stub(stored.kind, stored.raw)) for stored in log.own)
        return sizes

    def _mark_deleted(self, cid: UUID) -> None:
        log = self._require_living(cid)
        cleared: dict[str, Any] = {
            "owner": None,
            "title": None,
            "tags": {},
            "config": {},
            "lineage": {},
            "usage": NO_USAGE,
        }
        log.record = replace(log.record, deleted=True, status="deleting", **cleared)
        log.lease = None
        self._collect()
        # Last, because a subscriber whose subscription ends must find the conversation deleted.
        self._hub.publish(cid, END)

    def _collect(self) -> None:
        """Remove all events and records that no living conversation needs. O(store), to keep the model simple."""
        needed = {log.record.id: log.record.head for log in self._logs.values() if not log.record.deleted}
        # A copy of the keys, because the loop adds owners of inherited ranges.
        for cid in list(needed):
            for owner, _, hi in self._list_ranges(cid):
                needed[owner] = max(needed.get(owner, 0), hi)
        origins = {name for cid in needed for name in self._list_origins(cid)}
        for cid in [cid for cid in self._logs if cid not in needed and cid not in origins]:
            del self._logs[cid]
        for log in [log for log in self._logs.values() if log.record.deleted]:
            # Only tombstones, because a living conversation needs all its events.
            self._trim(log, needed.get(log.record.id))
        self._positions = {stored[1]: (cid, stored.seq) for cid, log in self._logs.items() for stored in log.own}

    def _trim(self, log: _Log, new_head: int | None) -> None:
        """Remove the events of a tombstone from `new_head`, which forks do not reach; None removes all events."""
        record = log.record
        head, parent = (record.base, None) if new_head is None else (new_head, record.parent)
        log.own = log.own[: head - record.base]
        log.record = record = replace(record, head=head, parent=parent)
        if record.forked_at is not None:
            log.record = replace(record, fork_event=self._find_event_id(record, record.forked_at - 1))

    def _list_origins(self, cid: UUID) -> Iterator[UUID]:
        """Yield the conversations from which a conversation was forked, directly or indirectly, nearest first."""
        source = self._logs[cid].record.forked_from
        while source is not None:
            yield source
            source = self._logs[source].record.forked_from


def _sort_key(log: _Log) -> tuple[int, int]:
    return microseconds(log.record.updated), log.number


def _matches_filter(record: ConversationRecord, criteria: ConversationFilter) -> bool:
    title = (record.title or "").lower()
    return (
        (criteria.include_deleted or not record.deleted)
        and (criteria.status is None or record.status == criteria.status)
        and (criteria.owner is None or record.owner == criteria.owner)
        and (criteria.text is None or criteria.text.lower() in title)
        and (criteria.agent is None or record.config.get("agent") == criteria.agent)
        and record.usage.cost_usd >= (criteria.min_cost_usd or 0)
        and (criteria.root is None or record.root == criteria.root)
        and criteria.tags.items() <= record.tags.items()
    )
