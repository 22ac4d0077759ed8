"""The interface of task stores. Its contract suite is `bough.testing.task_store`.

Source: agentic_patterns (`create get update_state list_by_state next_pending add_event`); `claim heartbeat release
read_spent list delete` are additions.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict, Unpack
from uuid import UUID

from bough.events.record import Lease
from bough.tasks.model import Task, TaskEvent
from bough.tasks.state import TaskState

if TYPE_CHECKING:
    from bough.agents.delegation_protocol import Spent
    from bough.events.model import Usage
    from bough.events.store import EventStore
    from bough.types import Json

LEASE_SECONDS = 15.0
"""How long a claim lasts without a heartbeat."""

DEFAULT_QUEUE = "default"


@dataclass(frozen=True)
class Claim:
    """The right to run a task: the task as it was claimed, and the lease of its conversation.

    Attributes:
        lease: Appends with its generation are refused once another worker has claimed the task.
        seq: Of the last transition in the log: the claim's own, unless it took over a running task.
    """

    task: Task
    lease: Lease
    seq: int


class TransitionFields(TypedDict, total=False):
    """What a transition may set besides the state, the result and the error of a task."""

    data: Json
    code: str | None
    usage: Usage | None
    request: Mapping[str, Json] | None
    reason: str | None
    not_before: datetime | None


class EndFields(TransitionFields, total=False):
    """What the end of a claim may set besides the state of a task."""

    result: str | None
    error: str | None


@dataclass(frozen=True, kw_only=True)
class TaskFilter:
    """Which tasks to list; every field that is set must match.

    Attributes:
        states: Any of these states; empty matches all.
        agent: Of the task, or of its conversation if the task names none.
        parent: Started by this conversation.
        conversation: Runs of this conversation.
        root: Runs of the conversations of this tree of forks.
        owner: Of the conversation.
        unowned: Of conversations without an owner.
    """

    states: frozenset[TaskState] = frozenset()
    agent: str | None = None
    queue: str | None = None
    parent: UUID | None = None
    conversation: UUID | None = None
    root: UUID | None = None
    owner: str | None = None
    unowned: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskPage:
    """A page of tasks, newest first, and the cursor of the next page (None at the end)."""

    items: builtins.list[Task]
    next_cursor: str | None = None


class TaskStore(ABC):
    """Stores tasks and their claims. Safe for concurrent use by any number of processes that share the log.

    Every method may raise `StoreError`. Constructors open nothing; the first call does.
    """

    @property
    @abstractmethod
    def log(self) -> EventStore:
        """The event store with the tasks' conversations.

        Raises:
            Unavailable: The store is not open. The first call of any other method opens it.
        """

    @abstractmethod
    async def open(self) -> EventStore:
        """Open the log if it is not open, and return it."""

    @abstractmethod
    async def create(self, task: Task) -> Task:
        """Store a task unchanged, events included, with a conversation of its id.

        Raises:
            Conflict: A task has the id already.
            InvalidInput: The id is not a UUID.
        """

    @abstractmethod
    async def get(self, task_id: str) -> Task | None:
        """Return a task with its latest 1,000 events; None if the id is unknown or not a UUID."""

    @abstractmethod
    async def update_state(
        self,
        task_id: str,
        state: TaskState,
        *,
        result: str | None = None,
        error: str | None = None,
        version: int | None = None,
        claim: Claim | None = None,
        ttl_seconds: float = LEASE_SECONDS,
        **fields: Unpack[TransitionFields],
    ) -> Task | None:
        """Move a task to another state with exactly one STATE_CHANGE; return None if the id is unknown.

        Args:
            version: Raise `Conflict` unless the task has this version.
            claim: Make the transition under its lease. Without one, a transition to `RUNNING` takes the lease for this
                process for `ttl_seconds`.
            fields: New values of `data`, `code`, `usage`, `request`, `reason` and `not_before`.

        Raises:
            InvalidTransition: `TRANSITIONS` does not allow it. Nothing is written.
            Conflict: The version differs, or the claim was lost.
        """

    @abstractmethod
    async def list_by_state(self, state: TaskState) -> builtins.list[Task]:
        """Return the tasks in a state, oldest first, without their events. O(tasks in the state)."""

    @abstractmethod
    async def next_pending(self) -> Task | None:
        """Return the next task of any queue by priority, then age, without claiming it. Reads one row per queue."""

    @abstractmethod
    async def add_event(self, task_id: str, event: TaskEvent) -> None:
        """Append a PROGRESS or LOG event, also to a task that has ended.

        Raises:
            InvalidInput: The event is a STATE_CHANGE, which only transitions write.
            NotFound: There is no such task.
        """

    @abstractmethod
    async def claim(
        self,
        owner: str,
        queues: Collection[str] = (DEFAULT_QUEUE,),
        *,
        id: str | None = None,
        ttl_seconds: float = LEASE_SECONDS,
    ) -> Claim | None:
        """Claim the next pending task of some queues, or the one with `id`; return None if none can be claimed.

        A running task whose owner has died or whose lease has expired can be claimed by `id`.

        Args:
            owner: Name of the claiming worker: see `events.owner.owner`.
        """

    @abstractmethod
    async def heartbeat(self, claim: Claim, ttl_seconds: float = LEASE_SECONDS) -> None:
        """Renew a claim for `ttl_seconds` from now. Only needed by programs that hold a claim without a `Worker`.

        Raises:
            Conflict: The claim was lost.
        """

    @abstractmethod
    async def release(self, claim: Claim, state: TaskState = TaskState.PENDING, **fields: Unpack[EndFields]) -> None:
        """End a claim: make a transition and release the lease, in one transaction.

        Raises:
            Conflict: The claim was lost.
            InvalidTransition: A running task cannot go to `state`.
        """

    @abstractmethod
    async def read_spent(self, conversation: UUID) -> Spent:
        """Return the usage of a conversation and its descendants, and their number. One statement."""

    @abstractmethod
    async def list(self, filter: TaskFilter | None = None, cursor: str | None = None, limit: int = 50) -> TaskPage:
        """Return a page of tasks, newest first, without their events."""

    @abstractmethod
    async def delete(self, task_id: str) -> None:
        """Delete a task that has ended, and the conversation that it created.

        Raises:
            NotFound: There is no such task.
            Conflict: The task has not ended.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the log if this store opened it. Idempotent."""
