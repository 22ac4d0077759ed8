"""Turns: a message that began while nothing was left to do, and everything up to the next such message.

`State.turns` counts them. Cuts, comparisons and turn records all find turns by it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from uuid import UUID

from bough.conversation.log.kept_states import find_nearest
from bough.conversation.log.ledger import read_usage
from bough.conversation.log.state import NOTHING_USED, State, ToolCall, YieldingDecoder, add_usage, read_changes
from bough.errors import InvalidInput
from bough.events.model import (
    ErrorRaised,
    Event,
    FilesKept,
    LimitReached,
    ModelResponded,
    OutputGiven,
    ScriptRan,
    StateChanged,
    StuckDetected,
    ToolReturned,
    Usage,
    UserMessage,
)
from bough.events.record import Status, StoredEvent
from bough.events.store import EventStore
from bough.events.usage import USAGE_KINDS
from bough.types import Json, JsonObject

MARK = "recorded:"
"""Begins the `by` of an outcome that was copied from another log; the id of the copied event follows."""

_WRITING_TOOLS = frozenset({"write_file", "edit_file"})
_MESSAGE_FIELDS = {"content", "sender"}


@dataclass(frozen=True)
class Turn:
    """A cut after turn `number`: a user's message and everything up to the next one. 0 is before the first turn."""

    number: int

    def __post_init__(self) -> None:
        if isinstance(self.number, bool) or not isinstance(self.number, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"invalid turn {self.number!r}", hint="give a whole number; 0 is before the first turn")

    @property
    def cut(self) -> Turn:
        """The cut alone, without the fields of a record."""
        return Turn(self.number)


@dataclass(frozen=True, kw_only=True)
class TurnCall:
    """A tool call of a turn.

    Attributes:
        arguments: The arguments that the tool ran with: the model's, or those by which a person replaced them.
        ended: The kind of the outcome event, for example `ToolReturned`; empty while the call is open.
        result: The result, or the error or reason if there is no result.
        by: Who gave the outcome in place of the tool, for example `recorded:<id of an event>`; None if the tool did.
    """

    id: str
    tool: str
    arguments: JsonObject
    ended: str = ""
    result: Json = None
    by: str | None = None


@dataclass(frozen=True, kw_only=True)
class TurnRecord(Turn):
    """One turn of a log. As a `Turn` it is the cut after it: `fork(at=record)` keeps the turn.

    Attributes:
        number: From 1; the number that `Turn` counts by.
        conversation: The conversation that it was read from.
        start: Seq of the message.
        stop: Seq after the last event of the turn.
        message: The message that began it.
        calls: The tool calls, in the order in which the model made them.
        output: Text of the latest answer, that is, of a response without tool calls; empty without one.
        data: The value of the agent's `output_type`, as JSON; None without one.
        usage: Usage of the turn, that of its sub-agents' tasks included.
        files: Paths that bough's file tools and scripts wrote, each once, as recorded in the log. Files that other
            tools or commands wrote without reporting them are missing.
        status: The status at the end of the turn: `finished`, `paused`, `error`, `stuck`; of an open turn also `idle`
            before its run, `running` and `waiting_for_confirmation`.
        reason: The error's code, the name of the limit, `stuck` or `interrupted`; empty if the turn simply ended.
        is_open: Whether there is work left: a run would continue the turn. Only the last turn can be open.
    """

    conversation: UUID
    start: int
    stop: int
    message: UserMessage
    calls: tuple[TurnCall, ...] = ()
    output: str = ""
    data: Json = None
    usage: Usage = NOTHING_USED
    files: tuple[str, ...] = ()
    status: Status = "idle"
    reason: str = ""
    is_open: bool = False

    def as_json(self) -> JsonObject:
        """Return the fields as JSON."""
        values = {name: getattr(self, name) for name in ("number", "start", "stop", "output", "data", "status")}
        return values | {
            "conversation": str(self.conversation),
            "message": {"id": str(self.message.id), **self.message.model_dump(mode="json", include=_MESSAGE_FIELDS)},
            "calls": [asdict(call) for call in self.calls],
            "usage": self.usage.model_dump(),
            "files": list(self.files),
            "reason": self.reason,
            "is_open": self.is_open,
        }


async def fold_to_turn(
    store: EventStore, cid: UUID, turns: int | None = None, *, start: State | None = None, head: int | None = None
) -> State:
    """Return the state at the end of a log, or at the message that begins the turn after `turns` if there is one.

    Reads the events since the latest kept state before that: at most about `STEP`, plus the events of one response.

    Args:
        turns: The number of turns after which to stop; None folds the whole log.
        start: A state of this log with at most `turns` turns, if the caller has one.
        head: The number of events to fold at most; None for all.
    """
    state = start or State()
    nearest = await find_nearest(store, cid, head, turns)
    if nearest is not None and nearest.state is not None and nearest.state.head > state.head:
        state = nearest.state
    state, decoder = state.copy(), YieldingDecoder()
    async for stored in store.read(cid, state.head, head):
        state.apply(stored.seq, await decoder.decode(stored))
        if turns is not None and state.turns > turns:
            break
    return state


async def read_turns(conversation: UUID, events: AsyncIterator[StoredEvent]) -> list[TurnRecord]:
    """Return the turns of a log, read from its first event on. O(events); holds the results of all calls.

    Args:
        conversation: The conversation whose log it is.
    """
    return [turn async for turn in _iterate_turns(conversation, events, State())]


