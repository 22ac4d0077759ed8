"""The result of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic
from uuid import UUID

from typing_extensions import TypeVar

from bough.events.model import FinishReason, Usage
from bough.events.record import Status
from bough.markdown import escape, fence, join, plain, table
from bough.types import JsonObject

T = TypeVar("T", default=Any)

OutputT = TypeVar("OutputT", default=Any)
"""The output type of the conversation that a method creates or opens."""

CHECK_PASSED = "check_passed"
"""`RunResult.reason` of a run that ended because its check passed."""


@dataclass(frozen=True, kw_only=True)
class WaitingCall:
    """A call that waits for a decision or a result.

    Attributes:
        kind: `approval`, `external` (an external result), `question`, or `task` (a sub-agent's task asks a question).
        risk: The risk that the analyzer assigned; None without one.
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
    """The result of a run of an agent that answers with `T`.

    Attributes:
        conversation: The id of the conversation.
        output: Text of the response that ended the run; empty if it has none.
        data: The validated value of the agent's `output_type`; None if the run has none, or the agent answers in text.
        finish_reason: Why that response ended; `none` without a response, or if the provider does not report it.
        partial: Whether the text is truncated. Running again continues it.
        reason: Empty if the run is finished. Otherwise the code of an error, the name of a limit, `interrupted`,
            `stuck`, `length`, `content_filter`, `no_finish`, `script_failed`, `nothing_fits`, or `check_passed` if the
            check of `run(until=…)` passed.
        waiting: The calls that wait for a decision or a result.
        steps: The number of model requests of this run, each with its calls.
        start: Seq of the first event of this run.
        stop: Seq after the last event of this run.
        limit: The limit that ended the run; None if no limit did.
        usage: Usage of this conversation since it was started or forked.
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

    def __repr__(self) -> str:
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        end = f"{self.status}, {self.reason}" if self.reason else self.status
        return f"<RunResult {self.conversation.hex[-8:]}, {end}, {plain(self.output, 60)!r}, {steps}>"

    def _repr_markdown_(self) -> str:
        waiting = [
            f"- {escape(call.tool)} waits ({escape(call.kind)}): {escape(json.dumps(call.arguments, default=repr))}"
            for call in self.waiting
        ]
        return join(
            "" if not self.output else fence(self.output),
            "\n".join(waiting),
            table(
                [
                    ("conversation", self.conversation.hex[-8:]),
                    ("status", f"{self.status}: {self.reason}" if self.reason else self.status),
                    ("data", "" if self.data is None else repr(self.data)),
                    ("steps", str(self.steps)),
                    ("usage", describe_usage(self.usage)),
                ]
            ),
        )


def describe_usage(usage: Usage) -> str:
    """Return requests, tokens and cost in one line."""
    cost = "" if usage.cost_usd is None else f", {usage.cost_usd:.4f} USD"
    return f"{usage.requests} requests, {usage.input_tokens} + {usage.output_tokens} tokens{cost}"


def list_waiting(waiting: Mapping[str, JsonObject]) -> tuple[WaitingCall, ...]:
    """Return the waiting calls of a state."""
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
