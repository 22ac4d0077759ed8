"""Two conversations side by side, and taking something over from one into another."""

from __future__ import annotations

import filecmp
import json
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal, Protocol
from uuid import UUID

from bough.conversation.log.state import NOTHING_USED, add_usage, calls_of
from bough.conversation.log.tool_result import clean
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
from bough.types import Json, JsonObject

MAX_FILES = 20_000


@dataclass(frozen=True, kw_only=True)
class ComparedCall:
    """A tool call with how it ended.

    Attributes:
        ended: The kind of its outcome; empty while it is open.
        result: What it returned, or why it did not.
    """

    tool: str
    arguments: JsonObject
    ended: str = ""
    result: Json = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one of two conversations has of its own.

    Attributes:
        events: After the common ones, ordered by seq.
        usage: Of those events.
    """

    id: UUID
    events: tuple[StoredEvent, ...]
    calls: tuple[ComparedCall, ...]
    usage: Usage


@dataclass(frozen=True, kw_only=True)
class CallDifference:
    """A run of tool calls in which the two sides differ: calls of `a`, and those that `b` made instead."""

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
        common: How many events they share; 0 for strangers.
        calls: Where their tool calls differ.
        cost_usd: What `b` cost more than `a` since then; None where a cost is not known.
        files: What differs where they have workspaces of their own.
    """

    common: int
    a: Side
    b: Side
    calls: tuple[CallDifference, ...]
    cost_usd: float | None
    files: tuple[FileDifference, ...]


class ComparedLogs(Protocol):
    """What is read of two logs: a store, or a server's answers."""

    async def common_ancestor(self, a: UUID, b: UUID) -> tuple[UUID, int] | None:
        """Return who wrote the last event that both share, and how many they share."""
        ...

    def read(
        self, cid: UUID, start: int = 0, stop: int | None = None, *, reverse: bool = False
    ) -> AsyncIterator[StoredEvent]:
        """Iterate events of one of them."""
        ...


async def compare(store: ComparedLogs, a: UUID, b: UUID, *, workspaces: tuple[Path, Path] | None = None) -> Comparison:
    """Return what two conversations share and where they differ. O(events after the common ones), and O(files)."""
    ancestor = await store.common_ancestor(a, b)
    common = 0 if ancestor is None else ancestor[1]
    earlier_arguments = await _read_earlier_arguments(store, a, common)
    sides = [await _side(store, id, common, earlier_arguments) for id in (a, b)]
    costs = [side.usage.cost_usd for side in sides]
    return Comparison(
        common=common,
        a=sides[0],
        b=sides[1],
        calls=tuple(_call_differences(sides[0].calls, sides[1].calls)),
        cost_usd=None if costs[0] is None or costs[1] is None else costs[1] - costs[0],
        files=tuple(_file_differences(*workspaces)) if workspaces and workspaces[0] != workspaces[1] else (),
    )


async def _read_earlier_arguments(store: ComparedLogs, id: UUID, stop: int) -> dict[str, JsonObject]:
    """Return the arguments of the calls that may be open at seq `stop`: those of the last response before it."""
    async for stored in store.read(id, 0, stop, reverse=True):
        if isinstance(stored.event, ModelResponded):
            return _read_arguments(stored.event)
    return {}


def _read_arguments(event: ModelResponded) -> dict[str, JsonObject]:
    return {call.id: call.given for call in calls_of(event)}


async def _side(store: ComparedLogs, id: UUID, common: int, earlier_arguments: Mapping[str, JsonObject]) -> Side:
    events = tuple([stored async for stored in store.read(id, common)])
    typed = [stored.event for stored in events]
    usage = NOTHING_USED
    for event in typed:
        if isinstance(event, (ModelResponded, Condensed)) and event.usage is not None:
            usage = add_usage(usage, event.usage)
    return Side(id=id, events=events, calls=tuple(_calls(typed, earlier_arguments)), usage=usage)


