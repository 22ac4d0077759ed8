"""The services of one server, which the application's lifespan creates and closes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bough.events.store import StoreAdmin
from bough.server.auth.sealed import SealedSecrets
from bough.server.auth.verification import Keys
from bough.server.bodies.events import EventForm, OurEvents
from bough.server.bounds.conversations import ConversationLimits
from bough.server.bounds.limits import RequestLimits
from bough.server.bounds.quotas import Quotas
from bough.server.bounds.tenants import TenantRules
from bough.server.documents import Transcript
from bough.server.environment.agents import AgentCatalogue
from bough.server.environment.commands import Commands, SharedExecutor
from bough.server.environment.workspaces import Workspaces
from bough.server.health import MachineHealth
from bough.server.live.broadcast import Broadcasts
from bough.server.live.updates import TenantFeeds
from bough.server.metrics import Metrics
from bough.server.outbound.webhooks import Webhooks
from bough.server.runs import Runs
from bough.server.settings import ServerSettings
from bough.server.states import StateCache
from bough.settings import Settings
from bough.types import Clock, SystemClock


@dataclass(kw_only=True)
class Services:
    """The parts of a server.

    Attributes:
        store: The whole store; routes see it through `OwnedStore` only.
        rules: The limits of tenants; SIGHUP reloads them.
        conversation_limits: Limits the number of conversations of a tenant.
        event_form: The form of events in responses, unless the request asks for bough's form.
        transcript: Writes a conversation as a document for people; None writes plain text.
        draining: Whether the server is stopping; the callbacks in `on_drain` are called when it begins to stop.
    """

    settings: Settings
    server: ServerSettings
    store: StoreAdmin
    metrics: Metrics
    keys: Keys
    sealed: SealedSecrets
    rules: TenantRules
    conversation_limits: ConversationLimits
    limits: RequestLimits
    quotas: Quotas
    broadcasts: Broadcasts
    states: StateCache
    agents: AgentCatalogue
    runs: Runs
    workspaces: Workspaces
    commands: Commands
    executor: SharedExecutor
    webhooks: Webhooks
    health: MachineHealth
    event_form: EventForm
    transcript: Transcript | None = None
    feeds: TenantFeeds = field(default_factory=TenantFeeds)
    our_events: EventForm = field(default_factory=OurEvents)
    clock: Clock = field(default_factory=SystemClock)
    draining: bool = False
    on_drain: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def form_for(self, *, ours: bool) -> EventForm:
        """Return the form of events for a response: bough's own if `ours`."""
        return self.our_events if ours else self.event_form
