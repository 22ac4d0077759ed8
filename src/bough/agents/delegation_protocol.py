"""The protocol by which a conversation delegates work to other agents, and its data types.

Conversations depend on this protocol only, so that the package that runs tasks can depend on conversations.
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
    """The conversation that delegates, created by a tool from its context.

    Attributes:
        call: Id of the tool call; the same conversation and call always identify the same child.
        lease: The lease under which the conversation runs; None outside a run.
        rules: Its rules in force, by the names of `GivenRules`; they narrow those of the child.
        bounds: Shared with every task below it: its own bounds, then those of its ancestors.
        readonly: Whether its workspace is read-only, also for a child that shares it.
        changed_rules: Digests of rule files that its tools wrote; its children do not follow these either.
        untold: Ids of its tasks whose end was not reported to it yet: background tasks, and those of interrupted calls.
    """

    conversation: UUID
    call: str
    lease: Lease | None
    rules: Mapping[str, Any]
    bounds: tuple[SharedBound, ...] = ()
    untold: tuple[str, ...] = ()
    readonly: bool = False
    changed_rules: frozenset[str] = frozenset()


class Child(NamedTuple):
    """The current state of another agent's task.

    Attributes:
        conversation: The task's own conversation.
        state: The value of the task's state, for example `completed` or `input_required`.
        result: Text of its answer; a partial answer if it did not complete.
        data: The validated value of the agent's `output_type`, as JSON; None if it answers with text.
        error: The error message, with its `code`; None if there was no error.
        usage: Of the task and everything it delegated, since its first event.
        request: What it asks for while it waits for input.
        seconds: Since it was submitted.
        last: Its last action, in one line.
        workspace: The folder created for it, a copy or a git worktree; None if it works in its parent's folder.
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
        """Whether it has reached a final state."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def is_asking(self) -> bool:
        """Whether it waits for input."""
        return self.state == "input_required"


class Spent(NamedTuple):
    """The usage of a conversation and its descendants, and the number of tasks they started."""

    usage: Usage
    tasks: int


class SharedBound(NamedTuple):
    """Bounds that a conversation shares with all tasks below it.

    Attributes:
        then: The usage of it and its descendants when counting started.
        level: Number of ancestors of the conversation.
    """

    conversation: UUID
    limits: Limits
    then: Spent
    level: int = 0

    def to_json(self) -> JsonObject:
        """Return it as JSON, as recorded in the first `TaskChanged` of a task."""
        return {
            "conversation": str(self.conversation),
            "limits": self.limits.to_json(),
            "spent": {"usage": self.then.usage.model_dump(mode="json"), "tasks": self.then.tasks},
            "level": self.level,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SharedBound:
        """Return what `to_json` wrote."""
        then = Spent(Usage.model_validate(value["spent"]["usage"]), int(value["spent"]["tasks"]))
        return cls(UUID(value["conversation"]), limits_from_json(value["limits"]), then, int(value["level"]))


@runtime_checkable
class Delegation(Protocol):
    """Starts, watches and stops the tasks of a conversation. Failures of a child are returned, never raised.

    All methods raise `Unavailable` if the store is unreachable or the broker is closed, and `Conflict` if the parent's
    lease is lost; nothing is written then.

    Source: the tasks of agentic_patterns (`TaskBroker`), seen from the conversation that delegates.
    """

    @property
    def log(self) -> EventStore:
        """The store of the conversations that it runs."""
        ...

    @property
    def pool(self) -> McpPool:
        """Runs the MCP servers of all conversations in this process, those that delegate and those of tasks."""
        ...

    async def start(self, asking: Asking, agent: str, prompt: str, *, background: bool) -> Child:
        """Start a task and return when it is committed; the same conversation and call return the existing task.

        Args:
            background: Queue the task; False claims it in the same transaction, because the caller waits for it.

        Raises:
            NotFound: No sub-agent has that name; `details` has `known` and `nearest`.
            LimitExceeded: A bound of the conversation or of an ancestor is reached; `details["limit"]` names it.
        """
        ...

    async def wait(
        self, asking: Asking, tasks: Collection[str] | None = None, timeout: float | None = None
    ) -> tuple[Child, ...]:
        """Return the state of `tasks` as soon as one of them ends or asks for input, or after `timeout`.

        Args:
            tasks: Their ids; None for all tasks of this conversation whose end was not reported yet.
            timeout: In seconds; None for no timeout.

        Raises:
            NotFound: An id is not one of this conversation's tasks.
        """
        ...

    async def result(self, asking: Asking, task_id: str) -> Child:
        """Return the state of a task; `task_id` is its id or a unique prefix of at least 8 characters.

        Raises:
            NotFound: It is not one of this conversation's tasks.
        """
        ...

    async def cancel(self, asking: Asking, task_id: str) -> Child:
        """Cancel a task and return its state; a task that has already ended is unchanged.

        Raises:
            NotFound: It is not one of this conversation's tasks.
        """
        ...

    async def read_spent(self, conversation: UUID) -> Spent:
        """Return the usage of a conversation and its descendants. One statement."""
        ...

    async def run(self, conversation: UUID, message: str | None, key: str, check: JsonObject | None) -> Child:
        """Run a conversation as a task and return when it ends or asks for input.

        Args:
            message: Sent first; None continues the conversation.
            key: The same key returns the same task.
            check: A check to run before the task counts as completed.

        Raises:
            Conflict: Another live task is running it.
        """
        ...


class CallWaits(Exception):
    """Raised by a tool whose result comes from elsewhere; the run ends once all parallel calls have finished.

    Args:
        kind: What the call waits for.
        request: The request, as JSON.
        task: The task that asks, for kind `task`.
        reason: The reason, for the person who decides.
    """

    def __init__(self, kind: WaitKind, request: JsonObject, *, task: str | None = None, reason: str = "") -> None:
        super().__init__(f"the call waits ({kind})")
        self.kind: WaitKind = kind
        self.request = request
        self.task = task
        self.reason = reason


class RunStopped(Exception):
    """Raised by a tool if the run, not the call, has failed: the call stays open and is run again later.

    Args:
        error: The error that ends the run.
    """

    def __init__(self, error: BoughError) -> None:
        super().__init__(error.message)
        self.error = error
