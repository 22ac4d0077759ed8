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
    """Brings pending tasks to workers. The row decides who runs a task: a doubled or late delivery is harmless."""

    def enqueue(self, tables: Tables, task: Task) -> int | None:
        """Have a task delivered, inside the transaction that makes it pending; return the engine's job."""
        ...

    def withdraw(self, tables: Tables, job: int) -> None:
        """Take a job back, inside the transaction that ends its task."""
        ...

    async def run(self, worker: Worker, *, queues: Collection[str], concurrency: int, stopping: asyncio.Event) -> None:
        """Run tasks of some queues, at most `concurrency` at once, until `stopping` is set and those have ended."""
        ...

    async def check(self) -> list[IntegrityFinding]:
        """Return what is wrong with the engine's own tables, for `bough doctor`."""
        ...
