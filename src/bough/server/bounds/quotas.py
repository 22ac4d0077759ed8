"""Quotas of tenants and keys: tokens and dollars per day, summed up from the logs, and concurrent runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bough.conversation.log.ledger import USAGE, read_usage
from bough.errors import LimitExceeded
from bough.events.model import Event, LimitReached, TaskChanged, UsageAdded
from bough.events.record import StoredEvent, microseconds
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.events.usage import USAGE_KINDS
from bough.server.auth.caller import LOCAL, Caller
from bough.server.auth.keys import SERVER
from bough.server.bounds.tenants import LimitsByTenant
from bough.tasks.stores.submission import Admission

if TYPE_CHECKING:
    from bough.server.metrics import Metrics  # a worker may lack prometheus_client


PAYER = "payer"
"""The entry of a task's metadata with the id of the key that pays for the task and its sub-agents."""

_QUESTION_PURPOSE = "ask"
_DAY_SECONDS = 24 * 60 * 60
_MICROSECONDS = 1_000_000


def pay_by(caller: Caller) -> dict[str, Any]:
    """Return the metadata of a task that the caller's key pays for."""
    return {} if caller.key is None else {PAYER: caller.key}


class Quotas:
    """The quotas of a server's tenants and of their keys. Days are UTC days."""

    def __init__(self, settings: LimitsByTenant, metrics: Metrics | None = None) -> None:
        self._settings = settings
        self._metrics = metrics

    async def require(self, store: EventStore, caller: Caller) -> None:
        """Check that a caller's tenant and key have not used up today's quotas. Reads a row for each quota.

        Raises:
            LimitExceeded: A quota is used up; `retry_after_seconds` is the time until the next day.
        """
        if self._has_quota(caller.tenant) or self.bounds_keys(caller.owner):
            await store.transaction(
                (SERVER, USAGE), lambda tables: self.check(tables, caller.owner, caller.key), read_only=True
            )

    def check(self, tables: Tables, owner: str | None, key: str | None) -> None:
        """Check the quotas of a tenant and a key in a transaction.

        Raises:
            LimitExceeded: The tenant or the key has used up today's quota.
        """
        reached = self._find_reached_by_tenant(tables, owner)
        if reached is None and key is not None and self.bounds_keys(owner):
            row = tables.one("server.key_used_on", key=key, day=_today(tables))
            reached = self._find_reached_by_key(tables, owner, row)
        if reached is None:
            return
        if self._metrics is not None:
            self._metrics.limited.labels(reached.limit).inc()
        seconds_left = _DAY_SECONDS - tables.now() // _MICROSECONDS % _DAY_SECONDS
        raise LimitExceeded(
            f"{reached.limit} is used up: {reached.value:g} of {reached.bound:g}",
            hint="wait until the next day in UTC",
            details={"limit": reached.limit, "retry_after_seconds": seconds_left},
        )

    async def find_reached(self, store: EventStore, owner: str | None, cid: UUID) -> LimitReached | None:
        """Return the quota that the tenant or the paying key of a conversation has used up; None if there is none.

        Reads a row for each quota.
        """
        if not self._has_quota(owner or LOCAL) and not self.bounds_keys(owner):
            return None

        def look(tables: Tables) -> LimitReached | None:
            reached = self._find_reached_by_tenant(tables, owner)
            if reached is None and self.bounds_keys(owner):
                row = tables.one("server.payer_used_on", conversation=cid, day=_today(tables))
                reached = self._find_reached_by_key(tables, owner, row)
            return reached

        return await store.transaction((SERVER, USAGE), look, read_only=True)

    def bounds_keys(self, owner: str | None) -> bool:
        """Whether each key of an owner's tenant has a quota."""
        return self._settings.limits_for(owner or LOCAL).bounds_keys

    # The usage of keys, recorded only if the keys of any tenant have quotas.

    def follow(self, store: EventStore) -> None:
        """Charge usage to the paying key, in the transactions that record the usage."""
        store.on_append(SERVER, ("TaskChanged", *USAGE_KINDS), self.charge_run)

    def charge_run(self, tables: Tables, cid: UUID, stored: StoredEvent) -> None:
        """Record the payer of a task, or charge the usage of a run to the payer."""
        if not self._settings.bounds_any_key:
            return
        event = stored.event
        if isinstance(event, TaskChanged):
            key = event.metadata.get(PAYER)
            if key is not None:
                tables.run("server.add_payer", task=UUID(event.task_id), conversation=cid, key=str(key))
            return
        is_question = isinstance(event, UsageAdded) and event.purpose == _QUESTION_PURPOSE  # charged by `charge_key`
        _, usage = read_usage(event)
        if usage is None or is_question:
            return
        tokens, usd = usage.input_tokens + usage.output_tokens, usage.cost_usd or 0.0
        day = microseconds(stored.ts) // _MICROSECONDS // _DAY_SECONDS
        tables.run("server.charge_run", conversation=cid, day=day, tokens=tokens, cost_usd=usd)

    def charge_key(self, key: str, tables: Tables, cid: UUID, events: Sequence[Event]) -> None:
        """Charge the usage of a question to the model, asked outside a run, to the key that asked it."""
        for _, usage in map(read_usage, events):
            if usage is not None:
                tokens, usd = usage.input_tokens + usage.output_tokens, usage.cost_usd or 0.0
                columns = {"conversation": cid, "day": _today(tables), "tokens": tokens, "cost_usd": usd}
                tables.run("server.charge_key", key=key, **columns)

    # Sums.

    def _find_reached_by_tenant(self, tables: Tables, owner: str | None) -> LimitReached | None:
        """Return the quota that a tenant has used up today; None if there is none."""
        tenant = owner or LOCAL
        if not self._has_quota(tenant):
            return None
        limits = self._settings.limits_for(tenant)
        row = tables.one("server.used_on", owner=owner, day=_today(tables))
        return _find_over(row, {"tokens_a_day": limits.tokens_a_day, "usd_a_day": limits.usd_a_day})

    def _find_reached_by_key(
        self, tables: Tables, owner: str | None, row: Sequence[object] | None
    ) -> LimitReached | None:
        """Return the quota that a key has used up; None if there is none. `row` contains its tokens and dollars."""
        limits = self._settings.limits_for(owner or LOCAL)
        return _find_over(row, {"key_tokens_a_day": limits.key_tokens_a_day, "key_usd_a_day": limits.key_usd_a_day})

    def _has_quota(self, tenant: str) -> bool:
        limits = self._settings.limits_for(tenant)
        return limits.tokens_a_day is not None or limits.usd_a_day is not None


