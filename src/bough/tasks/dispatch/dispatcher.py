"""What brings pending tasks to workers: one protocol, in process or by an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from bough.events.beside import Tables
from bough.events.integrity import IntegrityFinding
from bough.tasks.model import Task

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
