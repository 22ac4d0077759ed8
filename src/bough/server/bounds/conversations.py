"""The limit on a tenant's conversations, which its lists scan."""

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

_COUNTED_SECONDS = 60.0
_TENANTS = 10_000


@dataclass
class _Counted:
    number: int
    at: float


class ConversationLimits:
    """Counts conversations once a minute and adds those created here in between; the limit is approximate."""

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
        self._counted: dict[str | None, _Counted] = {}

    async def require(self, owner: str | None) -> None:
        """Check that an owner may have one more, and count it.

        Raises:
            LimitExceeded: The owner may have no more.
        """
        bound, now = self._rules.limits_for(owner or LOCAL).conversations, self._monotonic()
        counted = self._counted.get(owner)
        if counted is None or counted.number >= bound or now - counted.at > _COUNTED_SECONDS:
            number = await self._store.transaction(SERVER, lambda tables: _count(tables, owner), read_only=True)
            if len(self._counted) >= _TENANTS:
                self._counted.clear()
            counted = self._counted[owner] = _Counted(number, now)
        if counted.number >= bound:
            self._metrics.limited.labels("conversations").inc()
            details = {"limit": "conversations", "retry_after_seconds": _COUNTED_SECONDS}
            raise LimitExceeded(
                f"the tenant already has {bound} conversations", hint="delete some of them", details=details
            )
        counted.number += 1


def _count(tables: Tables, owner: str | None) -> int:
    row = tables.one("server.count_conversations", owner=owner)
    return 0 if row is None else int(row[0])
