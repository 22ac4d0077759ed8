"""Where tasks are kept: what every store promises. The contract suite is `bough.testing.task_store`.

Source: agentic_patterns (`create get update_state list_by_state next_pending add_event`); `claim heartbeat release
spent list delete` are bough's own.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bough.events.record import Lease
from bough.tasks.model import Task, TaskEvent
from bough.tasks.state import TaskState

if TYPE_CHECKING:
    from bough.agents.delegation_protocol import Spent
    from bough.events.store import EventStore

LEASE_SECONDS = 15.0
"""How long a claim holds without a heartbeat."""

DEFAULT_QUEUE = "default"


@dataclass(frozen=True)
class Claim:
    """The right to run a task: the task as it was claimed, and the lease of its conversation.

    Attributes:
        lease: What is appended with its generation is refused once another has claimed the task.
        seq: Of the last transition in the log of its conversation, which is the claim's own unless it is a take-over.
    """

    task: Task
    lease: Lease
    seq: int


@dataclass(frozen=True, kw_only=True)
class TaskFilter:
    """Which tasks to list; every field that is set must match.

    Attributes:
        states: Any of these; empty: all.
        agent: That the task names, or its conversation where it names none.
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
    """Tasks, the newest first, and the cursor of the next page (None at the end)."""

    items: builtins.list[Task]
    next_cursor: str | None = None


class TaskStore(ABC):
    """Tasks and their claims. Safe for concurrent use, by any number of processes where the log is.

    Every method may raise `StoreError`. Constructors open nothing; the first call does.
    """

    @property
    @abstractmethod
    def log(self) -> EventStore:
        """The log that the tasks' conversations are in.

        Raises:
            Unavailable: Nothing was opened yet: the first call of any other method does so.
        """

    @abstractmethod
    async def open(self) -> EventStore:
        """Open the log if that was not done yet, and return it."""

    @abstractmethod
    async def create(self, task: Task) -> Task:
        """Store a task as it is given, events included, with a conversation of its id.

        Raises:
            Conflict: The id is taken.
            InvalidInput: The id is not a UUID.
        """

    @abstractmethod
    async def get(self, task_id: str) -> Task | None:
        """Return a task with its latest 1,000 events; None for an id that is not there, or is not a UUID."""

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
        **fields: Any,
    ) -> Task | None:
        """Move a task to another state, with exactly one STATE_CHANGE; None for an id that is not there.

        Args:
            version: The transition is made only from this version.
            claim: Whose lease it is made under: a lost one is refused. To `RUNNING` without one takes the lease in
                this process's name for `ttl_seconds`.
            fields: `data`, `code`, `usage`, `request`, `reason`, `not_before` of the task from here on.

        Raises:
            InvalidTransition: The table of states does not have it. Nothing is written.
            Conflict: The version is another one, or the claim was lost.
        """

    @abstractmethod
    async def list_by_state(self, state: TaskState) -> builtins.list[Task]:
        """Return the tasks in a state, the oldest first, without their events. O(tasks in it)."""

    @abstractmethod
    async def next_pending(self) -> Task | None:
        """Return the task that is next by priority, then age, in any queue. It is not claimed. One row a queue."""

    @abstractmethod
    async def add_event(self, task_id: str, event: TaskEvent) -> None:
        """Append a PROGRESS or LOG event, also to a task that has ended.

        Raises:
            InvalidInput: It is a STATE_CHANGE: transitions write their own.
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
        """Claim the next pending task of some queues, or the one with `id`; None where there is none to claim.

        A running task whose owner is gone, or whose lease ended, is claimable by `id`.

        Args:
            owner: Who claims: see `events.lease.owner`.
        """

    @abstractmethod
    async def heartbeat(self, claim: Claim, ttl_seconds: float = LEASE_SECONDS) -> None:
        """Renew a claim for `ttl_seconds` from now; for programs that hold one without a run.

        Raises:
            Conflict: It was lost.
        """

    @abstractmethod
    async def release(self, claim: Claim, state: TaskState = TaskState.PENDING, **fields: Any) -> None:
        """End a claim: the transition and the end of the lease, in one transaction.

        Raises:
            Conflict: The claim was lost.
            InvalidTransition: A running task does not go to `state`.
        """

    @abstractmethod
    async def read_spent(self, conversation: UUID) -> Spent:
        """Return what a conversation and its descendants used, and how many descendants there are. One statement."""

    @abstractmethod
    async def list(self, filter: TaskFilter | None = None, cursor: str | None = None, limit: int = 50) -> TaskPage:
        """Return a page of tasks, the newest first, without their events."""

    @abstractmethod
    async def delete(self, task_id: str) -> None:
        """Delete a task that has ended, and with it the conversation it made.

        Raises:
            NotFound: There is no such task.
            Conflict: It has not ended.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close what was opened here; twice is nothing."""
