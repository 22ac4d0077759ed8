"""What a delegation needs of the broker that runs its tasks."""

from __future__ import annotations

from typing import Any, Protocol
from uuid import UUID

from bough.settings import Settings
from bough.tasks.model import Task
from bough.tasks.notify import Until
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.submission import Submitted
from bough.tasks.submitting import SubmissionRequest
from bough.tasks.worker import Worker


class TaskRunning(Protocol):
    """Submits, waits for and cancels tasks of one store, and runs them."""

    settings: Settings
    store: RelationalTaskStore
    worker: Worker

    def require_open(self) -> None:
        """Raise `Unavailable` once it was left."""
        ...

    async def submit_child(self, request: SubmissionRequest, *, claim: bool) -> Submitted:
        """Submit a task of a conversation, claimed for this process with `claim`."""
        ...

    async def poll(self, task_id: str) -> Task:
        """Return a task as it stands."""
        ...

    async def wait_until(self, task_id: str, until: Until, timeout: float | None = None) -> Task:
        """Return a task once `until` holds of it, or as it stands after `timeout` seconds."""
        ...

    async def cancel(self, task_id: str) -> Task:
        """Cancel a task and its open children."""
        ...

    async def run(self, conversation: UUID, message: str | None = None, **metadata: Any) -> str | None:
        """Run a conversation that is there as a task of its own."""
        ...
