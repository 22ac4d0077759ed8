"""What a tenant may use in a day, in tokens and dollars: sums of what its logs used, asked before it uses more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bough.conversation.log.ledger import USAGE
from bough.errors import LimitExceeded
from bough.events.beside import Tables
from bough.events.model import LimitReached
from bough.events.store import EventStore
from bough.server.auth.caller import LOCAL, Caller
from bough.server.auth.keys import SERVER
from bough.server.bounds.tenants import LimitsByTenant

if TYPE_CHECKING:
    from bough.server.metrics import Metrics  # a worker may lack its package

_DAY_SECONDS = 24 * 60 * 60
_SECOND = 1_000_000


class Quotas:
    """The quotas of a server's tenants; days are those of UTC."""

    def __init__(self, settings: LimitsByTenant, metrics: Metrics | None = None) -> None:
        self._settings = settings
        self._metrics = metrics

    async def require(self, store: EventStore, caller: Caller) -> None:
        """Check that a caller's tenant may use more today. One row, and none where it has no quota.

        Raises:
            LimitExceeded: It may not; `retry_after_seconds` says when the next day begins.
        """
        if self._has_quota(caller.tenant):
            await store.together((SERVER, USAGE), lambda tables: self.check(tables, caller.owner), read_only=True)

    def check(self, tables: Tables, owner: str | None) -> None:
        """Check it in a transaction.

        Raises:
            LimitExceeded: The tenant may use no more today.
        """
        reached = self._find_reached(tables, owner)
        if reached is None:
            return
        if self._metrics is not None:
            self._metrics.limited.labels(reached.limit).inc()
        left = _DAY_SECONDS - tables.now() // _SECOND % _DAY_SECONDS
        raise LimitExceeded(
            f"{reached.limit} is used up: {reached.value:g} of {reached.bound:g}",
            hint="wait for the next day",
            details={"limit": reached.limit, "retry_after_seconds": left},
        )

    async def find_reached(self, store: EventStore, owner: str | None) -> LimitReached | None:
        """Return the quota that an owner's tenant has used up today. One row, and none where it has no quota."""
        if not self._has_quota(owner or LOCAL):
            return None
        return await store.together((SERVER, USAGE), lambda tables: self._find_reached(tables, owner), read_only=True)

    def _find_reached(self, tables: Tables, owner: str | None) -> LimitReached | None:
        tenant = owner or LOCAL
        if not self._has_quota(tenant):
            return None
        limits, day = self._settings.limits_of(tenant), tables.now() // _SECOND // _DAY_SECONDS
        row = tables.one("server.used_on", owner=owner, day=day)
        tokens, usd = (0, 0.0) if row is None else (int(row[0]), float(row[1]))
        for name, used, bound in (("tokens_a_day", tokens, limits.tokens_a_day), ("usd_a_day", usd, limits.usd_a_day)):
            if bound is not None and used >= bound:
                return LimitReached(limit=name, value=used, bound=bound)
        return None

    def _has_quota(self, tenant: str) -> bool:
        limits = self._settings.limits_of(tenant)
        return limits.tokens_a_day is not None or limits.usd_a_day is not None
