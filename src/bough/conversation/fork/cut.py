"""Where a fork may cut, and what it has to say about the calls that are open there.

Source: seed 001, `Conversation.fork()`; the rules are in docs/concepts/fork.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from bough.conversation.log.state import State, ToolOutcome, calls_of
from bough.errors import InvalidInput
from bough.events.model import Event, ModelResponded, ToolCalled, ToolInterrupted, UserMessage
from bough.events.record import StoredEvent
from bough.events.store import Cut, EventStore

Pending: TypeAlias = Literal["close", "drop", "carry"]
"""What becomes of calls that are open at the cut: closed in the fork, cut off with the response that made them, or
carried over, so that the fork waits for a new approval of each."""

Snap: TypeAlias = Literal["exact", "turn"]
"""Whether the cut is where it is asked for, or at the end of the last turn that was over by then."""

NOT_EXECUTED = "not executed in this fork"


@dataclass(frozen=True)
class Turn:
    """A cut after turn `number`: a message of a user with all that followed from it. 0 is before the first one."""

    number: int


@dataclass(frozen=True, kw_only=True)
class CutPoint:
    """A place to cut.

    Attributes:
        at: How many events are shared.
        last: The last shared event; None at 0.
        closing: Events that close the calls that are open there, for the fork alone.
        carried: Ids of calls that stay open, waiting for an approval of their own.
    """

    at: int
    last: UUID | None
    closing: tuple[Event, ...] = ()
    carried: tuple[str, ...] = ()


async def find_cut(
    store: EventStore,
    cid: UUID,
    at: Cut | Turn | None,
    *,
    head: int,
    pending: Pending,
    snap: Snap = "exact",
) -> CutPoint:
    """Return the cut that `at` names. Reads back to the latest model response only, or all where turns are counted.

    Raises:
        InvalidInput: The cut is negative or beyond the head, there is no such turn, or a call that has started is to
            be carried over.
        NotFound: `at` names an event that the log does not have.
    """
    if pending not in ("close", "drop", "carry") or snap not in ("exact", "turn"):
        raise InvalidInput(f"pending={pending!r}, snap={snap!r}", hint="close, drop or carry; exact or turn")
    count = await _turn(store, cid, at, head) if isinstance(at, Turn) else await _count(store, cid, at, head)
    if snap == "turn":
        count = max(end for end in [0, *await _turn_ends(store, cid, head)] if end <= count)
    response, since, last = await _latest_response(store, cid, count)
    if response is None:
        return CutPoint(at=count, last=last)
    answered = {event.tool_call_id for event in since if isinstance(event, ToolOutcome)}
    open_calls = [(id, tool) for id, tool in _calls(response) if id not in answered]
    match pending:
        case "drop" if open_calls:
            return await find_cut(store, cid, response.seq, head=head, pending=pending)
        case "carry":
            started = {event.tool_call_id for event in since if isinstance(event, ToolCalled)}
            return CutPoint(at=count, last=last, carried=_never_started(open_calls, started))
        case _:
            closing = [ToolInterrupted(tool_call_id=id, tool=tool, reason=NOT_EXECUTED) for id, tool in open_calls]
            return CutPoint(at=count, last=last, closing=tuple(closing))


async def _turn(store: EventStore, cid: UUID, turn: Turn, head: int) -> int:
    ends = await _turn_ends(store, cid, head, unfinished=True)
    if not 0 <= turn.number < len(ends):
        raise InvalidInput(
            f"there is no turn {turn.number}: the conversation has {len(ends) - 1}",
            hint=f"choose a number from 0 to {len(ends) - 1}",
        )
    return ends[turn.number]


async def _turn_ends(store: EventStore, cid: UUID, head: int, *, unfinished: bool = False) -> list[int]:
    """Return where turns end: before each message that came when nothing was left to do, and at the head.

    Args:
        unfinished: The head counts even where its turn is not over.
    """
    state, ends = State(), list[int]()
    async for stored in store.read(cid, 0, head):
        event = stored.event
        if isinstance(event, UserMessage) and not state.has_work:
            ends.append(stored.seq)
        state.apply(stored.seq, event)
    return [*ends, head] if unfinished or not state.has_work else ends


def _never_started(calls: Iterable[tuple[str, str]], started: set[str]) -> tuple[str, ...]:
    for id, tool in calls:
        if id in started:
            raise InvalidInput(
                f"the call of {tool} has started and cannot be carried over", hint="choose pending=close or drop"
            )
    return tuple(id for id, _ in calls)


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
) -> tuple[StoredEvent | None, list[Event], UUID | None]:
    """Return the last model response before the cut, what was called and returned since, and the last event's id."""
    since: list[Event] = []
    last: UUID | None = None
    async for stored in store.read(cid, 0, count, reverse=True):
        last = last or stored.id
        if stored.kind == "ModelResponded":
            return stored, since, last
        if stored.kind.startswith("Tool"):
            since.append(stored.event)
    return None, since, last


def _calls(response: StoredEvent) -> list[tuple[str, str]]:
    event = response.event
    return [(call.id, call.tool) for call in calls_of(event)] if isinstance(event, ModelResponded) else []
