"""The tree of forks: a drawing and a list in the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bough.html.numbers import format_count, format_time, format_usd
from bough.server.bodies.conversations import ConversationPage
from bough.server.routes.conversations import list_records
from bough.web.head import read_head, read_word
from bough.web.screen import Visit, WebScreen
from bough.web.tree import PAGE_ROWS, Branch, draw, make_axis, order_rows, select_rows

if TYPE_CHECKING:
    from bough.server.bodies.info import ConversationRecord

_BEGINNING_EVENTS = 2
"""The events that a fork begins with: where it comes from, and its rules."""

_MAX_BRANCHES = 5000
_MAX_WITH_MESSAGES = 60
"""A page with more rows shows no messages: they are read branch by branch."""

MARKS = ("kept", "discarded")
"""Tags that say what became of a branch. A discarded one is drawn pale."""


async def _read(visit: Visit) -> dict[str, Any]:
    id, query = visit.read_id(), visit.query
    current = await visit.access.store.get(id)
    records, live = await _list_tree(visit, current.root)
    if "own" in query:
        records = [record for record in records if record.id == id or _count_own(record) > _BEGINNING_EVENTS]
    rows = order_rows([_make_branch(record) for record in records])
    place = next(number for number, row in enumerate(rows) if row.branch.id == id)
    start = _read_start(query.get("page_id"), place // PAGE_ROWS * PAGE_ROWS)
    page_rows = select_rows(rows, start)
    points = query.get("points") or ("messages" if len(page_rows) <= _MAX_WITH_MESSAGES else "forks")
    by_id = {record.id: record for record in records}
    if points == "messages" and len(page_rows) <= _MAX_WITH_MESSAGES:
        branches = [_make_branch(by_id[row.branch.id], await _find_messages(visit, row.branch)) for row in page_rows]
        page_rows = select_rows(order_rows(branches), 0)
    faded = {record.id for record in records if "discarded" in record.tags}
    now = visit.access.services.clock.now()
    return {
        "title": f"Tree of {current.title or 'Untitled'}",
        "head": await read_head(visit, current),
        "graph": draw(page_rows, id, faded),
        "axis": [format_count(events) for events in make_axis(page_rows).marks],
        "rows": [_describe_row(by_id[row.branch.id], by_id, id, live, now) for row in page_rows],
        "points": points,
        "hides_empty": "own" in query,
        "total": len(rows),
        "cost": format_usd(cost) if (cost := sum(record.usage.cost_usd or 0 for record in records)) else "",
        "newer": max(start - PAGE_ROWS, 0) if start else None,
        "older": start + PAGE_ROWS if start + PAGE_ROWS < len(rows) else None,
        "first": start + 1,
        "last": min(start + PAGE_ROWS, len(rows)),
    }


async def _list_tree(visit: Visit, root: UUID) -> tuple[list[ConversationRecord], set[UUID]]:
    """Return the conversations of a tree, and those with a pending or running run. A page of 100 is two statements."""
    records: list[ConversationRecord] = []
    live: set[UUID] = set()
    page_id: str | None = None
    while len(records) < _MAX_BRANCHES:
        query = ConversationPage(root=root, page_id=page_id, limit=100, sort_order="CREATED_AT")
        page, running = await list_records(query, visit.access)
        records += page.items
        live |= running
        page_id = page.next_cursor
        if page_id is None:
            break
    return records, live


async def _find_messages(visit: Visit, branch: Branch) -> tuple[int, ...]:
    """Return the seqs of a branch's own messages of people. Reads them."""
    messages = visit.access.store.read(branch.id, branch.cut, kinds=("UserMessage",))
    return tuple([stored.seq async for stored in messages])


def _make_branch(record: ConversationRecord, points: tuple[int, ...] = ()) -> Branch:
    return Branch(id=record.id, parent=record.forked_from, cut=record.forked_at or 0, head=record.head, points=points)


def _count_own(record: ConversationRecord) -> int:
    return record.head - (record.forked_at or 0)


def _read_start(page_id: str | None, default: int) -> int:
    if page_id is None or not page_id.isdecimal() or len(page_id) > 6:
        return default
    return int(page_id)


def _describe_row(
    record: ConversationRecord,
    by_id: Mapping[UUID, ConversationRecord],
    current: UUID,
    live: set[UUID],
    now: datetime,
) -> dict[str, Any]:
    source = None if record.forked_from is None else by_id.get(record.forked_from)
    # A fork has the tags of its source: told again on each branch, they would say nothing.
    inherited = {} if source is None else source.tags
    tags = {name: value for name, value in record.tags.items() if inherited.get(name) != value}
    is_waiting = record.status == "waiting_for_confirmation"
    return {
        "id": str(record.id),
        "title": record.title or "Untitled",
        "word": read_word(record, live),
        "cut": record.forked_at,
        "is_current": record.id == current,
        "is_waiting": is_waiting,
        "is_discarded": "discarded" in record.tags,
        "marks": [mark for mark in MARKS if mark in tags],
        "labels": [value or name for name, value in tags.items() if name not in MARKS][:3],
        "own": _count_own(record),
        "cost": format_usd(record.usage.cost_usd or None),
        "updated": format_time(record.updated, now),
        "moment": record.updated.astimezone(UTC).isoformat(),
    }


SCREEN = WebScreen(
    path="/c/{id}/tree", template="tree.html", data=_read, modules=("tree.js", "fork.js"), place="conversations"
)
