"""The dispatcher protocol: delivers pending tasks to workers, in process or through an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from bough.agents.spec import AgentSpec
from bough.errors import Unavailable
from bough.events.integrity import IntegrityFinding
from bough.events.side_tables import Tables
from bough.tasks.agents import name_private_queue
from bough.tasks.dispatch.local import LocalDispatcher
from bough.tasks.model import Task
from bough.tasks.stores.backends import TaskStorePostgres
from bough.tasks.stores.relational import RelationalTaskStore

if TYPE_CHECKING:
    from bough.tasks.worker import Worker


class Dispatcher(Protocol):
    """Delivers pending tasks to workers. The row decides who runs a task: repeated or late deliveries are harmless.

    Attributes:
        name: Display name; `version` adds the release and schema of the engine.
    """

    name: str
    version: str

    def enqueue(self, tables: Tables, task: Task) -> int | None:
        """Enqueue a task inside the transaction that makes it pending; return the engine's job."""
        ...

    def withdraw(self, tables: Tables, job: int) -> None:
        """Cancel a job inside the transaction that ends its task."""
        ...

    async def run(self, worker: Worker, *, queues: Collection[str], concurrency: int, stopping: asyncio.Event) -> None:
        """Run tasks of some queues, at most `concurrency` at once, until `stopping` is set and they have ended."""
        ...

    def wake(self) -> None:
        """Look for work now, after a commit or a change of the served queues."""
        ...

    def want(self, task_id: str, queue: str | None = None) -> None:
        """Run a task in this process even if its queue is not served here. In a served queue it waits for its turn.

        Args:
            queue: The task's queue; None if unknown.
        """
        ...

    async def check(self) -> list[IntegrityFinding]:
        """Return problems of the engine's tables, for `bough doctor`."""
        ...


class ServedQueues(Collection[str]):
    """The queues that a broker serves: its own, and the private queues of the agents registered so far."""

    def __init__(self, queues: Collection[str], agents: Mapping[str, AgentSpec]) -> None:
        self._queues = queues
        self._agents = agents

    def _all(self) -> list[str]:
        return [*self._queues, *map(name_private_queue, self._agents.values())] if self._queues else []

    def __iter__(self):
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __contains__(self, queue: object) -> bool:
        return queue in self._all()


def choose_dispatcher(store: RelationalTaskStore) -> Dispatcher:
    """Return the Procrastinate dispatcher for a Postgres store, which many machines share, else the local one.

    Raises:
        Unavailable: The engine is not installed.
    """
    if not isinstance(store, TaskStorePostgres):
        return LocalDispatcher()
    try:
        from bough.tasks.dispatch.procrastinate import ProcrastinateDispatcher
    except ImportError as error:
        raise Unavailable(
            f"tasks on Postgres need the package {error.name}", hint="pip install 'bough[postgres]'"
        ) from error
    return ProcrastinateDispatcher(store)
