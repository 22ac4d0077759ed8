"""Where a fork may cut, and what it has to say about the calls that are open there.

Source: OpenHands `Conversation.fork()`; the rules are in docs/concepts/fork.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from uuid import UUID

from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State, ToolCall
from bough.errors import InvalidInput
from bough.events.model import Event, ToolInterrupted
from bough.events.store import Cut

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

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"invalid turn {self.number!r}", hint="give a whole number; 0 is before the first turn")


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
    journal: Journal, at: Cut | Turn | None, *, pending: Pending, snap: Snap = "exact"
) -> tuple[CutPoint, Journal]:
    """Return the cut that `at` names, and the log folded up to there; `journal` has caught up.

    What a fork has to know is in the state at the cut: at the head nothing is read, elsewhere what `Journal.cut` reads.

    Raises:
        InvalidInput: The cut is negative or beyond the head, there is no such turn, or a call that has started is to
            be carried over.
        NotFound: `at` names an event that the log does not have.
    """
    if pending not in ("close", "drop", "carry") or snap not in ("exact", "turn"):
        raise InvalidInput(f"pending={pending!r}, snap={snap!r}", hint="close, drop or carry; exact or turn")
    count = await _count(journal, at)
    cut_log = await journal.cut(count)
    if snap == "turn" and (end := await _end_of_turn(journal, cut_log.state)) != count:
        cut_log = await journal.cut(end)
    while pending == "drop" and cut_log.state.open_calls:
        cut_log = await journal.cut(cut_log.state.responded or 0)
    state = cut_log.state
    match pending:
        case "carry":
            carried = tuple(_never_started(call) for call in state.open_calls)
            return CutPoint(at=state.head, last=state.last, carried=carried), cut_log
        case _:
            closing = [
                ToolInterrupted(tool_call_id=call.id, tool=call.tool, reason=NOT_EXECUTED) for call in state.open_calls
            ]
            return CutPoint(at=state.head, last=state.last, closing=tuple(closing)), cut_log


async def _count(journal: Journal, at: Cut | Turn | None) -> int:
    head = journal.durable
    if isinstance(at, Turn):
        return await journal.find_turn(_require_int(at.number))
    if isinstance(at, UUID):
        return (await journal.store.locate(at, cid=journal.cid))[1] + 1
    count = head if at is None else _require_int(at)
    if not 0 <= count <= head:
        raise InvalidInput(
            f"cannot cut at {count}: the conversation has {head} events", hint=f"choose a number from 0 to {head}"
        )
    return count


def _require_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidInput(
        f"invalid cut {value!r}", hint="give a number of events, the id of the last one to keep, or Turn(n)"
    )


async def _end_of_turn(journal: Journal, state: State) -> int:
    """Return where the last turn ended that was over at a cut: before the next one's message, or at the head."""
    if not state.has_work:
        if state.head == journal.durable:
            return state.head
        ((_, _, kind),) = await journal.store.read_ids(journal.cid, state.head, state.head + 1)
        if kind == "UserMessage":
            return state.head
    return state.turned if state.turns else 0


def make_carried_changes(state: State, calls: tuple[str, ...]) -> dict[str, Any]:
    """Return what a `StateChanged` says of calls that a fork carries over: they wait for an approval of their own."""
    if not calls:
        return {}
    waiting = {
        id: {
            "kind": "approval",
            "tool": state.calls[id].tool,
            "arguments": state.calls[id].given,
            "risk": None,
            "reason": "it was called before the fork",
            "by": "fork",
        }
        for id in calls
    }
    return {"status": "waiting_for_confirmation", "waiting": waiting}


def _never_started(call: ToolCall) -> str:
    if call.started:
        raise InvalidInput(
            f"the call of {call.tool} has started and cannot be carried over", hint="choose pending=close or drop"
        )
    return call.id
