"""Decisions on waiting calls and the events that record them: pure functions of the conversation's state."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from bough.conversation.log.state import State
from bough.conversation.log.tool_result import limit_shown, take_out_files
from bough.errors import Conflict, InvalidInput
from bough.events.model import Event, StateChanged, ToolRejected, ToolReturned, UserMessage
from bough.types import Json, JsonObject, require_type


@dataclass(frozen=True, kw_only=True)
class CallDecision:
    """A decision on waiting calls.

    Attributes:
        approve: Ids of calls that may run.
        reject: Ids of calls that may not run.
        reason: The reason for the decision. The model is shown the reason for a rejection.
        arguments: Arguments that replace those of approved calls, by id.
        answers: Results of calls that wait for an answer, by id.
        shown: Maximum number of characters of an answer that the model is shown; None shows all.
        by: Who decides.
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
        """Ids of all calls that are decided."""
        return (*self.approve, *self.reject, *self.answers)


def decide(state: State, decision: CallDecision) -> tuple[list[Event], dict[str, JsonObject]]:
    """Return the events that record a decision, and the calls that still wait after it.

    Raises:
        Conflict: A call of the decision does not wait.
        InvalidInput: The decision names a call twice, or changes the arguments of a call that it does not approve.
    """
    for name, text in (("reason", decision.reason), ("by", decision.by)):
        require_type(text, str, name, "give a text")
    waiting = state.waiting
    _require_waiting(waiting, decision.calls)
    if len(set(decision.calls)) < len(decision.calls):
        raise InvalidInput("the decision names a call twice", hint="approve, reject or answer each call once")
    if unknown := sorted(set(decision.arguments) - set(decision.approve)):
        raise InvalidInput(f"arguments were given for {unknown[0]}, which is not approved", hint="approve it as well")
    still_waiting = {id: call for id, call in waiting.items() if id not in decision.calls}
    events: list[Event] = [
        ToolRejected(tool_call_id=id, tool=_find_tool_name(state, id), by=decision.by, reason=decision.reason)
        for id in decision.reject
    ]
    events += [_make_answer(state, decision, id, value) for id, value in decision.answers.items()]
    changes: JsonObject = {"status": "waiting_for_confirmation" if still_waiting else "idle", "waiting": still_waiting}
    if decision.approve:
        changes["approved"] = list(decision.approve)
    if decision.arguments:
        changes["edited"] = {
            id: {"by": decision.by, "before": state.calls[id].parsed_arguments, "after": after}
            for id, after in decision.arguments.items()
        }
        events += [_make_edit_message(state, decision, id) for id in decision.arguments]
    if events or decision.approve:
        why = f": {decision.reason}" if decision.reason and decision.approve else ""
        events.append(StateChanged(changes=changes, reason=f"decided by {decision.by}{why}"))
    return events, still_waiting


def choose_approved(
    state: State, calls: Sequence[str], *, by: str, reason: str = "", arguments: JsonObject | None = None
) -> CallDecision:
    """Return the decision to approve the given calls, or all that wait for an approval if none are given.

    Raises:
        Conflict: No call waits for an approval.
        InvalidInput: A call waits for an answer; `arguments` is not an object; or it was given for several calls.
    """
    if arguments is not None:
        _require_arguments(calls, arguments)
    chosen = tuple(calls) or _require_any_waiting(state, "approval")
    for id in chosen:
        if find_wait_kind(state, id) not in ("approval", None):
            raise InvalidInput(
                f"call {id} waits for an answer, not for an approval", hint=f"answer it: answer({id!r}, …)"
            )
    edited = {} if arguments is None else {chosen[0]: arguments}
    return CallDecision(approve=chosen, arguments=edited, by=by, reason=reason)


