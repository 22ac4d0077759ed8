"""A part of a log for a page: its events in bough's form, the events around it that complete it, and its turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bough.conversation.log.kept_states import find_nearest
from bough.conversation.log.state import State
from bough.conversation.log.turns import TurnRecord, fold_to_turn, read_turn_page
from bough.events.model import UserMessage
from bough.events.record import ConversationRecord
from bough.server.auth.owned import OwnedStore
from bough.server.bodies.events import encode_ours
from bough.server.reading import MAX_LOOKED_AT
from bough.types import JsonObject

_AROUND = 100
"""How many events before and after a part are read for the calls that it completes, and their outcomes."""

_MAX_TURN_EVENTS = 1000
"""A turn of more events is not added up."""

_MAX_OUTLINE_EVENTS = 2000
_MAX_FOLDED_EVENTS = 2000
"""How many events a page folds to number its turns; beyond, each message counts as a turn."""

_CALL_KINDS = frozenset({"ToolReturned", "ToolFailed", "ToolRejected", "ToolInterrupted"})


@dataclass(frozen=True, kw_only=True)
class LogPart:
    """The events `start` to `stop - 1` of a log.

    Attributes:
        events: These events, some before and some after, ordered by seq.
        turns: The number of the turn that an event of the part begins, by seq.
        first_turn: The turn to which the first event belongs, unless it begins one; 0 before the first turn.
        turn_starts: The seq at which a turn begins, by number, for turns of the part whose events were all read.
    """

    start: int
    stop: int
    events: Sequence[JsonObject]
    turns: Mapping[int, int]
    first_turn: int
    turn_starts: Mapping[int, int]


async def read_log_part(
    store: OwnedStore, record: ConversationRecord, start: int, stop: int, *, counted: tuple[int, int] = (0, 0)
) -> LogPart:
    """Return a part of a log. Reads the part, at most 200 events around it, and those of the turn it begins in.

    Args:
        counted: A seq up to `start`, and how many messages are before it, as an earlier part told. It is used where no
            kept state is near, so that a stream does not count all messages for each of its frames.

    Raises:
        CorruptLog: An event cannot be read.
    """
    start, stop = max(start, 0), min(stop, record.head)
    state = await _fold_near(store, record, start)
    if state is None:
        place, messages = counted if counted[0] <= start else (0, 0)
        first_turn = messages + await _count_messages(store, record, place, start)
        turned = 0
    else:
        first_turn, turned = state.turns, state.turn_start
    # Read from the turn's message on, because the totals at its end count all of its events.
    low = max(start - _AROUND, 0)
    if state is not None and first_turn and start - turned <= _MAX_TURN_EVENTS:
        low = min(low, turned)
    stored = [event async for event in store.read(record.id, low, min(stop + _AROUND, record.head))]
    turns: dict[int, int] = {}
    for event in stored:
        if not start <= event.seq < stop:
            continue
        if state is None:
            if event.kind == "UserMessage":
                turns[event.seq] = first_turn + len(turns) + 1
            continue
        state.apply(event.seq, event.event)
        if isinstance(event.event, UserMessage) and state.turn_start == event.seq and state.turns:
            turns[event.seq] = state.turns
    starts = {number: seq for seq, number in turns.items()}
    if state is not None and first_turn and turned >= low:
        starts[first_turn] = turned
    events = [encode_ours(event) for event in stored]
    return LogPart(
        start=start,
        stop=stop,
        events=[*events, *await _read_outcomes(store, record, events, stop)],
        turns=turns,
        first_turn=first_turn,
        turn_starts=starts,
    )


async def read_outline(store: OwnedStore, record: ConversationRecord, number: int, count: int) -> Sequence[TurnRecord]:
    """Return at most `count` turns up to turn `number`, fewer if they have many events."""
    if not await _is_near(store, record, record.head):
        return ()
    after = await fold_to_turn(store, record.id, number, head=record.head)
    stop = after.turn_start if after.turns > number else record.head
    first = max(number - count + 1, 1)
    while first <= number:
        state = await fold_to_turn(store, record.id, first - 1, head=record.head)
        # Read whole, as a page is drawn: a few long turns must not cost more than many short ones.
        if state.turns >= first and stop - state.turn_start <= _MAX_OUTLINE_EVENTS:
            turns, _ = await read_turn_page(store, record.id, first, number - first + 1, head=record.head)
            return turns
        first += max((number - first + 1) // 2, 1)
    return ()


async def _is_near(store: OwnedStore, record: ConversationRecord, seq: int) -> bool:
    """Whether a kept state is near before an event, as in every log that was not imported or copied."""
    nearest = await find_nearest(store, record.id, seq)
    kept_head = 0 if nearest is None or nearest.state is None else nearest.state.head
    return seq - kept_head <= _MAX_FOLDED_EVENTS


async def _fold_near(store: OwnedStore, record: ConversationRecord, seq: int) -> State | None:
    """Return the state before an event; None if no kept state is near."""
    return await fold_to_turn(store, record.id, head=seq) if await _is_near(store, record, seq) else None


async def _count_messages(store: OwnedStore, record: ConversationRecord, start: int, stop: int) -> int:
    """Return how many messages a part of a log has. O(events), of which no payload is read."""
    return sum(kind == "UserMessage" for _, _, kind in await store.read_ids(record.id, start, stop))


async def find_turn_start(store: OwnedStore, record: ConversationRecord, number: int) -> int:
    """Return the seq of the message that begins a turn; that of the last turn for a higher number. 0 without turns."""
    state = await fold_to_turn(store, record.id, max(number - 1, 0), head=record.head)
    return state.turn_start


async def read_for_search(
    store: OwnedStore, record: ConversationRecord, start: int
) -> tuple[Sequence[JsonObject], int | None]:
    """Return the next events to look for a text in, some around them, and where to go on; None at the end.

    At most `MAX_LOOKED_AT` events from `start` on. No event is validated, so that a damaged one is found, too.

    Raises:
        CorruptLog: A payload is not a JSON object.
    """
    stop = min(start + MAX_LOOKED_AT, record.head)
    low, high = max(start - _AROUND, 0), min(stop + _AROUND, record.head)
    events = [stored.as_json() async for stored in store.read(record.id, low, high)]
    return events, stop if stop < record.head else None


async def _read_outcomes(
    store: OwnedStore, record: ConversationRecord, events: Sequence[JsonObject], stop: int
) -> list[JsonObject]:
    """Return the outcomes of calls of the part that come later than the events that were read."""
    # The outcomes of calls that run side by side may be far away; without this they would look as if they were lost.
    open_calls = {
        event.get("tool_call_id") for event in events if event["kind"] == "ToolCalled" and event["seq"] < stop
    }
    open_calls -= {event.get("tool_call_id") for event in events if event["kind"] in _CALL_KINDS}
    if not open_calls:
        return []
    outcomes: list[JsonObject] = []
    last = events[-1]["seq"]
    later = store.read(record.id, last + 1, min(last + 1 + _MAX_TURN_EVENTS, record.head), kinds=_CALL_KINDS)
    async for stored in later:
        event = encode_ours(stored)
        if event.get("tool_call_id") in open_calls:
            open_calls.remove(event["tool_call_id"])
            outcomes.append(event)
        if not open_calls:
            break
    return outcomes
