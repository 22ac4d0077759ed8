"""The application of an agent server: middleware in order, routes, lifespan."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.routing import Route, WebSocketRoute

import bough
from bough.agents.spec import AgentSpec
from bough.events import open_store
from bough.events.store import StoreAdmin
from bough.guard.hook_file import load_hooks
from bough.server.a2a.endpoint import PATHS as A2A_PATHS
from bough.server.a2a.endpoint import ROOT_PATHS as A2A_ROOT_PATHS
from bough.server.a2a.endpoint import A2AEndpoint, describe_for_push
from bough.server.auth.keys import KeyTable
from bough.server.auth.origin import CrossOrigin, HostOrigin
from bough.server.auth.sealed import SealedSecrets, SecretBox
from bough.server.auth.verification import Keys
from bough.server.bodies.openhands_events import OpenHandsEvents
from bough.server.bounds.conversations import ConversationLimits
from bough.server.bounds.limits import RequestLimits
from bough.server.bounds.quotas import Quotas, make_admission
from bough.server.bounds.tenants import TenantRules
from bough.server.documents import Transcript
from bough.server.environment.agents import AgentCatalogue
from bough.server.environment.commands import Commands, SharedExecutor
from bough.server.environment.workspaces import Workspaces
from bough.server.health import MachineHealth
from bough.server.live.broadcast import Broadcasts
from bough.server.live.deltas import DeltaRelay
from bough.server.mcp.endpoint import PATH as MCP_PATH
from bough.server.mcp.endpoint import McpEndpoint
from bough.server.metrics import Metrics
from bough.server.outbound.webhooks import Webhooks
from bough.server.requests import openapi, problems
from bough.server.requests.middleware import Bounds, HeadRequests, Problems, RequestLog
from bough.server.requests.routing import RouteIndex
from bough.server.routes import (
    agui,
    approvals,
    budgets,
    commands,
    conversations,
    evals,
    events,
    files,
    forks,
    git,
    health,
    keys,
    meta,
    openai,
    past_files,
    runs,
    session,
    skills,
    sockets,
    tasks,
    transfer,
    updates,
    usage,
    webhooks,
)
from bough.server.runs import Runs
from bough.server.services import Services
from bough.server.settings import ServerSettings
from bough.server.states import StateCache
from bough.server.worker import find_credentials, keep_quotas, load_configured
from bough.settings import Settings
from bough.tasks.broker import TaskBroker
from bough.tasks.stores.backends import tasks_in
from bough.types import SystemClock

Agents = Mapping[str, AgentSpec] | Iterable[AgentSpec]

# `runs` comes last, because its last route matches every remaining path below a conversation.
_ROUTERS = (
    meta, health, session, updates, keys, webhooks, usage, budgets, tasks, skills, evals, approvals, transfer,
    conversations, forks, events, sockets, commands, files, past_files, git, openai, agui, runs,
)  # fmt: skip


def create_app(
    settings: Settings | None = None,
    *,
    server: ServerSettings | None = None,
    agents: Agents = (),
    store: StoreAdmin | None = None,
    bind: str = "127.0.0.1",
    transcript: Transcript | None = None,
    a2a_agent: str | None = None,
    keys: type[Keys] = Keys,
) -> FastAPI:
    """Return the application of an agent server.

    Args:
        server: The server's settings; None reads them from the home and the environment.
        agents: Specs defined in Python, served in addition to `default` and those of the home's `config.yaml`.
        store: An open store, which the caller closes; None opens the store of the settings.
        bind: The address that the server listens on, which becomes an accepted `Host`.
        transcript: Writes a conversation as a document for people; None writes plain text.
        a2a_agent: The agent that A2A serves at the root; None serves every agent below `/a2a/`.
        keys: What verifies the keys of callers.
    """
    settings = settings or Settings.load()
    server = server or ServerSettings.load(settings)
    all_agents = load_configured(settings) | _by_name(agents)
    plan = _Plan(settings, server, all_agents, store, transcript, Metrics(), keys, A2AEndpoint(a2a_agent))
    app = FastAPI(
        title="bough agent server",
        version=bough.__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=plan.lifespan,
        # Newer versions of FastAPI record query strings and exception texts; `RequestLog` opens the span of a request.
        telemetry={"tracing": False, "logs": False},
        # Outermost first: `RequestLog` sets the request id, and counts and logs what the others refuse.
        middleware=[
            Middleware(RequestLog, metrics=plan.metrics),
            Middleware(CrossOrigin, settings=server),
            Middleware(HeadRequests),
            Middleware(Problems),
            Middleware(Bounds, settings=server),
            Middleware(HostOrigin, settings=server, bind=bind),
        ],
    )
    problems.install(app)
    openapi.install(app)
    for module in _ROUTERS:
        app.router.routes.extend(module.routes.routes)  # FastAPI matches the routes of an included router twice
    app.router.routes.append(Route(MCP_PATH, plan.mcp, name="mcp", include_in_schema=False))
    for path in A2A_PATHS if a2a_agent is None else A2A_ROOT_PATHS:
        app.router.routes.append(Route(path, plan.a2a, name="a2a", include_in_schema=False))
    indexed = [route for route in app.router.routes if not isinstance(route, WebSocketRoute)]
    app.router.routes.insert(0, RouteIndex(indexed))
    return app


@asynccontextmanager
async def relay_between(services: Services, url: str) -> AsyncGenerator[None]:
    """Relay pieces of text to readers on other servers, and from other processes to readers on this server."""
    broadcasts = services.broadcasts
    relay = DeltaRelay(
        url, take=broadcasts.publish, list_watched=broadcasts.list_watched, on_drop=services.metrics.deltas_dropped.inc
    )
    broadcasts.on_watch = relay.announce
    services.runs.broker.worker.on_update.append(relay.take_update)
    await relay.open()
    try:
        yield
    finally:
        await relay.aclose()


def _by_name(agents: Agents) -> dict[str, AgentSpec]:
    if isinstance(agents, Mapping):
        return {str(name): spec for name, spec in cast("Mapping[str, AgentSpec]", agents).items()}
    return {spec.name: spec for spec in agents}


@dataclass(frozen=True)
class _Plan:
    """The parts of an application, from which its lifespan creates the services."""

    settings: Settings
    server: ServerSettings
    agents: Mapping[str, AgentSpec]
    given_store: StoreAdmin | None
    transcript: Transcript | None
    metrics: Metrics
    keys: type[Keys]
    a2a: A2AEndpoint
    mcp: McpEndpoint = field(default_factory=McpEndpoint)

    def lifespan(self, app: FastAPI) -> AbstractAsyncContextManager[None]:
        """Return the lifespan, which opens the services of an application and closes them."""
        return self._lifespan(app)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncGenerator[None]:
        async with AsyncExitStack() as exit_stack:
            store = self.given_store or await open_store(
                self.settings.store, keep_copy=self.settings.copy_before_upgrade
            )
            if self.given_store is None:
                exit_stack.push_async_callback(store.aclose)
            app.state.services = services = self._make_services(store)
            if self.given_store is None and self.settings.store.startswith(("postgresql:", "postgres:")):
                await exit_stack.enter_async_context(relay_between(services, self.settings.store))
            await services.runs.open()
            # Closed in reverse order: runs still publish to readers; runs and commands still use the executor.
            exit_stack.push_async_callback(services.states.aclose)
            exit_stack.push_async_callback(services.executor.aclose)
            exit_stack.push_async_callback(services.commands.aclose)
            exit_stack.push_async_callback(services.broadcasts.aclose)
            exit_stack.push_async_callback(services.runs.aclose, self.server.shutdown_seconds)
            await exit_stack.enter_async_context(self.mcp.live())
            await exit_stack.enter_async_context(self._deliver_webhooks(services))
            services.on_drain += [self.mcp.drain, services.feeds.drain]
            yield
            services.draining = True

    @asynccontextmanager
    async def _deliver_webhooks(self, services: Services) -> AsyncGenerator[None]:
        """Record deliveries of webhooks for new events, and send due deliveries while the block runs."""
        services.webhooks.describe = describe_for_push(services)
        services.webhooks.follow()
        delivery_task = asyncio.create_task(services.webhooks.serve(), name="webhooks")
        try:
            yield
        finally:
            delivery_task.cancel()
            await asyncio.gather(delivery_task, return_exceptions=True)

    def _make_services(self, store: StoreAdmin) -> Services:
        settings, server, metrics = self.settings, self.server, self.metrics
        broadcasts, rules = Broadcasts(store, metrics), TenantRules(settings, server)
        executor = SharedExecutor(settings.executor, settings.packages)
        sealed = SealedSecrets(store, lambda: SecretBox.of(settings.home, os.environ))
        broker = TaskBroker(
            tasks_in(store),
            settings=settings,
            concurrency=server.concurrency,
            admit=make_admission(rules, metrics),
            hooks=lambda _: load_hooks(settings.home / "hooks.json"),
            credentials=find_credentials(sealed, rules),
        )
        broker.register_agents(self.agents)
        quotas = Quotas(rules, metrics)
        keep_quotas(broker, store, quotas)
        return Services(
            settings=settings,
            server=server,
            store=store,
            metrics=metrics,
            keys=self.keys(KeyTable(store), metrics),
            sealed=sealed,
            limits=RequestLimits(rules, metrics),
            rules=rules,
            conversation_limits=ConversationLimits(store, rules, metrics),
            quotas=quotas,
            broadcasts=broadcasts,
            states=StateCache(store, server.cache_bytes, metrics),
            agents=AgentCatalogue(settings, server, self.agents, rules),
            runs=Runs(broker, metrics, broadcasts, takes_tasks=server.runs == "here"),
            workspaces=Workspaces(settings, server),
            executor=executor,
            webhooks=Webhooks(store, sealed, metrics, networks=server.webhook_networks),
            commands=Commands(executor, SystemClock()),
            health=MachineHealth(settings, broker.worker.store),
            event_form=OpenHandsEvents(),
            transcript=self.transcript,
        )
