"""Calls that wait for a person in the caller's conversations, and decisions about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import Path, Query
from pydantic import BaseModel, Field

from bough.events.record import ConversationFilter, ConversationRecord
from bough.server.access import Access, Approver, Reader
from bough.server.bodies.base import Form, ItemPage, Stamp, Success, stamp
from bough.server.bodies.tasks import CallAnswer
from bough.server.bounds.etag import IfMatch, parse_head, require_match, stale
from bough.server.conversations.conversation import find_waiting_since
from bough.server.conversations.deciding import CallChoice, choose, choose_all, decide, require_waiting
from bough.server.requests.routing import ConversationId, router
from bough.types import JsonObject

routes = router("Approvals")


class ApprovalQuery(Form):
    """The calls to list, and the page."""

    page_id: str | None = Field(default=None, max_length=200)
    limit: int = Field(default=50, ge=1, le=100)
    conversation: UUID | None = None


class WaitingApproval(BaseModel):
    """A waiting call, with its conversation."""

    conversation: UUID
    title: str | None
    agent: str | None
    head: int
    tool_call_id: str
    kind: str
    tool: str
    arguments: JsonObject
    risk: str | None
    reason: str
    since: Stamp
    question: str | None = None
    choices: list[Any] | None = None


class Decided(Success):
    """The decision was recorded."""

    head: int


@routes.get("/api/approvals")
async def list_waiting(query: Annotated[ApprovalQuery, Query()], access: Reader) -> ItemPage[WaitingApproval]:
    """List waiting calls, the longest waiting conversation first. All calls of a conversation are on one page."""
    if query.conversation is not None:
        return ItemPage(items=await _waiting_in(access, await access.store.get(query.conversation)))
    filter = ConversationFilter(status="waiting_for_confirmation")
    page = await access.store.list(filter, query.page_id, query.limit, "updated")
    items = [approval for record in page.items for approval in await _waiting_in(access, record)]
    return ItemPage(items=items, next_page_id=page.next_cursor)


@routes.post("/api/conversations/{id}/approvals/{tool_call_id}")
async def decide_call(
    id: ConversationId,
    tool_call_id: Annotated[str, Path(max_length=200)],
    body: CallAnswer,
    access: Approver,
    if_match: IfMatch = None,
) -> Decided:
    """Approve, reject or answer a waiting call. The run continues when no call of the conversation waits any more."""
    record = await access.store.get(id)
    require_match(record, if_match)
    state = await require_waiting(access, record, tool_call_id)
    choice = CallChoice(call=tool_call_id, **body.model_dump(exclude={"run"}))
    decision = await choose(access, record, state, choice)
    await decide(access, id, decision, run=body.run, expected_head=parse_head(if_match))
    return Decided(head=(await access.store.get(id)).head)


async def decide_together(
    access: Access, id: UUID, calls: Sequence[str], decision: Literal["approve", "reject"], *, head: int
) -> Decided:
    """Approve or reject several calls of one conversation in one transaction.

    Args:
        head: The head that the conversation must have.

    Raises:
        NotFound: The conversation, or a call, does not exist.
        Stale: The conversation has another head.
        Conflict: A call was decided already; `details` has the author, the decision and the time.
        InvalidInput: A call waits for an answer.
    """
    record = await access.store.get(id)
    state = await access.services.states.state_of(record)
    # Before the head is compared: who decided a call says more than that something has changed.
    for call in calls:
        await require_waiting(access, record, call)
    if record.head != head:
        raise stale(record.head)
    await decide(access, id, choose_all(access, state, calls, decision), run=True, expected_head=head)
    return Decided(head=(await access.store.get(id)).head)


async def _waiting_in(access: Access, record: ConversationRecord) -> list[WaitingApproval]:
    state = await access.services.states.state_of(record)
    approvals: list[WaitingApproval] = []
    if not state.waiting:
        return approvals
    since = stamp(await find_waiting_since(access.store, record))
    for id, details in state.waiting.items():
        call = state.calls.get(id)
        request: JsonObject = details.get("request") or {}
        approvals.append(
            WaitingApproval(
                conversation=record.id,
                title=record.title,
                agent=record.config.get("agent"),
                head=record.head,
                tool_call_id=id,
                kind=str(details.get("kind", "approval")),
                tool=str(details.get("tool", "")),
                arguments=call.parsed_arguments if call else {},
                risk=details.get("risk"),
                reason=str(details.get("reason") or ""),
                since=since,
                question=request.get("question"),
                choices=request.get("choices"),
            )
        )
    return approvals
