"""Searches the conversations of a store; see `AsyncConversation.search`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import NoneType

from bough.events.open import use_store
from bough.events.record import MessageQuery, OnIndexed, SearchPage
from bough.events.store import EventStore
from bough.settings import Settings
from bough.types import require_type


def make_query(
    text: str,
    *,
    tags: Mapping[str, str] | None,
    since: datetime | None,
    project: str | None,
    limit: int,
    cursor: str | None,
) -> MessageQuery:
    """Check the types of the arguments, and return the query.

    Raises:
        InvalidInput: An argument has a wrong type.
    """
    require_type(text, str, "a query", "for example 'invoice \"due date\" -draft'")
    require_type(tags, (Mapping, NoneType), "tags", 'for example {"team": "sales"}')
    require_type(since, (datetime, NoneType), "since", "for example datetime.now(UTC) - timedelta(days=7)")
    require_type(project, (str, NoneType), "a project", "give its name")
    require_type(limit, int, "a limit", "give a number from 1 to 100")
    require_type(cursor, (str, NoneType), "a cursor", "give the next_cursor of a page")
    for key, value in (tags or {}).items():
        require_type(key, str, "the name of a tag", 'for example {"team": "sales"}')
        require_type(value, str, f"the tag {key!r}", 'for example {"team": "sales"}')
    return MessageQuery(text=text, tags=dict(tags or {}), since=since, project=project, limit=limit, cursor=cursor)


async def search_store(
    query: MessageQuery,
    store: EventStore | str | None,
    settings: Settings | None,
    *,
    on_indexed: OnIndexed | None = None,
) -> SearchPage:
    """Return the messages of a store that match. If `store` is a URL, opens and closes it. See `EventStore.search`."""
    if store is None:
        settings = settings or Settings.load()
        store = settings.store
    keep_copy = settings is None or settings.copy_before_upgrade
    async with use_store(store, create=False, keep_copy=keep_copy) as opened:
        return await opened.search(query, on_indexed=on_indexed)
