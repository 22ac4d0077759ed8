"""Whether what a store holds adds up: counts, lineage, digests; and what of a log can still be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from bough.errors import CorruptLog
from bough.events.integrity import Integrity, IntegrityFinding, report_damaged_row
from bough.events.record import ConversationRecord, StoredEvent

if TYPE_CHECKING:
    from bough.events.store import EventStore, StoreAdmin

_PAGE = 500


def _tell_nobody(_looked: int, _of: int) -> None:
    pass


class _Place(NamedTuple):
    """What of a conversation others are held against: small, since there is one of each conversation at a time."""

    base: int
    head: int


async def check(store: StoreAdmin, progress: Callable[[int, int], object] = _tell_nobody) -> Integrity:
    """Return what a look at every row of the store finds. O(store), in bounded memory but for 0.3 KB a conversation.

    It may run beside writers.

    Args:
        progress: Called now and then with how many conversations have been looked at, and how many there are.
    """
    census = await store.census()
    findings = [IntegrityFinding(f"the database says: {problem}") for problem in census.damage]
    findings += (report_damaged_row(cid) for cid in census.rows)
    places: dict[UUID, _Place] = {}
    furthest: dict[UUID, int] = {}
    async for record in every_record(store):
        places[record.id] = _Place(record.base, record.head)
        if record.parent is not None:
            furthest[record.parent] = max(record.base, furthest.get(record.parent, 0))
    counted = looked = 0
    async for record in every_record(store):
        places[record.id] = _Place(record.base, record.head)  # it may have grown since, and been forked there
        findings += [problem async for problem in _own_problems(store, record)]
        problems = _find_place_problems(record, places, furthest.get(record.id, 0), frozenset(census.rows))
        findings += (IntegrityFinding(problem, record.id) for problem in problems)
        counted += record.head - record.base
        looked += 1
        if looked % _PAGE == 0:
            progress(looked, len(places))
    if census.events != counted and not findings:
        later = (await store.census()).events
        # Events that others wrote since the first census belong to conversations that were counted after it.
        if (
            census.events is None
            or later is None
            or not min(census.events, later) <= counted <= max(census.events, later)
        ):
            findings.append(IntegrityFinding(f"{census.events} events are stored, conversations account for {counted}"))
    return Integrity(len(places), counted if census.events is None else census.events, tuple(findings))


async def every_record(store: EventStore) -> AsyncIterator[ConversationRecord]:
    """Iterate all records, tombstones too; damaged rows are passed over."""
    after = 0
    while records := await store.scan(after, _PAGE):
        for record in records:
            yield record
        after = records[-1].number


async def readable(store: StoreAdmin, owner: UUID, lo: int, hi: int) -> list[tuple[int, int]]:
    """Return the ranges of `lo <= seq < hi` that can be read and have their digest. O(events + damage * log events)."""
    if lo >= hi:
        return []
    try:
        for start in range(lo, hi, _PAGE):
            await store.span(owner, start, min(start + _PAGE, hi))
    except CorruptLog:
        if hi - lo == 1:
            return []
        middle = (lo + hi) // 2
        return merge_ranges([*await readable(store, owner, lo, middle), *await readable(store, owner, middle, hi)])
    return [(lo, hi)]


def merge_ranges(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges with neighbours that touch made one."""
    found: list[tuple[int, int]] = []
    for lo, hi in parts:
        if found and found[-1][1] == lo:
            found[-1] = (found[-1][0], hi)
        else:
            found.append((lo, hi))
    return found


async def salvage(store: StoreAdmin, owner: UUID, lo: int, hi: int) -> AsyncIterator[StoredEvent]:
    """Iterate those of an owner's events that can be read."""
    for start, stop in await readable(store, owner, lo, hi):
        for page in range(start, stop, _PAGE):
            for stored in await store.span(owner, page, min(page + _PAGE, stop)):
                yield stored


async def _own_problems(store: StoreAdmin, record: ConversationRecord) -> AsyncIterator[IntegrityFinding]:
    whole = [(record.base, record.head)] if record.base < record.head else []
    found = await readable(store, record.id, record.base, record.head)
    if found != whole:
        lost = record.head - record.base - sum(hi - lo for lo, hi in found)
        yield IntegrityFinding(f"{lost} events of {record.id} are missing or damaged", record.id, tuple(found))


def _find_place_problems(
    record: ConversationRecord, places: Mapping[UUID, _Place], furthest: int, damaged: Collection[UUID]
) -> Iterator[str]:
    """Yield what of a conversation does not fit the others.

    Args:
        record: The conversation.
        places: Where all of them begin and end.
        furthest: The last cut into it.
        damaged: Those whose rows are damaged, of which nothing is known.
    """
    if record.head < record.base:
        yield f"conversation {record.id} ends at {record.head}, before its own events begin at {record.base}"
    if record.deleted and not damaged and record.head != max(record.base, furthest):
        yield f"the tombstone {record.id} keeps events that no fork reaches"
    if record.parent not in damaged:
        yield from _find_parent_problems(record, places)


def _find_parent_problems(record: ConversationRecord, places: Mapping[UUID, _Place]) -> Iterator[str]:
    if record.parent is None:
        if record.base > 0 and not record.deleted:
            yield f"conversation {record.id} shares {record.base} events with nobody"
        return
    parent = places.get(record.parent)
    if parent is None or not parent.base < record.base <= parent.head:
        yield f"conversation {record.id} shares {record.base} events, which {record.parent} does not own"
