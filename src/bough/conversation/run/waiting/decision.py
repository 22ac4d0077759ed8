"""What a decision on waiting calls writes: pure functions of the folded state, for whoever appends them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from bough.conversation.log.state import State
from bough.conversation.log.tool_result import limit_shown
from bough.errors import Conflict, InvalidInput
from bough.events.model import Event, StateChanged, ToolRejected, ToolReturned, UserMessage
from bough.types import Json, JsonObject, require_type


@dataclass(frozen=True, kw_only=True)
class CallDecision:
    """What somebody says of calls that wait.

    Attributes:
        approve: These may run.
        reject: These may not.
        reason: Why; of a rejection it is told to the model.
        arguments: Other arguments for approved calls, by id.
        answers: Results of calls that asked, by id.
        shown: How many characters of an answer the model is shown at most; None shows all.
    """

    approve: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    reason: str = ""
    arguments: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    answers: Mapping[str, Json] = field(default_factory=dict[str, Json])
    shown: int | None = None
    by: str = "user"

    @property
    def calls(self) -> tuple[str, ...]:
        """Every call that it decides."""
        return (*self.approve, *self.reject, *self.answers)


def decide(state: State, decision: CallDecision) -> tuple[list[Event], dict[str, JsonObject]]:
    """Return the events of a decision, and the calls that keep waiting after it.

    Raises:
        Conflict: A call that it names does not wait.
        InvalidInput: It says two things of one call, or changes arguments of one that it does not approve.
    """
    for name, text in (("reason", decision.reason), ("by", decision.by)):
        require_type(text, str, name, "give a text")
    waiting = state.waiting
    _require_waiting(waiting, decision.calls)
    if len(set(decision.calls)) < len(decision.calls):
        raise InvalidInput("a call was approved and rejected at once", hint="name each call once")
    if unknown := sorted(set(decision.arguments) - set(decision.approve)):
        raise InvalidInput(f"arguments were given for {unknown[0]}, which is not approved", hint="approve it as well")
    still_waiting = {id: call for id, call in waiting.items() if id not in decision.calls}
    events: list[Event] = [
        ToolRejected(tool_call_id=id, tool=_tool(state, id), by=decision.by, reason=decision.reason)
        for id in decision.reject
    ]
    events += [_answer(state, decision, id, value) for id, value in decision.answers.items()]
    changes: JsonObject = {"status": "waiting_for_confirmation" if still_waiting else "idle", "waiting": still_waiting}
    if decision.approve:
        changes["approved"] = list(decision.approve)
    if decision.arguments:
        changes["edited"] = {
            id: {"by": decision.by, "before": state.calls[id].given, "after": after}
            for id, after in decision.arguments.items()
        }
        events += [_tell_of_edit(state, decision, id) for id in decision.arguments]
    if events or decision.approve:
        why = f": {decision.reason}" if decision.reason and decision.approve else ""
        events.append(StateChanged(changes=changes, reason=f"decided by {decision.by}{why}"))
    return events, still_waiting


def choose_approved(
    state: State, calls: Sequence[str], *, by: str, reason: str = "", arguments: JsonObject | None = None
) -> CallDecision:
    """Return the decision that calls may run: those that are named, or all that wait for an approval.

    Raises:
        Conflict: No call waits for an approval.
        InvalidInput: A call waits for an answer; `arguments` come without exactly one call, or are not an object.
    """
    if arguments is not None:
        _require_arguments(calls, arguments)
    chosen = tuple(calls) or _list_waiting(state, "approval")
    if asks := next((id for id in chosen if kind_of(state, id) not in ("approval", None)), None):
        raise InvalidInput(
            f"call {asks} waits for an answer, not for an approval", hint=f"answer it: answer({asks!r}, …)"
        )
    edited = {} if arguments is None else {chosen[0]: arguments}
    return CallDecision(approve=chosen, arguments=edited, by=by, reason=reason)


def choose_rejected(state: State, calls: Sequence[str], *, by: str, reason: str) -> CallDecision:
    """Return the decision that calls may not run: those that are named, or all that wait.

    Raises:
        Conflict: No call waits.
    """
    return CallDecision(reject=tuple(calls) or _list_waiting(state), reason=reason, by=by)


def choose_answer(state: State, call: str, value: Json, *, by: str, max_chars: int | None = None) -> CallDecision:
    """Return the decision that a call has a result, given by somebody else.

    Args:
        max_chars: How many characters of it the model is shown at most.

    Raises:
        InvalidInput: The value is none of the choices; or the call waits for a task, which is answered there.
    """
    waiting = state.waiting.get(call, {})
    if kind_of(state, call) == "task":
        raise InvalidInput(
            f"call {call} waits for the task {waiting.get('task')}, which asks",
            hint=f"answer the task: `bough tasks input {waiting.get('task')} …`",
        )
    require_choice(waiting.get("request"), value)
    return CallDecision(answers={call: value}, shown=max_chars, by=by)


def kind_of(state: State, call: str) -> str | None:
    """Return what a call waits for: `approval`, `external`, `question` or `task`; None where it does not wait."""
    return str(state.waiting[call].get("kind") or "approval") if call in state.waiting else None


def require_choice(request: Any, answer: Json) -> None:
    """Check an answer to a question that has choices.

    Raises:
        InvalidInput: It is none of them.
    """
    choices: Any = cast("JsonObject", request).get("choices") if isinstance(request, dict) else None
    if choices and answer not in choices:
        raise InvalidInput(
            f"{answer!r:.80} is none of the choices", hint=f"choose one of: {', '.join(map(str, choices))}"
        )


def _answer(state: State, decision: CallDecision, id: str, value: Json) -> Event:
    returned = ToolReturned(tool_call_id=id, tool=_tool(state, id), result=value, by=decision.by)
    return returned if decision.shown is None else limit_shown(returned, decision.shown)


def _tell_of_edit(state: State, decision: CallDecision, id: str) -> UserMessage:
    """Return what the model is told beside the result: its own response stays as it was."""
    after = json.dumps(decision.arguments[id], ensure_ascii=False)
    text = f"{decision.by} changed the arguments of your call {_tool(state, id)} ({id}); it runs with {after}"
    return UserMessage.text(text, sender="bough")


def _require_waiting(waiting: Mapping[str, JsonObject], calls: Collection[str]) -> None:
    for call in calls:
        if call not in waiting:
            raise Conflict(
                f"call {call} does not wait for a decision",
                hint=f"waiting: {', '.join(waiting) or 'none'}",
                details={"call": call, "waiting": list(waiting)},
            )


def _list_waiting(state: State, kind: str | None = None) -> tuple[str, ...]:
    """Return the calls that wait, those of one kind where it is given; there must be one."""
    call_ids = tuple(id for id in state.waiting if kind is None or kind_of(state, id) == kind)
    if not call_ids:
        others = ", ".join(f"{id} ({kind_of(state, id)})" for id in state.waiting)
        message = "no call waits for an approval" if kind else "no call waits"
        raise Conflict(message, hint=f"waiting: {others or 'none'}")
    return call_ids


def _require_arguments(calls: Sequence[str], arguments: object) -> None:
    if len(calls) != 1:
        raise InvalidInput(
            f"arguments were given for {len(calls)} calls", hint="name the one call whose arguments they are"
        )
    if not isinstance(arguments, dict):
        raise InvalidInput(
            f"the arguments of a call are an object, not {type(arguments).__name__}", hint='for example {"path": "a"}'
        )


def _tool(state: State, id: str) -> str:
    call = state.calls.get(id)
    return call.tool if call is not None else str(state.waiting[id].get("tool", ""))
