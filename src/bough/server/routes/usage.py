"""Routes for usage: sums of tokens and cost, and the tree of forks with the usage of each."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, timedelta
from typing import Annotated, Literal, NamedTuple
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, Field

from bough.conversation.log.ledger import USAGE
from bough.events.record import ConversationFilter, ConversationRecord, Status
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.server.access import Access, Reader
from bough.server.auth.keys import SERVER
from bough.server.bodies.base import Form, ItemPage
from bough.server.bodies.info import Ledger
from bough.server.requests.routing import ConversationId, router

UsageKey = Literal["day", "conversation", "tree", "agent", "model"]
"""The columns by which rows are grouped."""

_EPOCH = date(1970, 1, 1)
_LAST = date(9999, 12, 31)


class UsageSum(NamedTuple):
    """The total usage of some model requests. `unpriced` counts the tokens whose price is unknown."""

    key: str
    requests: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float
    unpriced: int


async def sum_usage(
    store: EventStore, owner: str | None, by: UsageKey, first: date | None, last: date | None
) -> list[UsageSum]:
    """Return the usage of an owner's conversations from the first to the last day, inclusive. O(the owner's rows)."""
    days = {"first": _count_days(first or _EPOCH), "last": _count_days(last or _LAST)}

    def read_rows(tables: Tables) -> list[UsageSum]:
        rows = [UsageSum(*row) for row in tables.run("server.usage", owner=owner, by=by, **days)]
        match by:
            case "day":
                return [row._replace(key=(_EPOCH + timedelta(days=int(row.key))).isoformat()) for row in rows]
            case "conversation" | "tree":
                return [row._replace(key=str(UUID(row.key))) for row in rows]
            case _:
                return rows

    return await store.transaction((SERVER, USAGE), read_rows, read_only=True)


async def sum_of_each(store: EventStore, cids: Collection[UUID]) -> dict[UUID, UsageSum]:
    """Return the usage of each conversation, without its forks; omits those without usage. One statement each."""

    def read_rows(tables: Tables) -> dict[UUID, UsageSum]:
        rows = {cid: tables.one("server.usage_of", conversation=cid) for cid in cids}
        return {cid: UsageSum(str(cid), *row) for cid, row in rows.items() if row is not None and row[0] is not None}

    return await store.transaction((SERVER, USAGE), read_rows, read_only=True)


def _count_days(day: date) -> int:
    return (day - _EPOCH).days


routes = router("Usage")


class UsageRow(Ledger):
    """The usage of one group. `unpriced` counts the tokens whose price is unknown."""

    key: str
    unpriced: int

    @classmethod
    def of_sum(cls, row: UsageSum) -> UsageRow:
        """Return the response for a sum."""
        return cls(**row._asdict())


class UsageQuery(Form):
    """How to group usage, and the first and last day in UTC."""

    by: UsageKey = "day"
    from_: date | None = Field(default=None, alias="from")
    to: date | None = None


class TreeQuery(Form):
    """A page of a tree. With `root=false`, only the conversation and the forks below it."""

    page_id: str | None = Field(default=None, max_length=200)
    limit: int = Field(default=50, ge=1, le=100)
    root: bool = True


class TreeItem(BaseModel):
    """A conversation in a tree. `parent` is the conversation it was forked from."""

    id: UUID
    parent: UUID | None
    at: int | None
    title: str | None
    status: Status
    head: int
    own: Ledger
    live: bool


class TreePage(ItemPage[TreeItem]):
    """A page of a tree, the oldest conversation first; each conversation precedes its forks."""

    root: UUID


@routes.get("/api/usage")
async def get_usage(query: Annotated[UsageQuery, Query()], access: Reader) -> list[UsageRow]:
    """Return the usage of the tenant's conversations, including deleted ones."""
    rows = await sum_usage(access.services.store, access.caller.owner, query.by, query.from_, query.to)
    return [UsageRow.of_sum(row) for row in rows]


@routes.get("/api/conversations/{id}/tree")
async def get_tree(id: ConversationId, query: Annotated[TreeQuery, Query()], access: Reader) -> TreePage:
    """Return a page of the tree of forks that a conversation belongs to."""
    record = await access.store.get(id)
    page = await access.store.list(ConversationFilter(root=record.root), query.page_id, query.limit, "created")
    visible = page.items if query.root else await _select_descendants(access, page.items, id)
    ids = [conversation.id for conversation in visible]
    usage = await sum_of_each(access.services.store, ids)
    live = await access.services.runs.live_among(visible)
    items = [
        _tree_item(conversation, usage.get(conversation.id), live=conversation.id in live) for conversation in visible
    ]
    return TreePage(root=record.root, items=items, next_page_id=page.next_cursor)


async def _select_descendants(access: Access, records: list[ConversationRecord], id: UUID) -> list[ConversationRecord]:
    """Return the records of a conversation and of the forks below it. O(depth) for each record."""
    descendants: list[ConversationRecord] = []
    for record in records:
        ancestors = [] if record.id == id else await access.store.ancestry(record.id)
        if record.id == id or any(ancestor.id == id for ancestor in ancestors):
            descendants.append(record)
    return descendants


def _tree_item(record: ConversationRecord, usage: UsageSum | None, *, live: bool) -> TreeItem:
    own = _NO_USAGE
    if usage is not None:
        own = Ledger(**{name: getattr(usage, name) for name in Ledger.model_fields})
    return TreeItem(
        id=record.id,
        parent=record.forked_from,
        at=record.forked_at,
        title=record.title,
        status="running" if live else record.status,
        head=record.head,
        own=own,
        live=live,
    )


_NO_USAGE = Ledger(
    requests=0, input_tokens=0, output_tokens=0, cache_read_tokens=0, cache_write_tokens=0, cost_usd=None
)
