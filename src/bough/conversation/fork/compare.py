"""Compares two conversations, and describes events of one in a message to the other."""

from __future__ import annotations

import filecmp
import json
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from types import NoneType
from typing import Literal, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from bough.conversation.log.state import NOTHING_USED, add_usage, list_calls
from bough.conversation.log.tool_result import clean
from bough.conversation.log.turns import Turn, fold_to_turn
from bough.errors import InvalidInput
from bough.events.model import (
    Condensed,
    Event,
    ModelResponded,
    StateChanged,
    ToolCalled,
    ToolOutcome,
    Usage,
    UserMessage,
)
from bough.events.record import StoredEvent
from bough.events.store import EventStore
from bough.types import Json, JsonObject, require_type

MAX_FILES = 20_000


@dataclass(frozen=True, kw_only=True)
class ComparedCall:
    """A tool call with its outcome.

    Attributes:
        ended: The kind of the outcome event; empty while the call is open.
        result: The result, or the error or reason if there is no result.
    """

    tool: str
    arguments: JsonObject
    ended: str = ""
    result: Json = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """The part of one conversation that the other does not share, up to the end of the comparison.

    Attributes:
        events: The events after the common ones, ordered by seq.
        calls: The tool calls of those events.
        usage: The usage of those events.
        stop: Seq after the last compared event.
        head: How many events the conversation has.
    """

    id: UUID
    events: tuple[StoredEvent, ...]
    calls: tuple[ComparedCall, ...]
    usage: Usage
    stop: int
    head: int


@dataclass(frozen=True, kw_only=True)
class CallDifference:
    """Consecutive tool calls of `a`, and the calls that `b` made instead. Either may be empty."""

    a: tuple[ComparedCall, ...]
    b: tuple[ComparedCall, ...]


