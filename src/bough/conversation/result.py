"""What a run came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic
from uuid import UUID

from typing_extensions import TypeVar

from bough.events.model import FinishReason, Usage
from bough.events.record import Status
from bough.types import JsonObject

T = TypeVar("T", default=Any)


@dataclass(frozen=True, kw_only=True)
class WaitingCall:
    """A call that waits for somebody.

    Attributes:
        kind: `approval`, `external` (a result from outside), `question`, or `task` (another agent's task asks).
        risk: What the analyzer said; None where none looked.
        reason: Why it waits.
    """

    id: str
    tool: str
    arguments: JsonObject
    kind: str = "approval"
    risk: str | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RunResult(Generic[T]):
    """The end of a run of an agent that answers with `T`.

    Attributes:
        conversation: Id of the conversation.
        output: Text of the response that ended this run; empty where it has none.
        data: The validated value of the agent's `output_type`; None where the run gave none, or it answers with text.
        finish_reason: Why that response ended; `none` where there is none, or it does not say.
        partial: The text is cut off; running again continues there.
        reason: Why it is not simply done: an error's code, the name of a limit, `interrupted`, `stuck`, `length`,
            `content_filter`, `no_finish`, `script_failed`, `nothing_fits`; empty where it is.
        waiting: The calls that wait for somebody.
        steps: Model requests and tool rounds of this run.
        start: Seq of the first event of this run; `stop`: seq after its last one.
        limit: The bound that ended the run, where one did.
        usage: Of this conversation since it was started or forked.
    """

    conversation: UUID
    status: Status
    output: str
    steps: int
    start: int
    stop: int
    usage: Usage
    limit: str | None = None
    data: T | None = None
    finish_reason: FinishReason = "none"
    partial: bool = False
    reason: str = ""
    waiting: tuple[WaitingCall, ...] = ()


def list_waiting(waiting: Mapping[str, JsonObject]) -> tuple[WaitingCall, ...]:
    """Return the calls that a state says are waiting."""
    return tuple(
        WaitingCall(
            id=id,
            tool=str(call.get("tool") or ""),
            arguments=call.get("arguments") or {},
            kind=str(call.get("kind") or "approval"),
            risk=call.get("risk"),
            reason=str(call.get("reason") or ""),
        )
        for id, call in waiting.items()
    )
