"""What people decide of calls that wait: told to the task that waits, or to the log where no task does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from bough.conversation import State
from bough.conversation.run.waiting.decision import CallDecision, choose_answer, choose_approved, choose_rejected
from bough.conversation.run.waiting.decision import decide as decide_calls
from bough.errors import Conflict, InvalidInput, NotFound
from bough.events.model import StateChanged, ToolRejected
from bough.events.record import ConversationRecord
from bough.server.access import Access
from bough.server.bodies.base import stamp
from bough.server.conversations.conversation import count_shown_chars, open_conversation
from bough.types import JsonObject

_DECIDED_BY = "decided by "


async def decide(
    access: Access, id: UUID, decision: CallDecision, *, run: bool, expected_head: int | None = None
) -> None:
    """Record a decision on calls that wait.

    Args:
        run: Whether the run continues once nothing waits any more.

    Raises:
        Conflict: A call that it names does not wait; the head is another one.
        LimitExceeded: A new run is needed, and the tenant has as many as it may have.
    """
    runs = access.services.runs
    task = await runs.find_asking(id)
    if task is not None:
        await runs.broker.provide_input(task.id, decision, run=run, expected_head=expected_head)
        return
    async with open_conversation(access, id) as conversation:
        events, waiting = decide_calls(conversation.state, decision)
        await conversation.append(*events)
    if run and not waiting and not await runs.is_live(id):  # a run that continues sees the decision itself
        await runs.start(access.caller, id)


@dataclass(frozen=True, kw_only=True)
class CallChoice:
    """What somebody says of one call that waits.

    Attributes:
        arguments: Others than it was made with, of one that is approved.
        value: Its result, of one that is answered.
    """

    call: str
    decision: Literal["approve", "reject", "answer"]
    reason: str = ""
    arguments: JsonObject | None = None
    value: Any = None


async def choose(access: Access, record: ConversationRecord, state: State, choice: CallChoice) -> CallDecision:
    """Return the decision on one call, as the caller's.

    Raises:
        InvalidInput: It waits for something else; or the answer is none of the choices.
    """
    by, call = access.caller.name, choice.call
    if choice.arguments is not None and choice.decision != "approve":
        raise InvalidInput("arguments: only of a call that is approved", hint='give decision "approve"')
    match choice.decision:
        case "approve":
            return choose_approved(state, [call], by=by, reason=choice.reason, arguments=choice.arguments)
        case "reject":
            return choose_rejected(state, [call], by=by, reason=choice.reason)
        case "answer":
            max_chars = await count_shown_chars(access, record, state)
            return choose_answer(state, call, choice.value, by=by, max_chars=max_chars)


async def list_approvals(access: Access, record: ConversationRecord) -> tuple[str, ...]:
    """Return the calls of a conversation that wait for an approval.

    Raises:
        Conflict: None does.
    """
    state = await access.services.states.state_of(record)
    call_ids = tuple(id for id, call in state.waiting.items() if call.get("kind", "approval") == "approval")
    if not call_ids:
        raise Conflict("no call waits for a confirmation", hint="see GET {id}")
    return call_ids


async def require_waiting(access: Access, record: ConversationRecord, call: str) -> State:
    """Return the folded conversation, in which a call waits.

    Raises:
        NotFound: There is no such call.
        Conflict: It was decided already; `details` says by whom, how and when.
    """
    state = await access.services.states.state_of(record)
    if call in state.waiting:
        return state
    earlier = await _find_decision(access, record.id, call)
    if earlier is None and call not in state.calls:
        raise NotFound("there is no such call")
    raise Conflict("the call is no longer waiting", hint="see GET {id}", details=earlier or {})


async def _find_decision(access: Access, id: UUID, call: str) -> dict[str, Any] | None:
    """Return who decided on a call, how and when; None where nobody did. O(changes since)."""
    kinds = ("ToolRejected", "StateChanged")
    async for stored in access.store.read(id, reverse=True, kinds=kinds):
        match event := stored.event:
            case ToolRejected() if event.tool_call_id == call:
                return {"by": event.by, "decision": "reject", "ts": stamp(stored.ts)}
            case StateChanged() if call in event.changes.get("approved", ()):
                by = (event.reason or "").removeprefix(_DECIDED_BY)
                return {"by": by, "decision": "approve", "ts": stamp(stored.ts)}
            case _:
                continue
    return None
