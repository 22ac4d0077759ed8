"""Sums of usage from the ledger of days, one statement each."""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, timedelta
from typing import Literal, NamedTuple
from uuid import UUID

from bough.conversation.log.ledger import USAGE
from bough.events.beside import Tables
from bough.events.store import EventStore
from bough.server.auth.keys import SERVER

UsageKey = Literal["day", "conversation", "tree", "agent", "model"]
"""The columns by which rows are grouped."""

_EPOCH = date(1970, 1, 1)
_LAST = date(9999, 12, 31)


class UsageSum(NamedTuple):
    """The total usage of some requests; `unpriced` counts tokens without a known price."""

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
    """Return the usage of an owner's conversations between two days, both included. O(the owner's rows)."""
    days = {"first": _day(first or _EPOCH), "last": _day(last or _LAST)}

    def look(tables: Tables) -> list[UsageSum]:
        rows = [UsageSum(*row) for row in tables.run("server.usage", owner=owner, by=by, **days)]
        match by:
            case "day":
                return [row._replace(key=(_EPOCH + timedelta(days=int(row.key))).isoformat()) for row in rows]
            case "conversation" | "tree":
                return [row._replace(key=str(UUID(row.key))) for row in rows]
            case _:
                return rows

    return await store.together((SERVER, USAGE), look, read_only=True)


async def sum_of_each(store: EventStore, cids: Collection[UUID]) -> dict[UUID, UsageSum]:
    """Return the usage of each conversation itself; omits those without usage. One statement each."""

    def look(tables: Tables) -> dict[UUID, UsageSum]:
        rows = {cid: tables.one("server.usage_of", conversation=cid) for cid in cids}
        return {cid: UsageSum(str(cid), *row) for cid, row in rows.items() if row is not None and row[0] is not None}

    return await store.together((SERVER, USAGE), look, read_only=True)


def _day(day: date) -> int:
    return (day - _EPOCH).days
