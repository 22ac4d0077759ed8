"""The list of conversations: those that wait for the reader, those that run, and the others, the latest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

from bough.errors import InvalidInput, NotFound
from bough.server.bodies.conversations import ConversationPage, ConversationQuery
from bough.server.routes.approvals import ApprovalQuery, list_waiting
from bough.server.routes.conversations import count_conversations, list_records
from bough.types import JsonObject
from bough.web.screen import Visit, WebScreen, parse_body

PAGE_ROWS: Final = 50
WORDS: Final[Mapping[str, str]] = {
    "waiting_for_confirmation": "waiting", "running": "running", "finished": "done", "error": "failed",
    "stuck": "stuck", "paused": "paused", "idle": "idle", "deleting": "deleting",
}  # fmt: skip
"""What a person reads for the status of a conversation."""

_STATUSES: Final = {word: status for status, word in WORDS.items() if word != "deleting"}
_SINCE: Final[Mapping[str, tuple[str, timedelta]]] = {
    "day": ("Last 24 hours", timedelta(days=1)),
    "week": ("Last 7 days", timedelta(days=7)),
    "month": ("Last 30 days", timedelta(days=30)),
}
_ORDERS: Final[Mapping[str, tuple[str, str]]] = {
    "": ("Waiting first", "UPDATED_AT_DESC"),
    "updated": ("Last updated", "UPDATED_AT_DESC"),
    "created": ("Newest", "CREATED_AT_DESC"),
    "cost": ("Cost", "COST_DESC"),
}
_MAX_TAGS: Final = 20
Records: TypeAlias = Any
"""Rows of conversations, as the route returns them; the page reads their fields and passes on plain data."""


async def _read(visit: Visit) -> dict[str, Any]:
    fields, filters = _read_filters(visit)
    is_grouped = not visit.query.get("sort") and "status" not in fields
    page_id = visit.query.get("page_id") or None
    page, live = await _list(visit, fields, page_id=page_id)
    groups: list[tuple[str, Records, frozenset[UUID]]] = [("", page.items, live)]
    if is_grouped:
        waiting, _ = await _list(visit, fields | {"status": "waiting_for_confirmation"})
        running, _ = await _list(visit, fields | {"status": "running"})
        # What the upper groups show is not repeated below, on later pages neither.
        first_ids = {record.id for record in (*waiting.items, *running.items)}
        pending = [record for record in page.items if record.id in live and record.id not in first_ids]
        first_ids |= {record.id for record in pending}
        earlier = [record for record in page.items if record.id not in first_ids]
        groups = [("Earlier", earlier, live)]
        if page_id is None:
            active = [*pending, *running.items]
            groups = [("Waiting for you", waiting.items, frozenset()), ("Running", active, live), *groups]
    total = await count_conversations(parse_body(ConversationQuery, fields), visit.access)
    waiting_calls = await _read_waiting_calls(visit, [record for _, records, _ in groups for record in records])
    sections: list[dict[str, Any]] = [
        {"name": name, "rows": [await _describe(visit, record, live, waiting_calls) for record in records]}
        for name, records, live in groups
        if records
    ]
    if len(sections) == 1 and sections[0]["name"] == "Earlier" and page_id is None:
        sections[0]["name"] = ""  # a heading for the only group tells nothing
    tags = {tag for section in sections for row in section["rows"] for tag in row["tag_pairs"]}
    return {
        "title": "Conversations",
        "sections": sections,
        "total": total,
        "filters": filters,
        "menus": _make_menus(visit, sorted(tags)[:_MAX_TAGS]),
        "order": _ORDERS.get(visit.query.get("sort", ""), _ORDERS[""])[0],
        "clear": "/",
        "older": None if page.next_cursor is None else visit.change_query(page_id=page.next_cursor),
        "newest": visit.change_query() if page_id is not None else None,
    }


async def _list(visit: Visit, fields: JsonObject, *, page_id: str | None = None) -> tuple[Any, frozenset[UUID]]:
    """Return a page of conversations, and the ids of those that run."""
    order = _ORDERS.get(visit.query.get("sort", ""), _ORDERS[""])[1]
    query = parse_body(ConversationPage, {**fields, "limit": PAGE_ROWS, "sort_order": order, "page_id": page_id})
    return await list_records(query, visit.access)


def _read_filters(visit: Visit) -> tuple[JsonObject, list[str]]:
    """Return the fields of the API's query for the filters of the address, and the filters as a person reads them.

    Raises:
        InvalidInput: A filter has an unknown value.
    """
    query = visit.query
    fields: JsonObject = {}
    filters: list[str] = []
    for name in ("text", "agent"):
        if value := query.get(name, "").strip():
            fields[name] = value
            filters.append(value if name == "text" else f"agent {value}")
    if tags := [tag for tag in query.getlist("tag") if tag]:
        fields["tag"] = tags
        filters += [f"tag {tag}" for tag in tags]
    if status := query.get("status"):
        if status not in _STATUSES:
            raise InvalidInput("status: not a status", hint=f"one of: {', '.join(_STATUSES)}")
        fields["status"] = _STATUSES[status]
        filters.append(f"status {status}")
    if since := query.get("since"):
        if since not in _SINCE:
            raise InvalidInput("since: not a period", hint=f"one of: {', '.join(_SINCE)}")
        label, period = _SINCE[since]
        fields["updated_after"] = visit.access.services.clock.now() - period
        filters.append(label.lower())
    return fields, filters


def _make_menus(visit: Visit, tags: Collection[str]) -> list[dict[str, Any]]:
    """Return the menus of filters: their name, the current choice, and the links of the choices."""

    def make(name: str, label: str, choices: list[tuple[str, str]]) -> dict[str, Any]:
        current = visit.query.get(name, "")
        links = [
            {"text": text, "href": visit.change_query(**{name: value}), "is_current": value == current}
            for value, text in choices
        ]
        if current:
            links.append({"text": "Any", "href": visit.change_query(**{name: None}), "is_current": False})
        chosen = next((text for value, text in choices if value == current), current)
        return {"name": label, "chosen": chosen if current else "", "links": links}

    agents = [(name, name) for name in visit.access.services.agents.names()]
    menus = [
        make("status", "Status", [(word, word.capitalize()) for word in _STATUSES]),
        make("tag", "Tag", [(tag, tag.removesuffix(":")) for tag in tags]),
        make("agent", "Agent", agents),
        make("since", "Since", [(value, label) for value, (label, _) in _SINCE.items()]),
    ]
    sort = make("sort", "Order", [(value, label) for value, (label, _) in _ORDERS.items() if value])
    if visit.query.get("sort"):
        sort["links"][-1]["text"] = _ORDERS[""][0]
    return [menu for menu in menus if menu["links"]] + [sort]


async def _read_waiting_calls(visit: Visit, records: Records) -> Mapping[UUID, str]:
    """Return what each waiting conversation waits for."""
    ids = {record.id for record in records if record.status == "waiting_for_confirmation"}
    if not ids:
        return {}
    calls = defaultdict[UUID, list[Any]](list)
    for call in (await list_waiting(ApprovalQuery(limit=PAGE_ROWS), visit.access)).items:
        calls[call.conversation].append(call)
    return {id: _describe_calls(calls[id]) for id in ids if calls[id]}


def _describe_calls(calls: list[Any]) -> str:
    questions = [call.question for call in calls if call.question]
    if questions:
        return f"asks: {questions[0]}"
    return "1 call requires approval" if len(calls) == 1 else f"{len(calls)} calls require approval"


async def _describe(
    visit: Visit, record: Any, live: Collection[UUID], waiting_calls: Mapping[UUID, str]
) -> dict[str, Any]:
    """Return the row of a conversation as plain data."""
    is_waiting = record.status == "waiting_for_confirmation"
    word = "running" if record.id in live and not is_waiting else WORDS[record.status]
    source = None
    if record.forked_from is not None:
        source = await _read_title(visit, record.forked_from)
    return {
        "id": str(record.id),
        "title": record.title or "Untitled",
        "status": word,
        "note": waiting_calls.get(record.id, ""),
        "source": source,
        "agent": str(record.config.get("agent") or ""),
        "tags": [value or name for name, value in record.tags.items()],
        "tag_pairs": [f"{name}:{value}" for name, value in record.tags.items()],
        "head": record.head,
        "cost": record.usage.cost_usd if record.usage.cost_usd else None,
        "updated": record.updated,
        "now": visit.access.services.clock.now(),
    }


async def _read_title(visit: Visit, id: UUID) -> str:
    """Return the title of the conversation that a fork came from."""
    try:
        return (await visit.access.store.get(id)).title or "untitled"
    except NotFound:
        return "a deleted conversation"


SCREEN = WebScreen(path="/", template="conversations.html", data=_read, modules=("list.js",), place="conversations")
