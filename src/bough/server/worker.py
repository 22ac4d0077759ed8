"""What a process that runs the tasks of agent servers does for them: webhooks are told, tenants' quotas hold."""

from __future__ import annotations

from bough.events.store import EventStore
from bough.server.bounds.quotas import Quotas
from bough.server.outbound.notices import follow_notices
from bough.server.settings import ServerSettings
from bough.settings import Settings
from bough.tasks import TaskBroker


def work_for_servers(broker: TaskBroker, store: EventStore, settings: Settings) -> None:
    """Have what a worker changes told to webhooks, and its runs end on the quotas of the servers' settings.

    Args:
        store: The log of the broker's tasks.
        settings: Whose home has the `server:` section.
    """
    follow_notices(store)
    keep_quotas(broker, store, Quotas(ServerSettings.load(settings)))


def keep_quotas(broker: TaskBroker, store: EventStore, quotas: Quotas) -> None:
    """Have runs of a broker end at the step before which their tenant has used up its day."""
    broker.worker.find_reached = lambda owner: quotas.find_reached(store, owner)
