"""What a decision on waiting calls writes: pure functions of the folded state, for whoever appends them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bough.conversation.log.state import State
from bough.errors import Conflict, InvalidInput
from bough.events.model import Event, StateChanged, ToolRejected, ToolReturned
from bough.types import Json, JsonObject


@dataclass(frozen=True, kw_only=True)
class CallDecision:
    """What somebody says of calls that wait.

    Attributes:
        approve: These may run.
        reject: These may not; `reason` is told to the model.
        arguments: Other arguments for approved calls, by id.
        answers: Results of calls that asked, by id.
    """

    approve: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    reason: str = ""
    arguments: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    answers: Mapping[str, Json] = field(default_factory=dict[str, Json])
    by: str = "user"

    @property
    def calls(self) -> tuple[str, ...]:
        """Every call that it decides."""
        return (*self.approve, *self.reject, *self.answers)


def decide(state: State, decision: CallDecision) -> tuple[list[Event], dict[str, JsonObject]]:
    """Return the events of a decision, and the calls that go on waiting after it.

    Raises:
        Conflict: A call that it names does not wait.
        InvalidInput: It says two things of one call, or changes arguments of one that it does not approve.
    """
    waiting = state.waiting
    _require_waiting(waiting, decision.calls)
    if len(set(decision.calls)) < len(decision.calls):
        raise InvalidInput("a call was approved and rejected at once", hint="name each call once")
    if unknown := sorted(set(decision.arguments) - set(decision.approve)):
        raise InvalidInput(f"arguments were given for {unknown[0]}, which is not approved", hint="approve it as well")
    left = {id: call for id, call in waiting.items() if id not in decision.calls}
    events: list[Event] = [
        ToolRejected(tool_call_id=id, tool=_tool(state, id), by=decision.by, reason=decision.reason)
        for id in decision.reject
    ]
    events += [
        ToolReturned(tool_call_id=id, tool=_tool(state, id), result=value, by=decision.by)
        for id, value in decision.answers.items()
    ]
    changes: JsonObject = {"status": "waiting_for_confirmation" if left else "idle", "waiting": left}
    if decision.approve:
        changes["approved"] = list(decision.approve)
    if decision.arguments:
        changes["edited"] = {
            id: {"by": decision.by, "before": state.calls[id].given, "after": after}
            for id, after in decision.arguments.items()
        }
    if events or decision.approve:
        events.append(StateChanged(changes=changes, reason=f"decided by {decision.by}"))
    return events, left


def _require_waiting(waiting: Mapping[str, JsonObject], calls: Collection[str]) -> None:
    for call in calls:
        if call not in waiting:
            raise Conflict(
                f"call {call} does not wait for a decision",
                hint=f"waiting: {', '.join(waiting) or 'none'}",
                details={"call": call, "waiting": list(waiting)},
            )


def _tool(state: State, id: str) -> str:
    known = state.calls.get(id)
    return known.tool if known is not None else str(state.waiting[id].get("tool", ""))
