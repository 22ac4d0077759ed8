"""How a conversation hands work to other agents: the protocol of its broker, and what travels through it.

The conversation knows its broker by this protocol alone, so that the package which runs tasks can stand above the one
that it runs.
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
"""What a call waits for: a person's leave to run (`approval`), a result from outside (`external`), an answer of a
person (`question`), or another agent's task that asks (`task`)."""


class Asking(NamedTuple):
    """The conversation that hands work on, made by a tool from its context.

    Attributes:
        call: Id of the tool call; the same conversation and call always mean the same child.
        lease: The lease under which the conversation runs; None outside a run.
        rules: The rules in force for it, by the names of `GivenRules`; a child's are narrowed by them.
        bounds: What it shares with every task below it: its own bounds, then those of the conversations above it.
        readonly: Whether it may only read its workspace: a child that shares it may not do more.
        untold: Ids of its tasks whose end it was not told: those in the background, and what an interrupted call left.
    """

    conversation: UUID
    call: str
    lease: Lease | None
    rules: Mapping[str, Any]
    bounds: tuple[SharedBound, ...] = ()
    untold: tuple[str, ...] = ()
    readonly: bool = False


class Child(NamedTuple):
    """A task of another agent as it stands.

    Attributes:
        conversation: The task's own conversation.
        state: The value of a task's state, for example `completed` or `input_required`.
        result: Text of its answer; what it had so far where it did not complete.
        data: The validated value of the agent's `output_type`, as JSON; None where it answers with text.
        error: What went wrong, with its `code`; None where nothing did.
        usage: Its own and what it delegated, since its first event.
        request: What it asks for, while it waits for input.
        seconds: Since it was submitted.
        last: What it did last, in one line.
        workspace: The folder that was made for it, a copy or a git worktree; None where it worked in its parent's.
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
        """Whether it will never change again."""
        return self.state in ("completed", "failed", "cancelled")

    @property
    def is_asking(self) -> bool:
        """Whether it waits for somebody's answer."""
        return self.state == "input_required"


class Spent(NamedTuple):
    """What a conversation and its descendants used, and how many tasks they started."""

    usage: Usage
    tasks: int


class SharedBound(NamedTuple):
    """Bounds that a conversation shares with all tasks below it.

    Attributes:
        then: What it and those below it had used when the bounds began to count.
        level: How many conversations stand above it.
    """

    conversation: UUID
    limits: Limits
    then: Spent
    level: int = 0

    def to_json(self) -> JsonObject:
        """Return it as the first `TaskChanged` of a task has it."""
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
    """Starts, watches and stops the tasks of a conversation. Every end of a child is an answer, never an exception.

    All methods raise `Unavailable` where the store is away or the broker was left, and `Conflict` where the parent's
    lease is lost; nothing is written then.

    Source: the tasks of seed 004 (`TaskBroker`), seen from the conversation that delegates.
    """

    @property
    def log(self) -> EventStore:
        """Where the conversations are that it runs."""
        ...

    @property
    def pool(self) -> McpPool:
        """Runs the MCP servers of conversations that delegate to it, as of those that it runs: one in a process."""
        ...

    async def start(self, asking: Asking, agent: str, prompt: str, *, background: bool) -> Child:
        """Start a task and return when it is committed; for the same conversation and call, the one that is there.

        Args:
            background: Let it wait its turn; False claims it in the same transaction, to be waited for at once.

        Raises:
            NotFound: No sub-agent has that name; `details` has `known` and `nearest`.
            LimitExceeded: A bound of the conversation or of an ancestor is reached; `details["limit"]` names it.
        """
        ...

    async def wait(
        self, asking: Asking, tasks: Collection[str] | None = None, timeout: float | None = None
    ) -> tuple[Child, ...]:
        """Return all of `tasks` as they stand, as soon as one of them ended or asks, at the latest after `timeout`.

        Args:
            tasks: Their ids; None: all of this conversation whose end it was not told yet.
            timeout: In seconds; None waits for as long as it takes.

        Raises:
            NotFound: An id is not one of this conversation's tasks.
        """
        ...

    async def result(self, asking: Asking, task_id: str) -> Child:
        """Return a task as it stands; `task_id` is whole, or a unique prefix of at least 8 characters.

        Raises:
            NotFound: It is not one of this conversation's tasks.
        """
        ...

    async def cancel(self, asking: Asking, task_id: str) -> Child:
        """Cancel a task and return it, as cancelled or as it had ended before.

        Raises:
            NotFound: It is not one of this conversation's tasks.
        """
        ...

    async def spent(self, conversation: UUID) -> Spent:
        """Return what a conversation and its descendants used. One statement."""
        ...

    async def run(self, conversation: UUID, message: str | None, key: str, check: JsonObject | None) -> Child:
        """Run a conversation as a task and return when it has ended or asks.

        Args:
            message: What it is told first; None continues where it stands.
            key: The same key gives the same task.
            check: Run afterwards, before it counts as completed.

        Raises:
            Conflict: A live task runs it already.
        """
        ...


class CallWaits(Exception):
    """Raised by a tool whose result somebody else will give; the run ends once all parallel calls have theirs.

    Args:
        kind: What it waits for.
        request: What is asked, as JSON.
        task: The task that asks, for kind `task`.
        reason: Why, for the person who decides.
    """

    def __init__(self, kind: WaitKind, request: JsonObject, *, task: str | None = None, reason: str = "") -> None:
        super().__init__(f"the call waits ({kind})")
        self.kind: WaitKind = kind
        self.request = request
        self.task = task
        self.reason = reason


class RunStopped(Exception):
    """Raised by a tool when not the call but the run has failed: its call stays open and is run again later.

    Args:
        error: What ends the run.
    """

    def __init__(self, error: BoughError) -> None:
        super().__init__(error.message)
        self.error = error
