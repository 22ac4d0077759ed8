"""What a process that runs the tasks of agent servers does for them: webhooks are told, tenants' quotas hold."""

from __future__ import annotations

from bough.conversation import State
from bough.events.record import ConversationRecord
from bough.events.store import EventStore
from bough.server.auth.sealed import SealedSecrets
from bough.server.bounds.quotas import Quotas
from bough.server.bounds.tenants import TenantRules
from bough.server.outbound.notices import follow_notices
from bough.server.settings import ServerSettings
from bough.settings import Settings
from bough.tasks import TaskBroker
from bough.tasks.agents import Credentials, FindCredentials


def work_for_servers(
    broker: TaskBroker, store: EventStore, settings: Settings, rules: TenantRules | None = None
) -> None:
    """Have what a worker changes told to webhooks, and its runs end on the quotas of the servers' settings.

    Args:
        store: The log of the broker's tasks.
        settings: Whose home has the `server:` section.
        rules: What tenants may use; None: it is read from the settings.
    """
    follow_notices(store)
    keep_quotas(broker, store, Quotas(rules or read_rules(settings)))


def read_rules(settings: Settings) -> TenantRules:
    """Return what tenants may use, as the `server:` section of the home says."""
    return TenantRules(settings, ServerSettings.load(settings))


def find_credentials(sealed: SealedSecrets, rules: TenantRules | None) -> FindCredentials:
    """Return a function that finds the secrets and the model key of a run.

    Args:
        rules: The function raises `PermissionDenied` for a run that they do not allow; None: each run is allowed.
    """

    async def find(record: ConversationRecord, state: State) -> Credentials:
        credentials = await sealed.credentials(record, state)
        if rules is not None:
            rules.require_workspace(record.owner, state.workspace)
            rules.require_own_model_key(
                record.owner, state.agent.get("model"), has_key=credentials.model_key is not None
            )
        return credentials

    return find


def keep_quotas(broker: TaskBroker, store: EventStore, quotas: Quotas) -> None:
    """Have runs of a broker end at the step before which their tenant, or the key that pays, has used up its day."""
    broker.worker.find_reached = lambda owner, cid: quotas.find_reached(store, owner, cid)
    quotas.follow(store)
