"""`bough conv diff`: compares the events of two conversations after those that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from json import dumps, loads
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bough.cli import options
from bough.cli.commands.conv.look import record_json
from bough.cli.describe import describe
from bough.cli.render import Report
from bough.cli.target import LATEST, Target, resolve, short
from bough.cli.text import Line, Span, Style, line, one_line
from bough.errors import InvalidInput
from bough.events.record import ConversationRecord
from bough.settings import Settings
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.events import StoreAdmin

_Id = Annotated[str, typer.Argument(metavar="ID", help="Conversation; - for the latest. ID@SEQ: its first SEQ events.")]
_Other = Annotated[
    str | None,
    typer.Argument(
        metavar="[OTHER]", help="Conversation to compare it with. Default: ID's source; for a root, the latest."
    ),
]


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One of the compared conversations, with its events after the shared ones."""

    record: ConversationRecord
    events: Sequence[JsonObject]

    def sum_usage(self) -> JsonObject:
        """Return the usage of all responses; the cost is None if no price is known."""
        responses = [event for event in self.events if event["kind"] == "ModelResponded"]
        usages: list[JsonObject] = [event.get("usage") or {} for event in responses]
        costs = [usage["cost_usd"] for usage in usages if usage.get("cost_usd") is not None]
        return {
            "requests": len(usages),
            "tokens": sum(usage.get(name, 0) for usage in usages for name in ("input_tokens", "output_tokens")),
            "cost_usd": sum(costs) if costs else None,
        }

    def as_json(self) -> JsonObject:
        """Return this side as JSON."""
        return {"conversation": record_json(self.record), "events": list(self.events), "used": self.sum_usage()}


