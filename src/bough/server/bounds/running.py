"""How many runs a tenant may have at once: counted in the transaction that adds one, so two servers never both add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bough.conversation.log.ledger import USAGE
from bough.errors import LimitExceeded
from bough.events.beside import Tables
from bough.server.auth.caller import LOCAL
from bough.server.auth.keys import SERVER
from bough.server.bounds.quotas import PAYER, Quotas
from bough.server.bounds.tenants import LimitsByTenant
from bough.server.metrics import Metrics
from bough.tasks.stores.submission import Admission


def admission_of(settings: LimitsByTenant, metrics: Metrics) -> Admission:
    """Return what is asked before each run: whether its tenant has as many pending and running ones as it may have."""
    quotas = Quotas(settings, metrics)

    def check(tables: Tables, owner: str | None, metadata: Mapping[str, Any]) -> None:
        quotas.check(tables, owner, metadata.get(PAYER))
        tenant = owner or LOCAL
        bound = settings.limits_of(tenant).runs
        tables.run("server.lock_tenant", id=tenant)  # before the count: submissions of one tenant go one by one
        row = tables.one("server.count_runs", owner=owner)
        if row is not None and row[0] >= bound:
            metrics.limited.labels("runs").inc()
            raise LimitExceeded(f"{bound} runs are active", hint="wait for one to end", details={"limit": "runs"})

    return Admission((SERVER, USAGE), check)
