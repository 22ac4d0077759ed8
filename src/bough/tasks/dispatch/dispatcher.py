"""What brings pending tasks to workers: one protocol, in process or by an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from bough.agents.spec import AgentSpec
from bough.errors import Unavailable
from bough.events.beside import Tables
from bough.events.integrity import IntegrityFinding
from bough.tasks.agents import name_private_queue
from bough.tasks.dispatch.local import LocalDispatcher
from bough.tasks.model import Task
from bough.tasks.stores.postgres import TaskStorePostgres
from bough.tasks.stores.relational import RelationalTaskStore

if TYPE_CHECKING:
    from bough.tasks.worker import Worker


class Dispatcher(Protocol):
    """Brings pending tasks to workers. The row decides who runs a task: a doubled or late delivery is harmless.

    Attributes:
        name: What people are shown of it; `version` with the release and schema of its engine.
    """

    name: str
    version: str

    def enqueue(self, tables: Tables, task: Task) -> int | None:
        """Have a task delivered, inside the transaction that makes it pending; return the engine's job."""
        ...

    def withdraw(self, tables: Tables, job: int) -> None:
        """Take a job back, inside the transaction that ends its task."""
        ...

    async def run(self, worker: Worker, *, queues: Collection[str], concurrency: int, stopping: asyncio.Event) -> None:
        """Run tasks of some queues, at most `concurrency` at once, until `stopping` is set and those have ended."""
        ...

    def wake(self) -> None:
        """Look for work now: something was written, or another queue is served."""
        ...

    def want(self, task_id: str, queue: str | None = None) -> None:
        """Run a task here, whatever its queue. In a queue that is served here it waits for its turn.

        Args:
            queue: The task's; None where it is not known.
        """
        ...

    async def check(self) -> list[IntegrityFinding]:
        """Return what is wrong with the engine's own tables, for `bough doctor`."""
        ...


class ServedQueues(Collection[str]):
    """The queues a broker serves: those it was given, and the private ones of the agents it registered so far."""

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
    """Return the engine for a store on Postgres, which many machines share, and the local one for every other.

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
