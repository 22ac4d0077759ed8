"""What a tenant may use in a day, in tokens and dollars: sums of what its logs used, asked before it uses more."""

from __future__ import annotations

from bough.conversation.log.ledger import USAGE
from bough.errors import LimitExceeded
from bough.events.beside import Tables
from bough.events.store import EventStore
from bough.server.auth.caller import LOCAL, Caller
from bough.server.auth.keys import SERVER
from bough.server.metrics import Metrics
from bough.server.settings import ServerSettings

_DAY_SECONDS = 24 * 60 * 60
_SECOND = 1_000_000


class Quotas:
    """The quotas of a server's tenants; days are those of UTC."""

    def __init__(self, settings: ServerSettings, metrics: Metrics) -> None:
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
        tenant = owner or LOCAL
        if not self._has_quota(tenant):
            return
        limits, seconds = self._settings.limits_of(tenant), tables.now() // _SECOND
        row = tables.one("server.used_on", owner=owner, day=seconds // _DAY_SECONDS)
        tokens, usd = (0, 0.0) if row is None else (int(row[0]), float(row[1]))
        for name, used, bound in (("tokens_a_day", tokens, limits.tokens_a_day), ("usd_a_day", usd, limits.usd_a_day)):
            if bound is not None and used >= bound:
                self._metrics.limited.labels(name).inc()
                details = {"limit": name, "retry_after_seconds": _DAY_SECONDS - seconds % _DAY_SECONDS}
                raise LimitExceeded(
                    f"{name} is used up: {used:g} of {bound:g}", hint="wait for the next day", details=details
                )

    def _has_quota(self, tenant: str) -> bool:
        limits = self._settings.limits_of(tenant)
        return limits.tokens_a_day is not None or limits.usd_a_day is not None
