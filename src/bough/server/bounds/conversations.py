"""The limit on the number of a tenant's conversations, because its lists scan all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bough.errors import LimitExceeded
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.server.auth.caller import LOCAL
from bough.server.auth.keys import SERVER
from bough.server.bounds.tenants import LimitsByTenant

if TYPE_CHECKING:
    from bough.server.metrics import Metrics

_RECOUNT_SECONDS = 60.0
_MAX_CACHED = 10_000


@dataclass
class _Count:
    number: int
    counted_at: float


class ConversationLimits:
    """Limits the conversations of each tenant, approximately.

    Counts the rows once a minute, and in between adds the conversations that this server creates.
    """

    def __init__(
        self,
        store: EventStore,
        rules: LimitsByTenant,
        metrics: Metrics,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._rules = rules
        self._metrics = metrics
        self._monotonic = monotonic
        self._counts: dict[str | None, _Count] = {}

    async def require(self, owner: str | None) -> None:
        """Check that an owner may have one more conversation, and count it.

        Raises:
            LimitExceeded: The owner may have no more.
        """
        (await self._check(owner)).number += 1

    async def check(self, owner: str | None) -> None:
        """Check that an owner may have one more conversation.

        Raises:
            LimitExceeded: The owner may have no more.
        """
        await self._check(owner)

    async def _check(self, owner: str | None) -> _Count:
        limit, now = self._rules.limits_for(owner or LOCAL).conversations, self._monotonic()
        count = self._counts.get(owner)
        if count is None or count.number >= limit or now - count.counted_at > _RECOUNT_SECONDS:
            number = await self._store.transaction(SERVER, lambda tables: _count_rows(tables, owner), read_only=True)
            if len(self._counts) >= _MAX_CACHED:
                self._counts.clear()
            count = self._counts[owner] = _Count(number, now)
        if count.number >= limit:
            self._metrics.limited.labels("conversations").inc()
            details = {"limit": "conversations", "retry_after_seconds": _RECOUNT_SECONDS}
            raise LimitExceeded(
                f"the tenant already has {limit} conversations", hint="delete some of them", details=details
            )
        return count


def _count_rows(tables: Tables, owner: str | None) -> int:
    row = tables.one("server.count_conversations", owner=owner)
    return 0 if row is None else int(row[0])
