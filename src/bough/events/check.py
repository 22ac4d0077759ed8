"""Check a store (counts, lineage, checksums), and find the readable parts of a damaged log."""

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


def _ignore_progress(_checked: int, _total: int) -> None:
    pass


class _OwnRange(NamedTuple):
    """The range of a conversation's own events. Small, since a check keeps one for every conversation in memory."""

    base: int
    head: int


async def check(store: StoreAdmin, progress: Callable[[int, int], object] = _ignore_progress) -> Integrity:
    """Check every row of the store. O(store), in bounded memory except for 0.3 KB per conversation.

    Other processes may write meanwhile.

    Args:
        progress: Called every 500 conversations with the number of checked ones and their total.
    """
    census = await store.census()
    findings = [IntegrityFinding(f"the database says: {problem}") for problem in census.damage]
    findings += (report_damaged_row(cid) for cid in census.rows)
    places: dict[UUID, _OwnRange] = {}
    furthest: dict[UUID, int] = {}
    async for record in every_record(store):
        places[record.id] = _OwnRange(record.base, record.head)
        if record.parent is not None:
            furthest[record.parent] = max(record.base, furthest.get(record.parent, 0))
    counted = checked = 0
    async for record in every_record(store):
        places[record.id] = _OwnRange(
            record.base, record.head
        )  # it may have grown since the first pass, and been forked at its new end
        findings += [problem async for problem in _own_problems(store, record)]
        problems = _find_place_problems(record, places, furthest.get(record.id, 0), frozenset(census.rows))
        findings += (IntegrityFinding(problem, record.id) for problem in problems)
        counted += record.head - record.base
        checked += 1
        if checked % _PAGE == 0:
            progress(checked, len(places))
    if census.events != counted and not findings:
        later = (await store.census()).events
        # Other writers append between census and count, so only a count outside the two censuses is an error.
        if (
            census.events is None
            or later is None
            or not min(census.events, later) <= counted <= max(census.events, later)
        ):
            findings.append(IntegrityFinding(f"{census.events} events are stored, conversations account for {counted}"))
    return Integrity(len(places), counted if census.events is None else census.events, tuple(findings))


async def every_record(store: EventStore) -> AsyncIterator[ConversationRecord]:
    """Iterate over all records, including tombstones, except damaged rows."""
    last_number = 0
    while records := await store.scan(last_number, _PAGE):
        for record in records:
            yield record
        last_number = records[-1].number


async def readable(store: StoreAdmin, owner: UUID, lo: int, hi: int) -> list[tuple[int, int]]:
    """Return the ranges of `lo <= seq < hi` whose events are readable and intact. O(events + damage * log events)."""
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
    """Merge adjacent ranges that touch."""
    merged: list[tuple[int, int]] = []
    for lo, hi in parts:
        if merged and merged[-1][1] == lo:
            merged[-1] = (merged[-1][0], hi)
        else:
            merged.append((lo, hi))
    return merged


async def salvage(store: StoreAdmin, owner: UUID, lo: int, hi: int) -> AsyncIterator[StoredEvent]:
    """Iterate over the readable events of an owner."""
    for start, stop in await readable(store, owner, lo, hi):
        for page in range(start, stop, _PAGE):
            for stored in await store.span(owner, page, min(page + _PAGE, stop)):
                yield stored


async def _own_problems(store: StoreAdmin, record: ConversationRecord) -> AsyncIterator[IntegrityFinding]:
    whole = [(record.base, record.head)] if record.base < record.head else []
    intact = await readable(store, record.id, record.base, record.head)
    if intact != whole:
        lost = record.head - record.base - sum(hi - lo for lo, hi in intact)
        yield IntegrityFinding(f"{lost} events of {record.id} are missing or damaged", record.id, tuple(intact))


def _find_place_problems(
    record: ConversationRecord, places: Mapping[UUID, _OwnRange], furthest: int, damaged: Collection[UUID]
) -> Iterator[str]:
    """Yield inconsistencies between a conversation and the others.

    Args:
        record: The conversation.
        places: The ranges of all conversations.
        furthest: The last cut of a fork in it.
        damaged: Conversations with damaged rows, which are not checked against.
    """
    if record.head < record.base:
        yield f"conversation {record.id} ends at {record.head}, before its own events begin at {record.base}"
    if record.deleted and not damaged and record.head != max(record.base, furthest):
        yield f"the tombstone {record.id} keeps events that no fork reaches"
    if record.parent not in damaged:
        yield from _find_parent_problems(record, places)


def _find_parent_problems(record: ConversationRecord, places: Mapping[UUID, _OwnRange]) -> Iterator[str]:
    if record.parent is None:
        if record.base > 0 and not record.deleted:
            yield f"conversation {record.id} shares {record.base} events with nobody"
        return
    parent = places.get(record.parent)
    if parent is None or not parent.base < record.base <= parent.head:
        yield f"conversation {record.id} shares {record.base} events, which {record.parent} does not own"