async def read_turn_page(
    store: EventStore, cid: UUID, first: int, limit: int, *, head: int
) -> tuple[list[TurnRecord], int | None]:
    """Return some turns of a log, and the number of the turn after them; None at the end.

    Reads the events of these turns, and at most about `STEP` before them.

    Args:
        first: The number of the first turn.
        limit: How many turns to return at most.
        head: The number of events to read at most.
    """
    state = await fold_to_turn(store, cid, first - 1, head=head)
    turns: list[TurnRecord] = []
    if state.turns < first:
        return turns, None
    async with (
        aclosing(store.read(cid, state.turn_start, head)) as events,
        aclosing(_iterate_turns(cid, events, state)) as records,
    ):
        async for turn in records:
            turns.append(turn)
            if len(turns) == limit:
                break
    return turns, turns[-1].number + 1 if turns[-1].stop < head else None


async def _iterate_turns(
    conversation: UUID, events: AsyncIterator[StoredEvent], state: State
) -> AsyncGenerator[TurnRecord]:
    """Iterate the turns of a log.

    Args:
        events: All events of the log; or those from the last event in `state` on, which is the message of a turn.
        state: The fold of the log up to there. It is changed.
    """
    decoder = YieldingDecoder()
    reader: _TurnReader | None = None
    async for stored in events:
        event = await decoder.decode(stored)
        if stored.seq >= state.head:
            state.apply(stored.seq, event)
        if isinstance(event, UserMessage) and state.turns and state.turn_start == stored.seq:
            if reader is not None:
                yield reader.make_record(conversation, stop=stored.seq, is_open=False)
            reader = _TurnReader(number=state.turns, start=stored.seq, message=event)
        elif reader is not None:
            reader.watch(event, state)
    if reader is not None:
        is_open = state.has_work or state.status == "running"
        yield reader.make_record(conversation, stop=state.head, is_open=is_open)


@dataclass(kw_only=True)
class _TurnReader:
    """Collects the fields of one turn's record from its events.

    Attributes:
        calls: The calls of the turn's responses: the same objects as in the state, which adds their outcomes.
        marks: Ids of the recorded events from which outcomes were copied, by index in `calls`. Only for outcomes that
            do not have the id themselves.
    """

    number: int
    start: int
    message: UserMessage
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    output: str = ""
    data: Json = None
    usage: Usage = NOTHING_USED
    files: dict[str, None] = field(default_factory=dict[str, None])
    status: Status = "idle"
    reason: str = ""
    marks: dict[int, str] = field(default_factory=dict[int, str])

    def watch(self, event: Event, state: State) -> None:
        """Add an event that follows the message, and that `state` has folded."""
        if event.kind in USAGE_KINDS or event.kind == "TaskEnded":
            self.usage = add_usage(self.usage, read_usage(event)[1] or NOTHING_USED)
        match event:
            case ModelResponded():
                self.calls += state.calls.values()
                self.output = self.output if state.calls else state.output
            case OutputGiven():
                self.data = event.data
            case StateChanged():
                self._apply_changes(event)
            case FilesKept() | ScriptRan() | ToolReturned():
                self.files |= dict.fromkeys(_list_files(event, state))
            case _:
                if self.status != "finished":  # an event after the run, such as a failed condensation, ends no run
                    self.reason = _find_reason(event) or self.reason

    def make_record(self, conversation: UUID, *, stop: int, is_open: bool) -> TurnRecord:
        """Return the record of the turn."""
        has_no_end = self.status in ("idle", "running")  # the messages were imported without runs, or a run was killed
        return TurnRecord(
            number=self.number,
            conversation=conversation,
            start=self.start,
            stop=stop,
            message=self.message,
            calls=tuple(_describe_call(call, self.marks.get(index)) for index, call in enumerate(self.calls)),
            output=self.output,
            data=self.data,
            usage=self.usage,
            files=tuple(self.files),
            status="finished" if has_no_end and not is_open else self.status,
            reason=self.reason,
            is_open=is_open,
        )

    def _apply_changes(self, event: StateChanged) -> None:
        """Add the marks of outcomes, the status and the reason that a `StateChanged` records."""
        changes = read_changes(event.changes)
        marks: JsonObject = changes.get("recorded", {})
        for id, mark in marks.items():
            # The latest call with that id: some models use an id again in another response.
            index = max((index for index, call in enumerate(self.calls) if call.id == id), default=-1)
            self.marks[index] = str(mark)
        status: Status | None = changes.get("status")
        if status is None:
            return
        self.status = status
        if status in ("running", "finished"):
            self.reason = ""
        elif status == "paused":
            self.reason = event.reason or self.reason


def _list_files(event: FilesKept | ScriptRan | ToolReturned, state: State) -> tuple[str, ...]:
    """Return the paths that an event says were written."""
    match event:
        case FilesKept():
            return event.paths if event.by == "tool" else ()
        case ScriptRan():
            return event.output_files
        case ToolReturned():
            call = state.calls.get(event.tool_call_id)
            if call is None or event.tool not in _WRITING_TOOLS or event.by is not None:
                return ()
            return (str(call.parsed_arguments.get("path")),)


def _find_reason(event: Event) -> str:
    """Return why a run ends after an event; empty if it does not."""
    match event:
        case ErrorRaised():
            return event.code
        case LimitReached():
            return event.limit
        case StuckDetected():
            return "stuck"
        case _:
            return ""


def _describe_call(call: ToolCall, mark: str | None) -> TurnCall:
    outcome = call.outcome
    if outcome is None:
        return TurnCall(id=call.id, tool=call.tool, arguments=call.parsed_arguments)
    result: Json = getattr(outcome, "result", getattr(outcome, "error", getattr(outcome, "reason", None)))
    by = getattr(outcome, "by", None if mark is None else f"{MARK}{mark}")
    return TurnCall(
        id=call.id, tool=call.tool, arguments=call.parsed_arguments, ended=outcome.kind, result=result, by=by
    )