def diff(
    a: _Id,
    b: _Other = None,
    until: Annotated[
        int | None, typer.Option("--until", metavar="TURN", min=1, help="Compare up to the end of this turn of both.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show long texts in full.")] = False,
    files: Annotated[
        bool, typer.Option("--files", help="Compare files; with ID alone, since its start (a fork: since its cut).")
    ] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Show where two conversations differ.

    Lines marked - are only in the first, lines marked + only in the second.
    """
    settings = options.load_settings(home, store)
    if files:
        if until is not None or full:
            raise InvalidInput("--files takes conversations and events only", hint="bough conv diff ID@1 ID@9 --files")
        from bough.cli.commands.conv.past_files import diff_files

        return diff_files(Target.parse(a), None if b is None else Target.parse(b), settings)
    common, side_a, side_b = asyncio.run(
        _compare(settings, Target.parse(a), None if b is None else Target.parse(b), until)
    )
    return Report(
        command="conv diff",
        data={"common_events": common, "a": side_a.as_json(), "b": side_b.as_json()},
        blocks=list(_render_diff(common, side_a, side_b, full=full)),
        next=(f"bough conv tree {short(side_a.record.id)}",),
    )


async def _compare(settings: Settings, a: Target, b: Target | None, until: int | None) -> tuple[int, _Side, _Side]:
    async with options.open_settings_store(settings, create=False) as store:
        if b is None:
            a, b = await _choose_other(store, a)
        records = [await store.get(await resolve(store, target.name)) for target in (a, b)]
        ancestor = await store.common_ancestor(records[0].id, records[1].id)
        common = 0 if ancestor is None else ancestor[1]
        stops = [target.end(record) for record, target in zip(records, (a, b), strict=True)]
        if until is not None:
            # Imported here: without this option no event is decoded, so its models stay unloaded.
            from bough.conversation.fork.compare import find_ends
            from bough.conversation.log.turns import Turn

            ends = await find_ends(store, records[0].id, records[1].id, Turn(until))
            stops = [min(stop, end.stop) for stop, end in zip(stops, ends, strict=True)]
        common = min(common, *stops)  # ID@SEQ before the fork point leaves fewer common events
        events = [
            [stored.as_json() async for stored in store.read(record.id, common, stop)]
            for record, stop in zip(records, stops, strict=True)
        ]
    side_a, side_b = (
        _Side(record=record, events=side_events) for record, side_events in zip(records, events, strict=True)
    )
    return common, side_a, side_b


async def _choose_other(store: StoreAdmin, a: Target) -> tuple[Target, Target]:
    """Return what to compare if one conversation is named: the source and its fork, or a root and the latest.

    Raises:
        InvalidInput: It is the latest and has no source.
    """
    id = await resolve(store, a.name)
    source = (await store.get(id)).forked_from
    if source is not None:
        return Target(str(source)), a
    if a.at is None and id == await resolve(store, LATEST):
        raise InvalidInput(
            f"{short(id)} is the latest conversation and no fork, so there is nothing to compare it with",
            hint="name two conversations, or fork this one: `bough fork -`",
        )
    return a, Target(LATEST)


def _render_diff(common: int, a: _Side, b: _Side, *, full: bool) -> Iterator[Line]:
    """Yield the output: both conversations, the number of common events, then the differing events."""
    yield _side_line("- ", a, "bad")
    yield _side_line("+ ", b, "good")
    yield line((f"  {common} event{'s' * (common != 1)} in common", "dim"))
    rendered_a = _render_events(a.events, full=full)
    rendered_b = _render_events(b.events, full=full)
    keys = [[_comparison_key(event) for event in _list_actions(side.events)] for side in (a, b)]
    for kind, a1, a2, b1, b2 in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from (_mark_line("  ", output_line, "dim") for event in rendered_a[a1:a2] for output_line in event)
            continue
        yield from (_mark_line("- ", output_line, "bad") for event in rendered_a[a1:a2] for output_line in event)
        yield from (_mark_line("+ ", output_line, "good") for event in rendered_b[b1:b2] for output_line in event)


def _render_events(events: Sequence[JsonObject], *, full: bool) -> list[list[Line]]:
    """Return the lines of each event."""
    return [list(describe(event, full=full)) for event in _list_actions(events)]


def _list_actions(events: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the events to compare, without forks and changes of tags, titles and rules."""
    return [event for event in events if event["kind"] not in ("StateChanged", "ForkedFrom")]


def _comparison_key(event: JsonObject) -> str:
    """Return the full content of an event, without its position and duration."""
    lines = describe(event, full=True)
    # Dim text consists of positions, durations and token counts, which differ between equal runs.
    visible_text = "\n".join(
        "".join(text for text, style in output_line.spans if style != "dim") for output_line in lines
    )
    return f"{visible_text}\n{_dump(event.get('arguments'))}{_dump(_list_calls(event))}{_dump(event.get('result'))}"


def _list_calls(event: JsonObject) -> list[tuple[Any, Any]]:
    """Return (tool, arguments) of each call in a response, without its id, which differs in every response."""
    response: dict[str, Any] = event.get("response") or {}
    parts: list[dict[str, Any]] = response.get("parts", [])
    return [
        (part["tool_name"], _load_arguments(part.get("args"))) for part in parts if part.get("part_kind") == "tool-call"
    ]


def _load_arguments(arguments: Any) -> Any:
    """Return the arguments of a call as an object; providers send an object or JSON text."""
    try:
        return loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _dump(value: Any) -> str:
    return "" if value is None else dumps(value, sort_keys=True, ensure_ascii=False)


def _side_line(mark: str, side: _Side, style: Style) -> Line:
    usage = side.sum_usage()
    cost = "" if usage["cost_usd"] is None else f", {usage['cost_usd']:.4f} USD"
    title = one_line(side.record.title or "untitled", 40)
    requests = f"{usage['requests']} request{'s' * (usage['requests'] != 1)}"
    usage_text = f"{requests}, {usage['tokens']} tokens{cost}"
    return line((mark, style), (short(side.record.id), "id"), f"  {title}  ", (usage_text, "dim"), hang=4)


def _mark_line(mark: str, source_line: Line, style: Style) -> Line:
    spans: tuple[Span, ...] = ((mark, style), *source_line.spans)
    return Line(spans, None if source_line.hang is None else source_line.hang + 2)
