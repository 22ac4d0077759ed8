"""What waits for a person: all calls in a list, one call on a page of its own, and the decisions about them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, TypeAlias, cast
from uuid import UUID

from bough.errors import BoughError, Conflict, InvalidInput, NotFound, Stale
from bough.html.fields import find_subject
from bough.html.numbers import count_of, format_age, parse_moment
from bough.server.bodies.tasks import CallAnswer
from bough.server.bounds.etag import format_tag
from bough.server.conversations.deciding import PastDecision, list_decided
from bough.server.routes.approvals import ApprovalQuery, WaitingApproval, decide_call, decide_together, list_waiting
from bough.types import Json, JsonObject
from bough.web.screen import Action, Visit, WebScreen, parse_body

_PAGE = 50
_PAST = 8
"""How many decisions of lately the screen shows."""

_WORDS: Mapping[str, str] = {"approve": "Approved", "reject": "Rejected"}
Decision: TypeAlias = Literal["approve", "reject", "answer"]
_BUTTONS: Mapping[str, Decision] = {"approve": "approve", "edit": "approve", "reject": "reject", "answer": "answer"}
"""The decision of each button of one call, by its name."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A waiting call as a form names it.

    Attributes:
        head: The head of the conversation when the form was drawn; a decision needs it.
    """

    conversation: UUID
    head: int
    call: str

    @classmethod
    def parse(cls, key: str) -> Ask:
        """Return the call that a field names.

        Raises:
            InvalidInput: It is not the key of a call.
        """
        conversation, _, position = key.partition("/")
        head, _, call = position.partition("/")
        try:
            return cls(conversation=UUID(conversation), head=int(head), call=call)
        except ValueError:
            raise InvalidInput("the form names no call", hint="reload the page") from None

    @property
    def key(self) -> str:
        """The name of the call in the form."""
        return f"{self.conversation}/{self.head}/{self.call}"


async def _read_list(visit: Visit) -> dict[str, Any]:
    page_id = visit.query.get("page_id")
    query = parse_body(ApprovalQuery, {"limit": _PAGE} | ({"page_id": page_id} if page_id else {}))
    page = await list_waiting(query, visit.access)
    asks = [_describe(visit, approval) for approval in page.items]
    decided = visit.query.get("decided", "")
    return {
        "title": "Approvals",
        "asks": asks,
        "past": [_describe_past(visit, decision) for decision in await list_decided(visit.access, _PAST)],
        "outcomes": _read_outcomes(visit),
        "decided": count_of(int(decided), "call") if decided.isdecimal() and len(decided) < 4 else "",
        "older": page.next_page_id,
    }


async def _read_one(visit: Visit) -> dict[str, Any]:
    id, call = visit.read_id(), visit.path["call"]
    page = await list_waiting(ApprovalQuery(limit=100), visit.access)
    own = await list_waiting(ApprovalQuery(conversation=id), visit.access)
    ask = next((_describe(visit, approval) for approval in own.items if approval.tool_call_id == call), None)
    addresses = [_address(approval) for approval in page.items]
    address = f"/approvals/{id}/{call}"
    place = addresses.index(address) if address in addresses else None
    return {
        "title": f"Review {ask['tool']}" if ask is not None else "Review",
        "ask": ask,
        "outcomes": _read_outcomes(visit) or ([] if ask is not None else [await _describe_gone(visit, id, call)]),
        "place": "approvals",
        "number": None if place is None else place + 1,
        "total": len(addresses),
        "previous": addresses[place - 1] if place else None,
        "following": addresses[place + 1] if place is not None and place + 1 < len(addresses) else None,
    }


def _address(approval: WaitingApproval) -> str:
    return f"/approvals/{approval.conversation}/{approval.tool_call_id}"


def _describe(visit: Visit, approval: WaitingApproval) -> dict[str, Any]:
    ask = Ask(conversation=approval.conversation, head=approval.head, call=approval.tool_call_id)
    now = visit.access.services.clock.now()
    since = parse_moment(approval.since) or now
    form = visit.form
    return {
        "key": ask.key,
        "call": ask.call,
        "address": _address(approval),
        "conversation": str(approval.conversation),
        "title": approval.title or "Untitled",
        "agent": approval.agent or "default",
        "head": approval.head,
        "kind": approval.kind,
        "tool": approval.tool,
        "arguments": approval.arguments,
        "text": form.get(f"arguments:{ask.call}") or json.dumps(approval.arguments, indent=2, ensure_ascii=False),
        "reason": form.get(f"reason:{ask.call}") or "",
        "risk": (approval.risk or "").lower(),
        "reasons": [reason for reason in approval.reason.split("; ") if reason],
        "age": format_age(now - since),
        "since": approval.since,
        "question": approval.question,
        "choices": [str(choice) for choice in approval.choices or ()],
        "is_call": approval.kind == "approval",
        "is_task": approval.kind == "task",
    }


def _describe_past(visit: Visit, decision: PastDecision) -> dict[str, Any]:
    return {
        "tool": decision.tool or "a call",
        "subject": find_subject(decision.arguments),
        "word": _WORDS[decision.decision].lower(),
        "is_approved": decision.decision == "approve",
        "by": decision.by or "someone",
        "age": format_age(visit.access.services.clock.now() - decision.moment),
    }


def _read_outcomes(visit: Visit) -> list[JsonObject]:
    details: JsonObject = (visit.problem or {}).get("details") or {}
    return details.get("outcomes") or []


async def _describe_gone(visit: Visit, id: UUID, call: str) -> JsonObject:
    """Return why a call does not wait: it was decided, or there is no such call."""
    try:
        await decide_together(visit.access, id, [call], "approve", head=-1)
    except BoughError as error:
        return _describe_failure(visit, call, error)
    raise NotFound("there is no such call")


async def _decide(visit: Visit) -> str:
    """Record the decisions of the form. If any was refused, the screen is shown again and tells which, and why."""
    targets, decision = _read_targets(visit)
    outcomes: list[JsonObject] = []
    by_conversation = sorted(targets, key=lambda ask: (ask.conversation, ask.head))
    for (id, head), group in groupby(by_conversation, key=lambda ask: (ask.conversation, ask.head)):
        calls = [ask.call for ask in group]
        try:
            await _decide_group(visit, id, head, calls, decision)
        except BoughError as error:
            if not _is_own(visit, error, decision):
                outcomes.append(_describe_failure(visit, ", ".join(calls), error))
    if not outcomes:
        return f"/approvals?decided={len(targets)}"
    recorded = len(targets) - len(outcomes)
    raise Conflict(
        "A decision was not recorded" if not recorded else "Some decisions were not recorded",
        details={"outcomes": outcomes},
    )


async def _decide_group(visit: Visit, id: UUID, head: int, calls: Sequence[str], decision: Decision) -> None:
    access, form = visit.access, visit.form
    single = calls[0]
    if decision == "answer":
        body: JsonObject = {"decision": "answer", "value": _read_answer(form.get(f"value:{single}"), form)}
    elif len(calls) > 1:
        await decide_together(access, id, calls, decision, head=head)
        return
    else:
        body = {"decision": decision, "reason": str(form.get(f"reason:{single}") or "")}
        if decision == "approve" and "edit" in form:
            body |= {"arguments": _read_arguments(form.get(f"arguments:{single}")), "reason": ""}
    try:
        await decide_call(id, single, parse_body(CallAnswer, body), access, format_tag(head))
    except Stale:
        # Who decided the call says more than that the conversation has changed.
        await decide_together(access, id, calls, "reject" if decision == "reject" else "approve", head=-1)


def _read_targets(visit: Visit) -> tuple[list[Ask], Decision]:
    """Return the calls that the pressed button is about: its own, or those that are ticked."""
    form = visit.form
    for name, decision in _BUTTONS.items():
        key = form.get(name)
        if isinstance(key, str):
            return [Ask.parse(key)], decision
    ticked = [Ask.parse(key) for key in form.getlist("call") if isinstance(key, str)]
    if not ticked:
        raise InvalidInput("no call is selected", hint="select calls, then approve or reject them")
    return ticked, "reject" if form.get("all") == "reject" else "approve"


def _read_arguments(text: object) -> JsonObject:
    try:
        arguments = json.loads(str(text))
    except ValueError as error:
        raise InvalidInput(f"the arguments are not JSON: {error}", hint="correct them, and approve again") from None
    if not isinstance(arguments, dict):
        raise InvalidInput("the arguments are not a JSON object", hint="correct them, and approve again")
    return cast("JsonObject", arguments)


def _read_answer(value: object, form: Mapping[str, Any]) -> Json:
    """Return an answer: a text, or for a call of another program JSON."""
    if "json" not in form:
        return str(value or "")
    try:
        return json.loads(str(value))
    except ValueError as error:
        raise InvalidInput(f"the result is not JSON: {error}", hint="correct it, and send it again") from None


def _is_own(visit: Visit, error: BoughError, decision: Decision) -> bool:
    """Whether the caller has recorded this decision already, for example with the first click of two."""
    details = error.details or {}
    return details.get("by") == visit.access.caller.name and details.get("decision") == decision


def _describe_failure(visit: Visit, call: str, error: BoughError) -> JsonObject:
    details = error.details or {}
    word = _WORDS.get(str(details.get("decision")))
    if word is not None:
        since = parse_moment(str(details.get("ts")))
        age = "" if since is None else f", {format_age(visit.access.services.clock.now() - since)}"
        return {"call": call, "text": f"{word} by {details.get('by') or 'someone'}{age}.", "tone": ""}
    match error:
        case Stale():
            return {"call": call, "text": "The conversation moved on. Look again before you decide.", "tone": "warn"}
        case NotFound():
            return {"call": call, "text": "The conversation was deleted, or was never here.", "tone": "bad"}
        case _:
            hint = f" {error.hint}" if error.hint else ""
            return {"call": call, "text": f"{error.message}.{hint}", "tone": "bad"}


LIST = WebScreen(
    path="/approvals", template="approvals.html", data=_read_list, modules=("approvals.js",), place="approvals"
)
REVIEW = WebScreen(
    path="/approvals/{id}/{call:path}", template="review.html", data=_read_one, modules=("approvals.js",)
)
DECIDE = Action(verb="decide", handle=_decide, screen=LIST, scopes=("conversations", "approve"))
