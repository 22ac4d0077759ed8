"""Decisions of people on waiting calls, passed to the waiting task, or written to the log if no task waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast
from uuid import UUID

from bough.conversation import State
from bough.conversation.run.waiting.decision import CallDecision, choose_answer, choose_approved, choose_rejected
from bough.conversation.run.waiting.decision import decide as decide_calls
from bough.errors import Conflict, InvalidInput, NotFound
from bough.events.model import StateChanged, ToolCalled, ToolRejected
from bough.events.record import ConversationFilter, ConversationRecord, StoredEvent
from bough.server.access import Access
from bough.server.bodies.base import stamp
from bough.server.conversations.conversation import find_max_result_chars, open_conversation
from bough.types import JsonObject

_DECIDED_BY = "decided by "
_RECENT_CONVERSATIONS = 20
_RECENT_EVENTS = 40
"""How many events of a conversation are looked at for decisions of lately."""

_KINDS_OF_DECISIONS = ("ToolCalled", "ToolRejected", "StateChanged")
_NOT_PEOPLE = frozenset({"policy", "hook", "allow-list"})
"""What a rejection names as its author if no person made it."""


async def decide(
    access: Access, id: UUID, decision: CallDecision, *, run: bool, expected_head: int | None = None
) -> None:
    """Record a decision on waiting calls.

    Args:
        run: Whether the run continues once no call is waiting.

    Raises:
        Conflict: A named call is not waiting, or the log has another head.
        LimitExceeded: A new run is needed, and the tenant has the maximum number.
    """
    runs = access.services.runs
    while True:
        task = await runs.find_asking(id)
        if task is not None:
            await runs.broker.provide_input(task.id, decision, run=run, expected_head=expected_head)
            return
        async with open_conversation(access, id) as conversation:
            head = conversation.state.head
            events, waiting = decide_calls(conversation.state, decision)
            try:
                await conversation.append(*events)
                break
            except Conflict:
                # A call begins to wait before its task does, so a quick answer finds no task, and then a longer log.
                if expected_head is not None or (await access.store.get(id)).head == head:
                    raise
    if run and not waiting and not await runs.is_live(id):  # a run that continues sees the decision itself
        await runs.start(access.caller, id)


@dataclass(frozen=True, kw_only=True)
class CallChoice:
    """A person's decision on one waiting call.

    Attributes:
        arguments: Changed arguments of an approved call.
        value: The result of an answered call.
    """

    call: str
    decision: Literal["approve", "reject", "answer"]
    reason: str = ""
    arguments: JsonObject | None = None
    value: Any = None


async def choose(access: Access, record: ConversationRecord, state: State, choice: CallChoice) -> CallDecision:
    """Return the decision on one call, with the caller as its author.

    Raises:
        InvalidInput: The call waits for another kind of decision, or the answer is not one of its choices.
    """
    by, call = access.caller.name, choice.call
    if choice.arguments is not None and choice.decision != "approve":
        raise InvalidInput("arguments: only an approved call can have them", hint='send the decision "approve"')
    match choice.decision:
        case "approve":
            return choose_approved(state, [call], by=by, reason=choice.reason, arguments=choice.arguments)
        case "reject":
            return choose_rejected(state, [call], by=by, reason=choice.reason)
        case "answer":
            max_chars = await find_max_result_chars(access, record, state)
            return choose_answer(state, call, choice.value, by=by, max_chars=max_chars)


def choose_all(
    access: Access, state: State, calls: Sequence[str], decision: Literal["approve", "reject"]
) -> CallDecision:
    """Return one decision on several calls, with the caller as its author.

    Raises:
        InvalidInput: An approved call waits for an answer.
    """
    if decision == "approve":
        return choose_approved(state, calls, by=access.caller.name)
    return choose_rejected(state, calls, by=access.caller.name, reason="")


async def list_approvals(access: Access, record: ConversationRecord) -> tuple[str, ...]:
    """Return the calls of a conversation that wait for an approval.

    Raises:
        Conflict: No call is waiting.
    """
    state = await access.services.states.state_of(record)
    call_ids = tuple(id for id, call in state.waiting.items() if call.get("kind", "approval") == "approval")
    if not call_ids:
        raise Conflict("no call waits for a confirmation", hint="see GET {id}")
    return call_ids


async def require_waiting(access: Access, record: ConversationRecord, call: str) -> State:
    """Return the state of a conversation, after checking that a call in it is waiting.

    Raises:
        NotFound: The call does not exist.
        Conflict: It was decided already; `details` has the author, the decision and the time.
    """
    state = await access.services.states.state_of(record)
    if call in state.waiting:
        return state
    earlier = await _find_decision(access, record.id, call)
    if earlier is None and call not in state.calls:
        raise NotFound("there is no such call")
    raise Conflict("the call is no longer waiting", hint="see GET {id}", details=earlier or {})


async def _find_decision(access: Access, id: UUID, call: str) -> dict[str, Any] | None:
    """Return the author, kind and time of the decision on a call; None if undecided. O(changes since then)."""
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


@dataclass(frozen=True, kw_only=True)
class PastDecision:
    """A decision of a person on a call.

    Attributes:
        arguments: Empty if the call was not read.
    """

    conversation: UUID
    title: str | None
    seq: int
    tool: str
    arguments: JsonObject
    by: str
    decision: Literal["approve", "reject"]
    moment: datetime


async def list_decided(access: Access, limit: int) -> list[PastDecision]:
    """Return the latest decisions in the conversations that changed last, newest first.

    Reads at most 40 events of each of 20 conversations: a decision before them is in its timeline only.
    """
    page = await access.store.list(ConversationFilter(), None, _RECENT_CONVERSATIONS, "updated_desc")
    decisions = [decision for record in page.items for decision in await _list_decided_in(access, record)]
    return sorted(decisions, key=lambda decision: decision.moment, reverse=True)[:limit]


async def _list_decided_in(access: Access, record: ConversationRecord) -> list[PastDecision]:
    """Return the decisions in a conversation's own latest events, newest first."""
    # A fork shows its source's events, too; their decisions are listed once, with their owner.
    start = max(record.base, record.head - _RECENT_EVENTS)
    decisions: list[PastDecision] = []
    calls: dict[str, tuple[str, JsonObject]] = {}

    def add(stored: StoredEvent, call: tuple[str, JsonObject], by: str, decision: Literal["approve", "reject"]) -> None:
        tool, arguments = call
        decisions.append(
            PastDecision(
                conversation=record.id,
                title=record.title,
                seq=stored.seq,
                tool=tool,
                arguments=arguments,
                by=by,
                decision=decision,
                moment=stored.ts,
            )
        )

    async for stored in access.store.read(record.id, start, record.head, reverse=True, kinds=_KINDS_OF_DECISIONS):
        match event := stored.event:
            case ToolCalled():  # a call starts after its approval, so it is read before
                calls[event.tool_call_id] = event.tool, event.arguments
            case ToolRejected() if event.by not in _NOT_PEOPLE:
                add(stored, (event.tool, {}), event.by, "reject")
            case StateChanged() if isinstance(approved := event.changes.get("approved"), list):
                by = (event.reason or "").removeprefix(_DECIDED_BY)
                for id in cast("list[Any]", approved):
                    add(stored, calls.get(str(id), ("", {})), by, "approve")
            case _:
                continue
    return decisions