def _calls(events: Iterable[Event], earlier_arguments: Mapping[str, JsonObject]) -> Iterable[ComparedCall]:
    """Return the calls in the order in which they started, those that never did where they ended.

    Args:
        earlier_arguments: Arguments of calls that were made before the first event, by id.
    """
    calls: dict[str, ComparedCall] = {}
    done: list[ComparedCall] = []
    for event in events:
        if isinstance(event, ModelResponded):
            done, calls, earlier_arguments = [*done, *calls.values()], {}, _read_arguments(event)
        elif isinstance(event, ToolCalled):
            calls[event.tool_call_id] = ComparedCall(tool=event.tool, arguments=event.arguments)
        elif isinstance(event, ToolOutcome):
            arguments = earlier_arguments.get(event.tool_call_id, {})
            call = calls.get(event.tool_call_id) or ComparedCall(tool=event.tool, arguments=arguments)
            result: Json = getattr(event, "result", getattr(event, "error", getattr(event, "reason", None)))
            calls[event.tool_call_id] = ComparedCall(
                tool=call.tool, arguments=call.arguments, ended=event.kind, result=result
            )
    return [*done, *calls.values()]


def _call_differences(a: Sequence[ComparedCall], b: Sequence[ComparedCall]) -> Iterable[CallDifference]:
    keys = [[json.dumps([c.tool, c.arguments, c.ended, c.result], sort_keys=True) for c in side] for side in (a, b)]
    for kind, a1, a2, b1, b2 in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if kind != "equal":
            yield CallDifference(a=tuple(a[a1:a2]), b=tuple(b[b1:b2]))


def _file_differences(a: Path, b: Path) -> Iterable[FileDifference]:
    files_a, files_b = _files(a), _files(b)
    for path in sorted(files_a | files_b):
        if path not in files_b:
            yield FileDifference(path=path, change="only in a")
        elif path not in files_a:
            yield FileDifference(path=path, change="only in b")
        elif not filecmp.cmp(a / path, b / path, shallow=False):
            yield FileDifference(path=path, change="differs")


def _files(root: Path) -> set[str]:
    """Return the plain files below a folder, git's own left out; at most 20,000."""
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
    """Return what was said and done as text, for a reader who was not there."""
    lines: list[str] = []
    for stored in events:
        match stored.event:
            case UserMessage() as event:
                lines.append(f"{event.sender}: {event.plain}")
            case ModelResponded() as event:
                parts = event.response.get("parts", [])
                lines += [f"assistant: {p.get('content', '')}" for p in parts if p.get("part_kind") == "text"]
            case ToolCalled() as event:
                lines.append(f"call {event.tool}: {json.dumps(event.arguments, sort_keys=True, ensure_ascii=False)}")
            case event if isinstance(event, ToolOutcome):
                result = getattr(event, "result", getattr(event, "error", getattr(event, "reason", "")))
                lines.append(f"{event.tool} {event.kind}: {json.dumps(result, ensure_ascii=False)}")
            case _:
                pass
    return "\n".join(lines)


async def make_graft(
    into: UUID, store: EventStore, source: UUID, start: int | None, stop: int | None, summary: str
) -> list[Event]:
    """Return what a conversation is told of another one: where it comes from, and a message.

    Raises:
        InvalidInput: There is nothing to tell.
    """
    if start is None:
        ancestor = await store.common_ancestor(into, source)
        start = 0 if ancestor is None else ancestor[1]
    events = [stored async for stored in store.read(source, start, stop)]
    text = summary or transcript(events)
    if not text.strip():
        raise InvalidInput("there is nothing to tell", hint="name other events, or give a summary")
    origin = {"source": str(source), "start": start, "stop": events[-1].seq + 1 if events else start}
    message = f"This happened in another branch of the work:\n{text}"
    return [StateChanged(changes={"grafted": origin}), UserMessage.text(clean(message), sender="graft")]
