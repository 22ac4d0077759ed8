"""The protocol with which a conversation delegates work to other agents, and its data types.

Conversations depend only on this protocol, so that the package that runs tasks can depend on conversations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable
from uuid import UUID

from bough.errors import BoughError
from bough.events.model import Usage
from bough.events.record import Lease
from bough.events.store import EventStore
from bough.guard import Limits, limits_from_json
from bough.types import Json, JsonObject

if TYPE_CHECKING:
    from bough.connect.mcp_pool import McpPool

WaitKind: TypeAlias = Literal["approval", "external", "question", "task"]
"""What a call waits for: approval by a person (`approval`), an external result (`external`), a person's answer
(`question`), or input requested by another agent's task (`task`)."""


class Asking(NamedTuple):
    """The conversation that delegates, as a tool call describes it to the broker.

    Attributes:
        call: Id of the tool call; the same conversation and call always identify the same child.
        lease: The lease under which the conversation runs; None outside a run.
        rules: Its current rules, by the names of `GivenRules`; they also restrict the child.
        bounds: The limits that it shares with all tasks below it: its own limits, then those of its ancestors.
        readonly: Whether its workspace is read-only; it is then also read-only for a child that shares it.
        changed_rules: Digests of rule files that its tools wrote; its children do not follow these rules either.
        unreported: Ids of tasks whose end was not reported to it yet: background tasks, and tasks of interrupted calls.
    """

    conversation: UUID
    call: str
    lease: Lease | None
    rules: Mapping[str, Any]
    bounds: tuple[SharedBound, ...] = ()
    unreported: tuple[str, ...] = ()
    readonly: bool = False
    changed_rules: frozenset[str] = frozenset()


class Child(NamedTuple):
    """The current state of another agent's task.

    Attributes:
        conversation: The task's own conversation.
        state: The value of the task's state, for example `completed` or `input_required`.
        result: The text of the agent's answer; a partial answer if the task did not complete.
        data: The validated value of the agent's `output_type`, as JSON; None for an agent that answers with text.
        error: The error message, with its `code`; None if there was no error.
        usage: The usage of the task and all tasks below it, since its first event.
        request: What the task asks for while it waits for input; None otherwise.
        seconds: Time since it was submitted.
        last: Its last action, in one line.
        workspace: The folder created for it, a copy or a git worktree; None if it uses its parent's folder.
    """

    task_id: str
    conversation: UUID
    agent: str
    state: str
    result: str | None
    data: Json
    error: str | None
    code: str | None
    usage: Usage
    request: JsonObject | None
    seconds: float
    last: str
    workspace: str | None = None

    @property
    def is_ended(self) -> bool:
        """Whether the task is in a final state."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def is_asking(self) -> bool:
        """Whether the task waits for input."""
        return self.state == "input_required"


class Spent(NamedTuple):
    """The usage of a conversation and its descendants, and the number of tasks that they started."""

    usage: Usage
    tasks: int


class SharedBound(NamedTuple):
    """Limits that a conversation shares with all tasks below it.

    Attributes:
        spent_at_start: What the conversation and its descendants had used before; it does not count.
        level: Number of ancestors of the conversation.
    """

    conversation: UUID
    limits: Limits
    spent_at_start: Spent
    level: int = 0

    def to_json(self) -> JsonObject:
        """Return the bound as JSON: the form that the first `TaskChanged` of a task records."""
        return {
            "conversation": str(self.conversation),
            "limits": self.limits.to_json(),
            "spent": {"usage": self.spent_at_start.usage.model_dump(mode="json"), "tasks": self.spent_at_start.tasks},
            "level": self.level,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SharedBound:
        """Return the bound from the JSON of `to_json`."""
        spent_at_start = Spent(Usage.model_validate(value["spent"]["usage"]), int(value["spent"]["tasks"]))
        return cls(UUID(value["conversation"]), limits_from_json(value["limits"]), spent_at_start, int(value["level"]))


@runtime_checkable
class Delegation(Protocol):
    """Starts, watches and stops the tasks of a conversation. Failures of a child are returned, not raised.

    If the store is unreachable or the broker is closed, all methods raise `Unavailable`; if the parent has lost its
    lease, they raise `Conflict`. In both cases nothing is written.

    Source: the tasks of agentic_patterns (`TaskBroker`), seen from the conversation that delegates.
    """

    @property
    def log(self) -> EventStore:
        """The store that contains the conversations of the tasks."""
        ...

    @property
    def pool(self) -> McpPool:
        """The pool of MCP servers for all conversations of this process, delegating ones and those of tasks."""
        ...

    async def start(self, asking: Asking, agent: str, prompt: str, *, background: bool) -> Child:
        """Start a task and return when it is committed. A repeated call returns the existing task.

        Args:
            background: Whether to queue the task. If not, it is claimed in the same transaction, because the caller
                waits for it.

        Raises:
            NotFound: No sub-agent has that name; `details` has `known` and `nearest`.
            LimitExceeded: A limit of the conversation or of an ancestor is reached; `details["limit"]` names it.
        """
        ...

    async def wait(
        self, asking: Asking, tasks: Collection[str] | None = None, timeout: float | None = None
    ) -> tuple[Child, ...]:
        """Return the state of `tasks` as soon as one of them ends or asks for input, or after `timeout`.

        Args:
            tasks: Ids of the tasks; None for all tasks of this conversation whose end was not reported yet.
            timeout: Maximum time in seconds; None for no limit.

        Raises:
            NotFound: This conversation has no task with one of the ids.
        """
        ...

    async def result(self, asking: Asking, task_id: str) -> Child:
        """Return the state of a task; `task_id` is its id or a unique prefix of at least 8 characters.

        Raises:
            NotFound: This conversation has no task with this id.
        """
        ...

    async def cancel(self, asking: Asking, task_id: str) -> Child:
        """Cancel a task and return its state; a task that has already ended is unchanged.

        Raises:
            NotFound: This conversation has no task with this id.
        """
        ...

    async def read_spent(self, conversation: UUID) -> Spent:
        """Return the usage of a conversation and its descendants. One SQL statement."""
        ...

    async def run(
        self, conversation: UUID, message: str | None, key: str, check: JsonObject | None, *, queue: str | None = None
    ) -> Child:
        """Run a conversation as a task and return when it ends or asks for input. Cancelling pauses the run.

        Args:
            message: The message to send; None continues the conversation without one.
            key: Identifies the task: a repeated call with the same key returns the same task. If that task failed or
                was cancelled, the call continues its conversation in a new task.
            check: A command that judges the files when the agent has finished, before the task is completed.
            queue: Where the task waits; None for the agent's queue.

        Raises:
            Conflict: Another task is already running the conversation.
        """
        ...


class CallWaits(Exception):
    """Raised by a tool whose result must be provided later. The run ends when all parallel calls have finished.

    Args:
        kind: What the call waits for.
        request: The request, as JSON.
        task: The id of the task that asks, for the kind `task`.
        reason: Why the call waits, for the person who decides.
    """

    def __init__(self, kind: WaitKind, request: JsonObject, *, task: str | None = None, reason: str = "") -> None:
        super().__init__(f"the call waits ({kind})")
        self.kind: WaitKind = kind
        self.request = request
        self.task = task
        self.reason = reason


class RunStopped(Exception):
    """Raised by a tool if the whole run has failed. The call remains open and is run again later.

    Args:
        error: The error that ends the run.
    """

    def __init__(self, error: BoughError) -> None:
        super().__init__(error.message)
        self.error = error
