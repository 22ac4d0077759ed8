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
    own_ranges: dict[UUID, _OwnRange] = {}
    last_cuts: dict[UUID, int] = {}
    async for record in every_record(store):
        own_ranges[record.id] = _OwnRange(record.base, record.head)
        if record.parent is not None:
            last_cuts[record.parent] = max(record.base, last_cuts.get(record.parent, 0))
    counted = checked = 0
    async for record in every_record(store):
        # Again: the conversation may have grown since the first pass, and been forked at its new end.
        own_ranges[record.id] = _OwnRange(record.base, record.head)
        findings += [problem async for problem in _find_event_problems(store, record)]
        problems = _find_range_problems(record, own_ranges, last_cuts.get(record.id, 0), frozenset(census.rows))
        findings += (IntegrityFinding(problem, record.id) for problem in problems)
        counted += record.head - record.base
        checked += 1
        if checked % _PAGE == 0:
            progress(checked, len(own_ranges))
    if census.events != counted and not findings:
        second_count = (await store.census()).events
        # Other writers append between census and count, so only a count outside the two censuses is an error.
        if (
            census.events is None
            or second_count is None
            or not min(census.events, second_count) <= counted <= max(census.events, second_count)
        ):
            findings.append(IntegrityFinding(f"{census.events} events are stored, conversations account for {counted}"))
    return Integrity(len(own_ranges), counted if census.events is None else census.events, tuple(findings))


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
    """Merge each range with the previous one if it begins where the previous one ends."""
    merged: list[tuple[int, int]] = []
    for lo, hi in parts:
        if merged and merged[-1][1] == lo:
            merged[-1] = (merged[-1][0], hi)
        else:
            merged.append((lo, hi))
    return merged


async def salvage(store: StoreAdmin, owner: UUID, lo: int, hi: int) -> AsyncIterator[StoredEvent]:
    """Iterate over the readable own events of a conversation with `lo <= seq < hi`."""
    for start, stop in await readable(store, owner, lo, hi):
        for page in range(start, stop, _PAGE):
            for stored in await store.span(owner, page, min(page + _PAGE, stop)):
                yield stored


async def _find_event_problems(store: StoreAdmin, record: ConversationRecord) -> AsyncIterator[IntegrityFinding]:
    """Yield a finding if a conversation's own events are missing or damaged."""
    expected_ranges = [(record.base, record.head)] if record.base < record.head else []
    readable_ranges = await readable(store, record.id, record.base, record.head)
    if readable_ranges != expected_ranges:
        missing_count = record.head - record.base - sum(hi - lo for lo, hi in readable_ranges)
        problem = f"{missing_count} events of {record.id} are missing or damaged"
        yield IntegrityFinding(problem, record.id, tuple(readable_ranges))


def _find_range_problems(
    record: ConversationRecord, own_ranges: Mapping[UUID, _OwnRange], last_cut: int, damaged: Collection[UUID]
) -> Iterator[str]:
    """Yield inconsistencies between a conversation's row and the rows of others.

    Args:
        record: The conversation.
        own_ranges: The ranges of the own events of all conversations.
        last_cut: The highest cut of a fork in its own events; 0 without forks.
        damaged: Conversations with damaged rows. A conversation is not compared with them.
    """
    if record.head < record.base:
        yield f"conversation {record.id} ends at {record.head}, before its own events begin at {record.base}"
    if record.deleted and not damaged and record.head != max(record.base, last_cut):
        yield f"the tombstone {record.id} keeps events that no fork reaches"
    if record.parent not in damaged:
        yield from _find_parent_problems(record, own_ranges)


def _find_parent_problems(record: ConversationRecord, own_ranges: Mapping[UUID, _OwnRange]) -> Iterator[str]:
    if record.parent is None:
        if record.base > 0 and not record.deleted:
            yield f"conversation {record.id} shares {record.base} events but has no parent"
        return
    parent = own_ranges.get(record.parent)
    if parent is None or not parent.base < record.base <= parent.head:
        yield f"conversation {record.id} shares {record.base} events, which {record.parent} does not own"
