"""How many runs a tenant may have at once, and how many may wait: counted in the transactions that add and start them.

Submissions of one tenant go one by one, so two servers never both add the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bough.conversation.log.ledger import USAGE
from bough.errors import LimitExceeded
from bough.events.beside import Tables
from bough.server.auth.caller import LOCAL
from bough.server.auth.keys import SERVER
from bough.server.bounds.quotas import PAYER, Quotas
from bough.server.bounds.tenants import LimitsByTenant
from bough.tasks.stores.submission import Admission

if TYPE_CHECKING:
    from bough.server.metrics import Metrics  # a worker may lack its package


def admission_of(settings: LimitsByTenant, metrics: Metrics | None = None) -> Admission:
    """Return what is asked before each run: whether its tenant may have one more waiting, and one more running."""
    quotas = Quotas(settings, metrics)

    def check(tables: Tables, owner: str | None, metadata: Mapping[str, Any]) -> None:
        quotas.check(tables, owner, metadata.get(PAYER))
        tenant = owner or LOCAL
        limits = settings.limits_of(tenant)
        tables.run("server.lock_tenant", id=tenant)  # before the count: submissions of one tenant go one by one
        row = tables.one("server.count_runs", owner=owner)
        bound = limits.runs + limits.queued_runs if limits.runs else 0  # without runs, nothing would ever end the wait
        if row is not None and row[0] >= bound:
            if metrics is not None:
                metrics.limited.labels("runs").inc()
            raise LimitExceeded(
                f"{limits.runs} runs may be active, and no more than {bound} with those that wait",
                hint="wait for one to end",
                details={"limit": "runs"},
            )

    def may_start(tables: Tables, owner: str | None) -> bool:
        row = tables.one("server.count_running", owner=owner)
        return row is None or row[0] < settings.limits_of(owner or LOCAL).runs

    return Admission((SERVER, USAGE), check, may_start)
