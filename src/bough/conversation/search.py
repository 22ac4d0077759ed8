"""Searching the conversations of a store or of a server; see `AsyncConversation.search`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import NoneType
from typing import Any
from uuid import UUID

from bough.events import open_store
from bough.events.record import MessageQuery, OnIndexed, SearchHit, SearchPage
from bough.events.store import EventStore
from bough.settings import Settings
from bough.types import JsonObject, require_type


def make_query(
    text: str,
    *,
    tags: Mapping[str, str] | None,
    since: datetime | None,
    project: str | None,
    limit: int,
    cursor: str | None,
) -> MessageQuery:
    """Return a query, with the types of its arguments checked.

    Raises:
        InvalidInput: An argument has another type.
    """
    require_type(text, str, "a query", "for example 'invoice \"due date\" -draft'")
    require_type(tags, (Mapping, NoneType), "tags", 'for example {"team": "sales"}')
    require_type(since, (datetime, NoneType), "since", "for example datetime.now(UTC) - timedelta(days=7)")
    require_type(project, (str, NoneType), "a project", "give its name")
    require_type(limit, int, "a limit", "give a number from 1 to 100")
    require_type(cursor, (str, NoneType), "a cursor", "give the next_cursor of a page")
    return MessageQuery(text=text, tags=dict(tags or {}), since=since, project=project, limit=limit, cursor=cursor)


async def search_store(
    query: MessageQuery,
    store: EventStore | str | None,
    settings: Settings | None,
    *,
    on_indexed: OnIndexed | None = None,
) -> SearchPage:
    """Return messages of a store. A store given by its URL is opened and closed again. See `EventStore.search`."""
    if store is not None and not isinstance(store, str):
        return await store.search(query, on_indexed=on_indexed)
    opened = await open_store((settings or Settings.load()).store if store is None else store)
    try:
        return await opened.search(query, on_indexed=on_indexed)
    finally:
        await opened.aclose()


async def search_server(query: MessageQuery, server: str, api_key: str | None) -> SearchPage:
    """Return messages of a server's conversations.

    Raises:
        NotSupported: The query has a project.
    """
    from bough.conversation.remote.bodies import require_absent
    from bough.conversation.remote.transport import ServerTransport

    require_absent(project=query.project)
    parameters: dict[str, Any] = {"q": query.text, "limit": query.limit}
    parameters |= {"tag": [f"{name}:{value}" for name, value in query.tags.items()]} if query.tags else {}
    parameters |= {} if query.since is None else {"since": query.since.isoformat()}
    parameters |= {} if query.cursor is None else {"page_id": query.cursor}
    transport = ServerTransport(server, api_key)
    try:
        page = await transport.send("GET", "/api/conversations/search", query=parameters)
    finally:
        await transport.aclose()
    return SearchPage(items=[_read_hit(item) for item in page["items"]], next_cursor=page["next_page_id"])


def _read_hit(item: JsonObject) -> SearchHit:
    return SearchHit(
        conversation=UUID(item["conversation"]),
        title=item["title"],
        seq=item["seq"],
        who=item["who"],
        when=datetime.fromisoformat(item["when"]),
        snippet=item["snippet"],
        matches=tuple((start, end) for start, end in item["matches"]),
    )