def choose_rejected(state: State, calls: Sequence[str], *, by: str, reason: str) -> CallDecision:
    """Return the decision to reject the given calls, or all waiting calls if none are given.

    Raises:
        Conflict: No call waits.
    """
    return CallDecision(reject=tuple(calls) or _require_any_waiting(state), reason=reason, by=by)


def choose_answer(state: State, call: str, value: Json, *, by: str, max_chars: int | None = None) -> CallDecision:
    """Return the decision that gives a waiting call a result.

    Args:
        max_chars: Maximum number of characters of the value that the model is shown; None shows all.

    Raises:
        InvalidInput: The value is not one of the choices; or the call waits for a task, so the task must be answered.
    """
    waiting = state.waiting.get(call, {})
    if find_wait_kind(state, call) == "task":
        raise InvalidInput(
            f"call {call} waits for the task {waiting.get('task')}, which asks for input",
            hint=f"answer the task: `bough tasks input {waiting.get('task')} …`",
        )
    require_choice(waiting.get("request"), value)
    return CallDecision(answers={call: value}, shown=max_chars, by=by)


def find_wait_kind(state: State, call: str) -> str | None:
    """Return what a call waits for: `approval`, `external`, `question` or `task`; None if it does not wait."""
    return str(state.waiting[call].get("kind") or "approval") if call in state.waiting else None


def require_choice(request: Any, answer: Json) -> None:
    """Check the answer to a question that may have choices.

    Raises:
        InvalidInput: The question has choices, and the answer is not one of them.
    """
    choices: Any = cast("JsonObject", request).get("choices") if isinstance(request, dict) else None
    if choices and answer not in choices:
        raise InvalidInput(
            f"{answer!r:.80} is not one of the choices", hint=f"choose one of: {', '.join(map(str, choices))}"
        )


def _make_answer(state: State, decision: CallDecision, id: str, value: Json) -> Event:
    result, files = take_out_files(value)
    tool = _find_tool_name(state, id)
    returned = ToolReturned(tool_call_id=id, tool=tool, result=result, files=files, by=decision.by)
    return returned if decision.shown is None else limit_shown(returned, decision.shown)


def _make_edit_message(state: State, decision: CallDecision, id: str) -> UserMessage:
    """Return the message that tells the model of edited arguments: its recorded response has the old ones."""
    after = json.dumps(decision.arguments[id], ensure_ascii=False)
    text = f"{decision.by} changed the arguments of your call {_find_tool_name(state, id)} ({id}); it runs with {after}"
    return UserMessage.text(text, sender="bough")


def _require_waiting(waiting: Mapping[str, JsonObject], calls: Collection[str]) -> None:
    for call in calls:
        if call not in waiting:
            raise Conflict(
                f"call {call} does not wait for a decision",
                hint=f"waiting: {', '.join(waiting) or 'none'}",
                details={"call": call, "waiting": list(waiting)},
            )


def _require_any_waiting(state: State, kind: str | None = None) -> tuple[str, ...]:
    """Return the ids of the waiting calls, or of those that wait for `kind`.

    Raises:
        Conflict: There are none.
    """
    call_ids = tuple(id for id in state.waiting if kind is None or find_wait_kind(state, id) == kind)
    if not call_ids:
        others = ", ".join(f"{id} ({find_wait_kind(state, id)})" for id in state.waiting)
        message = "no call waits for an approval" if kind else "no call waits"
        raise Conflict(message, hint=f"waiting: {others or 'none'}")
    return call_ids


def _require_arguments(calls: Sequence[str], arguments: object) -> None:
    if len(calls) != 1:
        raise InvalidInput(f"arguments were given for {len(calls)} calls", hint="give the id of one call")
    if not isinstance(arguments, dict):
        raise InvalidInput(
            f"the arguments of a call must be an object, not {type(arguments).__name__}",
            hint='for example {"path": "a"}',
        )


def _find_tool_name(state: State, id: str) -> str:
    call = state.calls.get(id)
    return call.tool if call is not None else str(state.waiting[id].get("tool", ""))
