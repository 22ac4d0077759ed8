"""Group appends into statements, and explain refused ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from bough.errors import BoughError
from bough.events.draft import Append, Draft, dump
from bough.events.stores import faults
from bough.events.usage import NO_USAGE


class NumberedAppend(NamedTuple):
    """An append and its index in the batch."""

    number: int
    append: Append


Group = list[NumberedAppend]
"""Appends to one conversation whose conditions are checked together."""


def group_appends(requests: Sequence[Append]) -> list[list[Group]]:
    """Distribute appends over as few statements as their order and conditions allow."""
    statements: list[dict[UUID, Group]] = []
    last_statement: dict[UUID, int] = {}
    for number, append in enumerate(requests):
        statement_index = last_statement.get(append.cid)
        # Appends of a conversation keep their order: none may be in an earlier statement than the append before it.
        if statement_index is not None and _can_join(statements[statement_index][append.cid], append):
            statements[statement_index][append.cid].append(NumberedAppend(number, append))
            continue
        statement_index = 0 if statement_index is None else statement_index + 1
        if statement_index == len(statements):
            statements.append({})
        statements[statement_index][append.cid] = [NumberedAppend(number, append)]
        last_statement[append.cid] = statement_index
    return [list(groups.values()) for groups in statements]


def _can_join(group: Group, append: Append) -> bool:
    """Whether an append needs no other check than the group: the same generation, and no expected head."""
    first = group[0].append
    return append.expected_head is None and first.expected_head is None and append.generation == first.generation


def join_drafts(group: Group) -> Draft:
    """Merge the events of a group into one draft."""
    rows = tuple(row for _, append in group for row in append.draft.rows)
    changes: dict[str, Any] = {}
    for _, append in group:
        changes |= append.draft.changes
    usage = sum((append.draft.usage for _, append in group), NO_USAGE)
    return Draft(rows, changes, usage=usage)


def make_refusal(append: Append, head: int | None, generation: int | None, intact: bool | None) -> BoughError:
    """Return the error of a refused append.

    Args:
        head: The stored head; None if there is no conversation.
        generation: The stored generation.
        intact: Whether the row of the conversation matches its checksum.
    """
    if head is None or generation is None:
        return faults.no_conversation(append.cid)
    if not intact:
        return faults.row_damage(append.cid)
    if append.generation is not None and append.generation != generation:
        return faults.generation_conflict(append.cid, append.generation, generation)
    return faults.head_conflict(append.cid, append.expected_head or 0, head)


def append_parameters(groups: Sequence[Group], written_at: int, channel: str) -> dict[str, Any]:
    """Return the parameters of the statement `append` for some groups."""
    joined = [join_drafts(group) for group in groups]
    events = [columns(draft) | {"numbers": [n] * len(draft.rows)} for n, draft in enumerate(joined, 1)]
    names = ("numbers", "places", "event_ids", "kinds", "times", "payloads", "digests")
    changes = [draft.changes for draft in joined]
    return {
        "ids": [group[0].append.cid for group in groups],
        "generations": [group[0].append.generation for group in groups],
        "expected": [group[0].append.expected_head for group in groups],
        "counts": [len(draft.rows) for draft in joined],
        "statuses": [change.get("status") for change in changes],
        "set_titles": ["title" in change for change in changes],
        "titles": [change.get("title") for change in changes],
        "set_tags": ["tags" in change for change in changes],
        "tags": [dump(change.get("tags", {})) for change in changes],
        "requests": [draft.usage.requests for draft in joined],
        "inputs": [draft.usage.input_tokens for draft in joined],
        "outputs": [draft.usage.output_tokens for draft in joined],
        "costs": [draft.usage.cost_nanos for draft in joined],
        "now": written_at,
        "channel": channel,
        **{name: [item for part in events for item in part[name]] for name in names},
    }


def columns(draft: Draft, first: int = 0) -> dict[str, list[Any]]:
    """Return a draft's events as one list per column, as statements take them. `places` count from `first`."""
    rows = draft.rows
    return {
        "places": list(range(first, first + len(rows))),
        "event_ids": [UUID(bytes=row.id) for row in rows],
        "kinds": [row.kind for row in rows],
        "times": [row.ts for row in rows],
        "payloads": [row.data for row in rows],
        "digests": [row.checksum for row in rows],
    }
