"""Where a fork may cut, and what it has to say about the calls that are open there.

Source: seed 001, `Conversation.fork()`; the rules are in docs/concepts/fork.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from bough.conversation.state import ToolOutcome, tool_calls
from bough.errors import InvalidInput
from bough.events.model import Event, ModelResponded, ToolInterrupted
from bough.events.record import StoredEvent
from bough.events.store import Cut, EventStore

Pending: TypeAlias = Literal["close", "drop"]
"""What becomes of calls that are open at the cut: closed in the fork, or cut off with the response that made them."""

NOT_EXECUTED = "not executed in this fork"


@dataclass(frozen=True, kw_only=True)
class CutPoint:
    """A place to cut.

    Attributes:
        at: How many events are shared.
        last: The last shared event; None at 0.
        closing: Events that close the calls that are open there, for the fork alone.
    """

    at: int
    last: UUID | None
    closing: tuple[Event, ...] = ()


async def find_cut(store: EventStore, cid: UUID, at: Cut | None, *, head: int, pending: Pending) -> CutPoint:
    """Return the cut that `at` names. Reads back to the latest model response only.

    Raises:
        InvalidInput: The cut is negative or beyond the head.
        NotFound: `at` names an event that the log does not have.
    """
    count = await _count(store, cid, at, head)
    response, answered, last = await _latest_response(store, cid, count)
    if response is None:
        return CutPoint(at=count, last=last)
    open_calls = [call for call in _calls(response) if call[0] not in answered]
    if open_calls and pending == "drop":
        return await find_cut(store, cid, response.seq, head=head, pending=pending)
    closing = tuple(ToolInterrupted(tool_call_id=id, tool=tool, reason=NOT_EXECUTED) for id, tool in open_calls)
    return CutPoint(at=count, last=last, closing=closing)


async def _count(store: EventStore, cid: UUID, at: Cut | None, head: int) -> int:
    if isinstance(at, UUID):
        return (await store.locate(at, cid=cid))[1] + 1
    count = head if at is None else at
    if not 0 <= count <= head:
        raise InvalidInput(
            f"cannot cut at {count}: the conversation has {head} events", hint=f"choose a number from 0 to {head}"
        )
    return count


async def _latest_response(
    store: EventStore, cid: UUID, count: int
) -> tuple[StoredEvent | None, set[str], UUID | None]:
    """Return the last model response before the cut, the calls answered since, and the last event's id."""
    answered: set[str] = set()
    last: UUID | None = None
    async for stored in store.read(cid, 0, count, reverse=True):
        last = last or stored.id
        if stored.kind == "ModelResponded":
            return stored, answered, last
        if stored.kind in _OUTCOMES and isinstance(event := stored.event, ToolOutcome):
            answered.add(event.tool_call_id)
    return None, answered, last


_OUTCOMES = frozenset({"ToolReturned", "ToolFailed", "ToolRejected", "ToolInterrupted"})


def _calls(response: StoredEvent) -> list[tuple[str, str]]:
    event = response.event
    return tool_calls(event) if isinstance(event, ModelResponded) else []
