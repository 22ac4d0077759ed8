"""Group appends into statements, and explain refused ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from bough.errors import BoughError
from bough.events.draft import Append, Draft, dump
from bough.events.stores import faults

Group = list[tuple[int, Append]]
"""Appends to one conversation whose conditions are checked together, with their numbers in the batch."""


def group_appends(requests: Sequence[Append]) -> list[list[Group]]:
    """Distribute appends over as few statements as their order and conditions allow."""
    statements: list[dict[UUID, Group]] = []
    last: dict[UUID, int] = {}
    for number, append in enumerate(requests):
        at = last.get(append.cid)
        # A conversation's appends keep their order: none may overtake an earlier one that is in a later statement.
        if at is not None and _joins(statements[at][append.cid], append):
            statements[at][append.cid].append((number, append))
            continue
        at = 0 if at is None else at + 1
        if at == len(statements):
            statements.append({})
        statements[at][append.cid] = [(number, append)]
        last[append.cid] = at
    return [list(groups.values()) for groups in statements]


def _joins(group: Group, append: Append) -> bool:
    first = group[0][1]
    return append.expected_head is None and first.expected_head is None and append.generation == first.generation


def join_drafts(group: Group) -> Draft:
    """Merge the events of a group into one draft."""
    rows = tuple(row for _, append in group for row in append.draft.rows)
    changes: dict[str, Any] = {}
    for _, append in group:
        changes |= append.draft.changes
    return Draft(rows, changes)


def make_refusal(append: Append, head: int | None, current: int | None, intact: bool | None) -> BoughError:
    """Return the error of a refused append, from the stored head and generation."""
    if head is None or current is None:
        return faults.no_conversation(append.cid)
    if not intact:
        return faults.damaged_row(append.cid)
    if append.generation is not None and append.generation != current:
        return faults.outdated_generation(append.cid, append.generation, current)
    return faults.unexpected_head(append.cid, append.expected_head or 0, head)


def append_parameters(groups: Sequence[Group], written_at: int, channel: str) -> dict[str, Any]:
    """Return the parameters of the statement `append` for some groups."""
    joined = [join_drafts(group) for group in groups]
    events = [columns(draft) | {"numbers": [n] * len(draft.rows)} for n, draft in enumerate(joined, 1)]
    names = ("numbers", "places", "event_ids", "kinds", "times", "payloads", "digests")
    changes = [draft.changes for draft in joined]
    return {
        "ids": [group[0][1].cid for group in groups],
        "generations": [group[0][1].generation for group in groups],
        "expected": [group[0][1].expected_head for group in groups],
        "counts": [len(draft.rows) for draft in joined],
        "statuses": [change.get("status") for change in changes],
        "set_titles": ["title" in change for change in changes],
        "titles": [change.get("title") for change in changes],
        "set_tags": ["tags" in change for change in changes],
        "tags": [dump(change.get("tags", {})) for change in changes],
        "now": written_at,
        "channel": channel,
        **{name: [item for part in events for item in part[name]] for name in names},
    }


def columns(draft: Draft, first: int = 0) -> dict[str, list[Any]]:
    """Return a draft's events as one list per column, numbered from `first`."""
    rows = draft.rows
    return {
        "places": list(range(first, first + len(rows))),
        "event_ids": [UUID(bytes=row.id) for row in rows],
        "kinds": [row.kind for row in rows],
        "times": [row.ts for row in rows],
        "payloads": [row.data for row in rows],
        "digests": [row.digest for row in rows],
    }
