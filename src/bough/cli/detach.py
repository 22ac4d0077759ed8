"""What commands that submit and run tasks share: the broker of the settings' store."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bough.cli.render import Report
from bough.cli.text import line
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.conversation import State
    from bough.conversation.rules import GivenRules
    from bough.events.record import ConversationRecord
    from bough.guard import HookSet
    from bough.server.bounds.tenants import TenantRules
    from bough.tasks.agents import Credentials
    from bough.tasks.broker import TaskBroker
    from bough.tasks.stores.relational import RelationalTaskStore


def make_broker(tasks: RelationalTaskStore, settings: Settings, rules: TenantRules | None = None) -> TaskBroker:
    """Return a broker whose tasks ask the user's own hooks, and those of projects that a person has trusted.

    Conversations of an agent server get the secrets that it sealed for them.

    Args:
        rules: What tenants may use, for a worker; None: a run that the user of this command asks for is not checked.
    """
    from bough.server.auth.sealed import SealedSecrets, SecretBox
    from bough.server.bounds.quotas import make_admission
    from bough.server.worker import find_credentials
    from bough.tasks.broker import TaskBroker

    async def find(record: ConversationRecord, state: State) -> Credentials:
        sealed = SealedSecrets(tasks.log, lambda: SecretBox.of(settings.home, os.environ))  # it is open by now
        return await find_credentials(sealed, rules)(record, state)

    return TaskBroker(
        tasks,
        settings=settings,
        admit=None if rules is None else make_admission(rules),
        hooks=lambda workspace: find_trusted_hooks(settings.home, workspace),
        credentials=find,
    )


@asynccontextmanager
async def sending_pieces(broker: TaskBroker, url: str) -> AsyncGenerator[None]:
    """Send the pieces of responses of this worker to agent servers that have readers; on Postgres only."""
    if not url.startswith(("postgresql:", "postgres:")):
        yield
        return
    from bough.server.live.deltas import DeltaRelay

    relay = DeltaRelay(url)
    broker.worker.on_update.append(relay.take_update)
    await relay.open()
    try:
        yield
    finally:
        await relay.aclose()


def find_trusted_hooks(home: Path, workspace: Path) -> HookSet:
    """Return the hooks of the home folder, and those of the workspace where a person has trusted them."""
    from bough.guard import find_hooks
    from bough.skills import TrustStore

    return find_hooks(home=home, project=workspace, trust=TrustStore(home))


async def submit_detached(
    spec: AgentSpec,
    message: str,
    *,
    settings: Settings,
    workspace: str,
    rules: GivenRules,
    title: str | None,
    tags: dict[str, str],
    key: str | None,
) -> Report:
    """Submit a run as a task and return its id: a worker runs it, or `bough tasks wait --run`.

    Raises:
        InvalidInput: The message is empty, or the workspace is not a folder.
        Conflict: The key has made another task.
    """
    from bough.tasks.stores.backends import open_task_store

    tasks = open_task_store(settings.store)
    broker = make_broker(tasks, settings)
    bounded = {"confirmation_policy": rules.get("confirmation_policy"), "limits": rules.get("limits")}
    applied_rules = {name: rule for name, rule in bounded.items() if rule is not None and getattr(spec, name) is None}
    spec = spec.model_copy(update=applied_rules)
    broker.register_agents([spec])
    try:
        task_id = await broker.submit(
            message, agent_name=spec.name, workspace=workspace, title=title, tags=tags,
            idempotency_key=key,
        )  # fmt: skip
        task = await broker.poll(task_id)
    finally:
        await broker.aclose()
        await tasks.aclose()
    short = task.id.replace("-", "")[-8:]
    return Report(
        command="run",
        data={"task": task.id, "conversation": str(task.conversation)},
        blocks=[line((task.id, "id"))],
        next=("bough worker", f"bough tasks wait --run {short}"),
    )