@dataclass(frozen=True, kw_only=True)
class FileDifference:
    """A file that is not the same in both workspaces."""

    path: str
    change: Literal["only in a", "only in b", "differs"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two conversations that may share a beginning.

    Attributes:
        common: How many of the compared events they share; 0 if they are not related.
        calls: The differences in their tool calls.
        cost_usd: How much more `b` cost than `a` in the compared events after the common ones; None if unknown.
        files: The differences of their workspaces; empty if they have the same workspace.
    """

    common: int
    a: Side
    b: Side
    calls: tuple[CallDifference, ...]
    cost_usd: float | None
    files: tuple[FileDifference, ...]


class ComparedLogs(Protocol):
    """Read access to two logs, implemented by a store and by a client of a server."""

    async def common_ancestor(self, a: UUID, b: UUID) -> tuple[UUID, int] | None:
        """Return the conversation that wrote the last shared event, and the number of shared events; None for none."""
        ...

    def read(
        self, cid: UUID, start: int = 0, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[StoredEvent]:
        """Iterate events of one of the logs."""
        ...


class ComparedEnd(NamedTuple):
    """Where the comparison of a log ends.

    Attributes:
        stop: Seq after the last compared event.
        head: How many events the log has.
    """

    stop: int
    head: int


Ends: TypeAlias = tuple[ComparedEnd, ComparedEnd]


async def compare(
    store: EventStore, a: UUID, b: UUID, *, until: Turn | None = None, workspaces: tuple[Path, Path] | None = None
) -> Comparison:
    """Return the differences of two conversations; see `AsyncConversation.compare`."""
    return await compare_ranges(store, a, b, await find_ends(store, a, b, until), workspaces=workspaces)


async def find_ends(store: EventStore, a: UUID, b: UUID, until: Turn | None) -> Ends:
    """Return where a comparison ends. Reads what `fold_to_turn` reads, of each log.

    Args:
        until: The last turn to compare. None: the last turn that both have if the model has answered in both after the
            common events; otherwise the last turn of either.

    Raises:
        InvalidInput: `until` is not a turn, is before the first one, or neither conversation has it.
    """
    require_type(until, (Turn, NoneType), "until", "give Turn(n)")
    states = [await fold_to_turn(store, cid) for cid in (a, b)]
    counts = [state.turns for state in states]
    if until is None:
        ancestor = await store.common_ancestor(a, b)
        common = 0 if ancestor is None else ancestor[1]
        have_both_answered = all(state.response_seq is not None and state.response_seq >= common for state in states)
        last_turn = min(counts) if have_both_answered else max(counts)
    elif 1 <= until.number <= max(counts):
        last_turn = until.number
    else:
        raise InvalidInput(
            f"there is no turn {until.number} to compare: the conversations have {counts[0]} and {counts[1]}",
            hint=f"choose a number from 1 to {max(counts)}" if max(counts) else "send a message and run it first",
        )
    ends: list[ComparedEnd] = []
    for cid, state in zip((a, b), states, strict=True):
        stop = state.head if state.turns <= last_turn else (await fold_to_turn(store, cid, last_turn)).turn_start
        ends.append(ComparedEnd(stop, state.head))
    return ends[0], ends[1]


async def compare_ranges(
    store: ComparedLogs, a: UUID, b: UUID, ends: Ends, *, workspaces: tuple[Path, Path] | None = None
) -> Comparison:
    """Return the differences of two logs up to their ends. O(events after the common ones), and O(files)."""
    ancestor = await store.common_ancestor(a, b)
    common = min(0 if ancestor is None else ancestor[1], *(end.stop for end in ends))
    earlier_arguments = await _read_earlier_arguments(store, a, common)
    sides = [await _read_side(store, id, common, end, earlier_arguments) for id, end in zip((a, b), ends, strict=True)]
    costs = [side.usage.cost_usd for side in sides]
    return Comparison(
        common=common,
        a=sides[0],
        b=sides[1],
        calls=tuple(_diff_calls(sides[0].calls, sides[1].calls)),
        cost_usd=None if costs[0] is None or costs[1] is None else costs[1] - costs[0],
        files=tuple(_diff_files(*workspaces)) if workspaces and workspaces[0] != workspaces[1] else (),
    )


async def _read_earlier_arguments(store: ComparedLogs, id: UUID, stop: int) -> dict[str, JsonObject]:
    """Return the arguments of the calls that may be open at seq `stop`: those of the last response before it."""
    async for stored in store.read(id, 0, stop, reverse=True):
        if isinstance(stored.event, ModelResponded):
            return _read_arguments(stored.event)
    return {}


def _read_arguments(event: ModelResponded) -> dict[str, JsonObject]:
    return {call.id: call.parsed_arguments for call in list_calls(event)}


async def _read_side(
    store: ComparedLogs, id: UUID, common: int, end: ComparedEnd, earlier_arguments: Mapping[str, JsonObject]
) -> Side:
    events = tuple([stored async for stored in store.read(id, common, end.stop)])
    typed_events = [stored.event for stored in events]
    usage = NOTHING_USED
    for event in typed_events:
        if isinstance(event, (ModelResponded, Condensed)) and event.usage is not None:
            usage = add_usage(usage, event.usage)
    calls = tuple(_list_calls(typed_events, earlier_arguments))
    return Side(id=id, events=events, calls=calls, usage=usage, stop=end.stop, head=end.head)


def _list_calls(events: Iterable[Event], earlier_arguments: Mapping[str, JsonObject]) -> Iterable[ComparedCall]:
    """Return the calls in the order in which they started. A call that never started is placed where it ended.

    Args:
        earlier_arguments: Arguments of calls that were made before the first event, by id.
    """
    earlier_calls: list[ComparedCall] = []  # kept apart, because ids of calls are unique only within a response
    calls: dict[str, ComparedCall] = {}
    for event in events:
        if isinstance(event, ModelResponded):
            earlier_calls += calls.values()
            calls, earlier_arguments = {}, _read_arguments(event)
        elif isinstance(event, ToolCalled):
            calls[event.tool_call_id] = ComparedCall(tool=event.tool, arguments=event.arguments)
        elif isinstance(event, ToolOutcome):
            arguments = earlier_arguments.get(event.tool_call_id, {})
            call = calls.get(event.tool_call_id) or ComparedCall(tool=event.tool, arguments=arguments)
            result: Json = getattr(event, "result", getattr(event, "error", getattr(event, "reason", None)))
            calls[event.tool_call_id] = ComparedCall(
                tool=call.tool, arguments=call.arguments, ended=event.kind, result=result
            )
    return [*earlier_calls, *calls.values()]


def _diff_calls(a: Sequence[ComparedCall], b: Sequence[ComparedCall]) -> Iterable[CallDifference]:
    matcher = SequenceMatcher(None, [_dump_call(call) for call in a], [_dump_call(call) for call in b], autojunk=False)
    for kind, a_start, a_stop, b_start, b_stop in matcher.get_opcodes():
        if kind != "equal":
            yield CallDifference(a=tuple(a[a_start:a_stop]), b=tuple(b[b_start:b_stop]))


def _dump_call(call: ComparedCall) -> str:
    return json.dumps([call.tool, call.arguments, call.ended, call.result], sort_keys=True)


def _diff_files(a: Path, b: Path) -> Iterable[FileDifference]:
    files_a, files_b = _list_files(a), _list_files(b)
    for path in sorted(files_a | files_b):
        if path not in files_b:
            yield FileDifference(path=path, change="only in a")
        elif path not in files_a:
            yield FileDifference(path=path, change="only in b")
        elif not filecmp.cmp(a / path, b / path, shallow=False):
            yield FileDifference(path=path, change="differs")


def _list_files(root: Path) -> set[str]:
    """Return the paths of the regular files below a folder, except git's. Stops when there are more than 20,000."""
    paths: set[str] = set()
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in files:
            path = os.path.join(folder, name)
            if name != ".git" and os.path.isfile(path) and not os.path.islink(path):
                paths.add(os.path.relpath(path, root))
        if len(paths) > MAX_FILES:
            break
    return paths


def transcript(events: Iterable[StoredEvent]) -> str:
    """Return the messages, responses, calls and outcomes among the events as text."""
    lines: list[str] = []
    for stored in events:
        match stored.event:
            case UserMessage() as event:
                lines.append(f"{event.sender}: {event.plain}")
            case ModelResponded() as event:
                parts = event.response.get("parts", [])
                lines += [f"assistant: {part.get('content', '')}" for part in parts if part.get("part_kind") == "text"]
            case ToolCalled() as event:
                lines.append(f"call {event.tool}: {json.dumps(event.arguments, sort_keys=True, ensure_ascii=False)}")
            case event if isinstance(event, ToolOutcome):
                result = getattr(event, "result", getattr(event, "error", getattr(event, "reason", "")))
                lines.append(f"{event.tool} {event.kind}: {json.dumps(result, ensure_ascii=False)}")
            case _:
                pass
    return "\n".join(lines)


async def make_graft(
    receiver: UUID, store: EventStore, source: UUID, start: int | None, stop: int | None, summary: str
) -> list[Event]:
    """Return the events that describe a part of one conversation in another: the origin, and a message.

    Args:
        receiver: The conversation to which the events will be appended.
        source: The conversation that is described.
        start: The first event to describe; None for the first one that `receiver` does not share.
        stop: The event after the last one; None for the end.
        summary: The text of the message; if empty, a transcript of the events.

    Raises:
        InvalidInput: There are no events to describe.
    """
    if start is None:
        ancestor = await store.common_ancestor(receiver, source)
        start = 0 if ancestor is None else ancestor[1]
    events = [stored async for stored in store.read(source, start, stop)]
    text = summary or transcript(events)
    if not text.strip():
        raise InvalidInput("there are no events to describe", hint="choose other events, or give a summary")
    origin = {"source": str(source), "start": start, "stop": events[-1].seq + 1 if events else start}
    message = f"This happened in another branch of the work:\n{text}"
    return [StateChanged(changes={"grafted": origin}), UserMessage.text(clean(message), sender="graft")]
