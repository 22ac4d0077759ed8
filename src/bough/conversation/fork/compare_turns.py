"""Compares two conversations turn by turn, in pages. Neither log is read completely."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

from bough.conversation.fork.align import Pair, StepKey, align
from bough.conversation.log.ledger import read_usage
from bough.conversation.log.state import NOTHING_USED, State, ToolCall, YieldingDecoder, add_usage
from bough.conversation.log.turns import fold_to_turn
from bough.events.model import (
    ErrorRaised,
    Event,
    LimitReached,
    ModelResponded,
    ToolCalled,
    ToolOutcome,
    Usage,
    UserMessage,
)
from bough.events.record import ConversationRecord, Status
from bough.events.store import EventStore
from bough.events.usage import USAGE_KINDS
from bough.types import Json, JsonObject

MAX_STEPS = 500
"""Maximum number of steps that are returned for one turn."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a turn: a message, an answer of the model, a tool call with its outcome, or an error or limit.

    Attributes:
        seq: The seq of the message, answer or error; for a call, of its start, or else of the response that made it.
        text: The text of a message, an answer or an error; empty for a call.
        by: The sender of a message, the code of an error, or the name of a limit; else empty.
        ended: The kind of a call's outcome; empty while it is open.
        result: The result of a call, or the error or reason if there is no result.
    """

    seq: int
    kind: Literal["message", "answer", "call", "error"]
    tool: str = ""
    arguments: JsonObject = field(default_factory=dict[str, Json])
    text: str = ""
    by: str = ""
    ended: str = ""
    result: Json = None

    @property
    def key(self) -> StepKey:
        """The key by which the step is aligned."""
        if self.kind == "call":
            return StepKey(self.kind, self.tool, json.dumps(self.arguments, sort_keys=True))
        return StepKey(self.kind, self.by, self.text)

    def is_same(self, other: Step) -> bool:
        """Whether both steps did the same with the same result."""
        return self.key == other.key and (self.ended, self.result) == (other.ended, other.result)


@dataclass(frozen=True, kw_only=True)
class TurnSide:
    """The part of a turn that the other conversation does not share.

    Attributes:
        start: Seq of the first event.
        stop: Seq after the last event.
        steps: At most `MAX_STEPS`.
        omitted: How many further steps there are.
        status: The status of the conversation at the end of the turn.
    """

    number: int
    start: int
    stop: int
    steps: tuple[Step, ...]
    omitted: int
    usage: Usage
    status: Status


@dataclass(frozen=True, kw_only=True)
class TurnPair:
    """The turns of one number in both conversations.

    Attributes:
        a: None if the first conversation has no such turn.
        b: None if the second one has none.
        steps: The corresponding steps of both sides, by index.
    """

    a: TurnSide | None
    b: TurnSide | None
    steps: tuple[Pair, ...]


@dataclass(frozen=True, kw_only=True)
class TurnComparison:
    """A page of turns.

    Attributes:
        common: How many events both conversations share.
        next_turn: The number of the turn after the page; None at the end.
    """

    common: int
    turns: tuple[TurnPair, ...]
    next_turn: int | None


async def compare_turns(
    store: EventStore, a: ConversationRecord, b: ConversationRecord, *, first: int | None = None, limit: int = 20
) -> TurnComparison:
    """Return the turns of two conversations after their common events, side by side.

    Reads the events of these turns, and at most about 100 before them; see `fold_to_turn`.

    Args:
        first: The number of the first turn; None begins after the common events.
        limit: How many turns to return at most.
    """
    ancestor = await store.common_ancestor(a.id, b.id)
    common = min(0 if ancestor is None else ancestor[1], a.head, b.head)
    sides: list[dict[int, TurnSide]] = []
    for record in (a, b):
        state = await fold_to_turn(store, record.id, head=common)
        if first is not None and first > state.turns:
            state = await fold_to_turn(store, record.id, first - 1, head=record.head)
            if state.turns < first:
                sides.append({})
                continue
            start = state.turn_start
        else:
            start = common
        turns: dict[int, TurnSide] = {}
        async with aclosing(_read_sides(store, record, start, state)) as reader:
            async for side in reader:
                # Between the cut and the next message, a fork has only events about itself.
                if side.steps:
                    turns[side.number] = side
                # One turn more than the page holds: it tells that there is another page.
                if len(turns) > limit:
                    break
        sides.append(turns)
    numbers = sorted(sides[0].keys() | sides[1].keys())
    pairs = [_pair_turns(sides[0].get(number), sides[1].get(number)) for number in numbers[:limit]]
    next_turn = numbers[limit] if len(numbers) > limit else None
    return TurnComparison(common=common, turns=tuple(pairs), next_turn=next_turn)


def _pair_turns(a: TurnSide | None, b: TurnSide | None) -> TurnPair:
    steps_a, steps_b = ([] if side is None else [step.key for step in side.steps] for side in (a, b))
    return TurnPair(a=a, b=b, steps=tuple(align(steps_a, steps_b)))


async def _read_sides(
    store: EventStore, record: ConversationRecord, start: int, state: State
) -> AsyncGenerator[TurnSide]:
    """Yield the turns of a log from seq `start` on.

    Args:
        state: The fold of the log before `start`, or with the message at `start`. It is changed.
    """
    decoder, reader = YieldingDecoder(), _SideReader(state.turns, start, list(state.open_calls))
    async with aclosing(store.read(record.id, start, record.head)) as events:
        async for stored in events:
            # The status before the event: a message of the next turn may already have changed it.
            event, status = await decoder.decode(stored), state.status
            # The state may already have the message that begins the page: folded twice, it would count as two turns.
            if stored.seq >= state.head:
                state.apply(stored.seq, event)
            if isinstance(event, UserMessage) and state.turns and state.turn_start == stored.seq:
                yield reader.make_side(stored.seq, status)
                reader = _SideReader(state.turns, stored.seq, [])
            reader.watch(stored.seq, event, state)
    yield reader.make_side(record.head, state.status)


class _SideReader:
    """Collects the steps of one turn.

    Args:
        open_calls: Calls that were made before the first event and have no outcome yet.
    """

    def __init__(self, number: int, start: int, open_calls: list[ToolCall]) -> None:
        self._number = number
        self._start = start
        self._steps: list[Step | _CallStep] = [_CallStep(call, start) for call in open_calls]
        self._call_steps = {step.call.id: step for step in self._steps if isinstance(step, _CallStep)}
        self._usage = NOTHING_USED
        self._omitted = 0

    def watch(self, seq: int, event: Event, state: State) -> None:
        """Add an event that `state` has folded."""
        # Only these events: others repeat usage that one of these has reported.
        if event.kind in USAGE_KINDS or event.kind == "TaskEnded":
            self._usage = add_usage(self._usage, read_usage(event)[1] or NOTHING_USED)
        match event:
            case UserMessage():
                self._add(Step(seq=seq, kind="message", text=event.plain, by=event.sender))
            case ModelResponded():
                text = "".join(
                    str(part.get("content", ""))
                    for part in event.response.get("parts", ())
                    if part.get("part_kind") == "text"
                )
                if text:
                    self._add(Step(seq=seq, kind="answer", text=text))
                # Some models use the id of a call again in a later response.
                self._call_steps = {call.id: _CallStep(call, seq) for call in state.calls.values()}
                for call_step in self._call_steps.values():
                    self._add(call_step)
            case ToolCalled() if event.tool_call_id in self._call_steps:
                self._call_steps[event.tool_call_id].seq = seq
            case ErrorRaised():
                self._add(Step(seq=seq, kind="error", text=event.message, by=event.code))
            case LimitReached():
                text = f"{event.value:g} of {event.bound:g}"
                self._add(Step(seq=seq, kind="error", text=text, by=event.limit))
            case _:
                pass

    def make_side(self, stop: int, status: Status) -> TurnSide:
        """Return the turn."""
        steps = tuple(step.make_step() if isinstance(step, _CallStep) else step for step in self._steps)
        return TurnSide(
            number=self._number,
            start=self._start,
            stop=stop,
            steps=steps,
            omitted=self._omitted,
            usage=self._usage,
            status=status,
        )

    def _add(self, step: Step | _CallStep) -> None:
        if len(self._steps) < MAX_STEPS:
            self._steps.append(step)
        else:
            self._omitted += 1


@dataclass
class _CallStep:
    """A call and its seq. It is the object of the state, which adds the outcome later."""

    call: ToolCall
    seq: int

    def make_step(self) -> Step:
        outcome = self.call.outcome
        return Step(
            seq=self.seq,
            kind="call",
            tool=self.call.tool,
            arguments=self.call.parsed_arguments,
            ended="" if outcome is None else outcome.kind,
            result=None if outcome is None else _read_result(outcome),
        )


def _read_result(outcome: ToolOutcome) -> Json:
    return getattr(outcome, "result", getattr(outcome, "error", getattr(outcome, "reason", None)))
