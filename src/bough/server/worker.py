"""The parts of a server that worker processes need too: configured agents, webhooks, quotas, credentials.

A worker may lack the packages of the HTTP server: nothing here may import FastAPI.
"""

from __future__ import annotations

from bough.agents.config.agents import AgentConfig
from bough.agents.spec import AgentSpec
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
from bough.tasks.agents import Credentials, FindCredentials, is_data


def work_for_servers(
    broker: TaskBroker, store: EventStore, settings: Settings, rules: TenantRules | None = None
) -> None:
    """Record webhook deliveries for the changes that a worker makes, and apply the server's quotas to its runs.

    Args:
        store: The store with the conversations of the broker's tasks.
        settings: Settings of the home with the `server:` section.
        rules: The limits of tenants; None reads them from the settings.
    """
    follow_notices(store)
    keep_quotas(broker, store, Quotas(rules or read_rules(settings)))


def read_rules(settings: Settings) -> TenantRules:
    """Return the limits of tenants from the `server:` section of the home."""
    return TenantRules(settings, ServerSettings.load(settings))


def find_credentials(sealed: SealedSecrets, rules: TenantRules | None) -> FindCredentials:
    """Return a function that finds the secrets and the model key of a run.

    Args:
        rules: The limits of tenants. The function raises `PermissionDenied` for a forbidden run; None allows all.
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
    """Stop each run of a broker at its next step once its tenant or its paying key has used up the quota of the day."""
    broker.worker.find_reached = lambda owner, cid: quotas.find_reached(store, owner, cid)
    quotas.follow(store)


def load_configured(settings: Settings) -> dict[str, AgentSpec]:
    """Return the agents of the home's `config.yaml` by name; empty without the file. Imports the code named there.

    A project's `config.yaml` is ignored: the agents do not depend on the folder in which the server is started.

    Raises:
        InvalidInput: The file has a mistake.
        NotFound: The file refers to something that does not exist.
    """
    path = settings.home / "config.yaml"
    if not path.is_file():
        return {}
    names = AgentConfig.load(path, settings=settings).names
    return {name: AgentSpec.from_config(name, config_path=path, settings=settings) for name in names}


def list_for_workers(settings: Settings) -> list[AgentSpec]:
    """Return the configured agents that cannot be rebuilt from records alone: those with sub-agents or code.

    As for any worker, a project's `config.yaml` may narrow the home's, and replace its values if it is trusted.
    Raises what `load_configured` raises.
    """
    specs = [AgentSpec.from_config(name, settings=settings) for name in load_configured(settings)]
    return [spec for spec in specs if not is_data(spec.snapshot())]