def _today(tables: Tables) -> int:
    return tables.now() // _MICROSECONDS // _DAY_SECONDS


def _find_over(row: Sequence[object] | None, bounds: dict[str, float | None]) -> LimitReached | None:
    """Return the first of the quotas, of tokens or of dollars, that a row of usage has reached; None if neither."""
    used = (0, 0.0) if row is None else (int(str(row[0])), float(str(row[1])))
    for (name, bound), value in zip(bounds.items(), used, strict=True):
        if bound is not None and value >= bound:
            return LimitReached(limit=name, value=value, bound=bound)
    return None


def make_admission(settings: LimitsByTenant, metrics: Metrics | None = None) -> Admission:
    """Return the checks of new runs: whether the tenant may queue one more, and whether it may start one more."""
    quotas = Quotas(settings, metrics)

    def check(tables: Tables, owner: str | None, metadata: Mapping[str, Any]) -> None:
        quotas.check(tables, owner, metadata.get(PAYER))
        tenant = owner or LOCAL
        limits = settings.limits_for(tenant)
        # Lock before counting: otherwise two servers could both submit the last allowed run.
        tables.run("server.lock_tenant", id=tenant)
        row = tables.one("server.count_runs", owner=owner)
        max_runs = limits.runs + limits.queued_runs if limits.runs else 0  # a queued run would otherwise wait for ever
        if row is not None and row[0] >= max_runs:
            if metrics is not None:
                metrics.limited.labels("runs").inc()
            raise LimitExceeded(
                f"the tenant may have {limits.runs} active runs, and {max_runs} including those that wait",
                hint="wait until one of them has ended",
                details={"limit": "runs"},
            )

    def may_start(tables: Tables, owner: str | None) -> bool:
        row = tables.one("server.count_running", owner=owner)
        return row is None or row[0] < settings.limits_for(owner or LOCAL).runs

    return Admission((SERVER, USAGE), check, may_start)
