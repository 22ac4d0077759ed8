"""Open the task store of the settings, create its broker, and submit runs as tasks."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bough.cli import options
from bough.cli.complete import complete_task_ids
from bough.cli.render import Report
from bough.cli.target import short
from bough.cli.text import line
from bough.errors import NotFound
from bough.settings import Settings

if TYPE_CHECKING:
    from bough.agents.spec import AgentSpec
    from bough.conversation import State
    from bough.conversation.check import RunCheck
    from bough.conversation.rules import GivenRules
    from bough.events.record import ConversationRecord
    from bough.guard import HookSet
    from bough.server.bounds.tenants import TenantRules
    from bough.tasks import Task
    from bough.tasks.agents import Credentials
    from bough.tasks.broker import TaskBroker
    from bough.tasks.stores.relational import RelationalTaskStore

TaskId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Task id, or its first or last digits; - for the latest.",
        autocompletion=complete_task_ids,
    ),
]
TaskIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID…", help="Task ids, as shown by `bough tasks list`.", autocompletion=complete_task_ids),
]


@asynccontextmanager
async def open_tasks(home: str | None, store: str | None) -> AsyncGenerator[RelationalTaskStore | None]:
    """Yield the open task store of the settings, or None if the store does not exist yet."""
    from bough.tasks.stores.backends import has_store, open_task_store

    url = options.load_settings(home, store).store
    if not has_store(url):
        yield None
        return
    tasks = open_task_store(url)
    try:
        yield tasks
    finally:
        await tasks.aclose()


@asynccontextmanager
async def open_existing(home: str | None, store: str | None) -> AsyncGenerator[RelationalTaskStore]:
    """Yield the open task store of the settings.

    Raises:
        NotFound: The store does not exist yet.
    """
    async with open_tasks(home, store) as tasks:
        if tasks is None:
            raise NotFound("there are no tasks yet", hint='bough run --detach "…" submits one')
        yield tasks


async def get_task(tasks: RelationalTaskStore, name: str) -> Task:
    """Return a task with its events.

    Raises:
        NotFound: No task has this name.
        InvalidInput: Several ids match the name.
    """
    task = await tasks.get(await tasks.resolve(name))
    assert task is not None  # noqa: S101 - `resolve` found it
    return task


def make_broker(
    tasks: RelationalTaskStore,
    settings: Settings,
    rules: TenantRules | None = None,
    *,
    queues: Collection[str] = ("default",),
) -> TaskBroker:
    """Return a broker whose tasks run with the hooks of the user and of trusted projects.

    Conversations of an agent server get the secrets that the server sealed for them.

    Args:
        rules: Limits of tenants, for a worker. None sets no limits, for a run that the user of the command requests.
        queues: The queues whose tasks it runs while it is entered; `()` runs only what it submits.
    """
    from bough.server.auth.sealed import SealedSecrets, SecretBox
    from bough.server.bounds.quotas import make_admission
    from bough.server.worker import find_credentials
    from bough.tasks.broker import TaskBroker

    async def find_sealed(record: ConversationRecord, state: State) -> Credentials:
        # Not created earlier, because `tasks.log` exists only while the store is open.
        sealed = SealedSecrets(tasks.log, lambda: SecretBox.of(settings.home, os.environ))
        return await find_credentials(sealed, rules)(record, state)

    return TaskBroker(
        tasks,
        settings=settings,
        queues=queues,
        admit=None if rules is None else make_admission(rules),
        hooks=lambda workspace: find_trusted_hooks(settings.home, workspace),
        credentials=find_sealed,
    )


@asynccontextmanager
async def relay_responses(broker: TaskBroker, url: str) -> AsyncGenerator[None]:
    """During the block, stream this worker's responses to agent servers with subscribers. Only for Postgres."""
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
    """Return the hooks of the home folder, and those of the workspace if they are trusted."""
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
    check: RunCheck | None = None,
) -> Report:
    """Submit a run as a task and return a report with its id; a worker or `bough tasks wait --run` runs the task.

    Args:
        key: Idempotency key.
        check: Judges the files whenever the agent has finished.

    Raises:
        InvalidInput: The message is empty, or the workspace is not a folder.
        Conflict: The key was used for a different task.
    """
    from bough.tasks.stores.backends import open_task_store

    tasks = open_task_store(settings.store)
    broker = make_broker(tasks, settings)
    requested_rules = {"confirmation_policy": rules.get("confirmation_policy"), "limits": rules.get("limits")}
    # Rules of the agent take precedence, because options must not replace narrower rules.
    applied_rules = {
        name: rule for name, rule in requested_rules.items() if rule is not None and getattr(spec, name) is None
    }
    spec = spec.model_copy(update=applied_rules)
    broker.register_agents([spec])
    try:
        task_id = await broker.submit(
            message, agent_name=spec.name, workspace=workspace, title=title, tags=tags,
            idempotency_key=key, budget=rules.get("budget"), check=None if check is None else check.to_json(),
        )  # fmt: skip
        task = await broker.poll(task_id)
    finally:
        await broker.aclose()
        await tasks.aclose()
    return Report(
        command="run",
        data={"task": task.id, "conversation": str(task.conversation)},
        blocks=[line((task.id, "id"))],
        next=("bough worker", f"bough tasks wait --run {short(task.id)}"),
    )
