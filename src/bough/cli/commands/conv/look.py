"""`bough conv list`, `show`, `tree`, `tail`: read conversations. No event model is loaded, so they start quickly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from bough.cli import options
from bough.cli.complete import complete_statuses
from bough.cli.describe import describe
from bough.cli.render import Renderer, Report, renderer_for
from bough.cli.target import Target, resolve, short
from bough.cli.text import Block, Line, Span, Style, Table, line, one_line
from bough.errors import InvalidInput
from bough.events.integrity import IntegrityFinding, as_details
from bough.events.record import (
    ConversationFilter,
    ConversationRecord,
    Order,
    Page,
    Status,
    StoredEvent,
    list_branches,
)
from bough.settings import Settings, find_project
from bough.types import JsonObject

if TYPE_CHECKING:
    from bough.tasks.stores.summary import TaskSummary

_STATUS_STYLES: dict[str, Style] = {"running": "good", "error": "bad", "stuck": "bad", "paused": "warn"}
_SHORT_STATUS = {"waiting_for_confirmation": "waiting"}
_TASK_STYLES: dict[str, Style] = {"running": "good", "failed": "bad", "input_required": "warn"}
_PAGE_SIZE = 500
_DEFAULT_EVENTS = 200
"""Number of events that `bough conv show` shows by default."""


def list_(
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="Only conversations with this status.",
            autocompletion=complete_statuses,
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", metavar="TEXT", help="Only conversations with TEXT in the title.")
    ] = None,
    tag: options.Tags = None,
    min_cost_usd: Annotated[
        float | None, typer.Option("--min-cost-usd", metavar="USD", help="Only conversations that cost USD or more.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="List the conversations of every project.")] = False,
    order: Annotated[
        str,
        typer.Option("--order", metavar="ORDER", help="updated_desc, created_desc or cost_desc, or without _desc."),
    ] = "updated_desc",
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=1000, help="Show at most N.")] = 20,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="next_cursor of the page before (--json).")
    ] = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """List the conversations of this project, the most recent first.

    A conversation belongs to the project in which it, or the root of its tree, works.
    """
    everywhere = ConversationFilter(
        status=_parse_status(status), text=search, tags=options.parse_tags(tag), min_cost_usd=min_cost_usd
    )
    listed = everywhere if all else replace(everywhere, folder=find_project())
    settings = options.load_settings(home, store)
    page, hidden = asyncio.run(_list_page(settings, listed, everywhere, cursor, limit, cast("Order", order)))
    shows_cost = min_cost_usd is not None or order.startswith("cost")
    return Report(
        command="conv list",
        data={
            "conversations": [record_json(record) for record in page.items],
            "next_cursor": page.next_cursor,
            "damaged": [as_details(finding) for finding in page.damaged],
            "hidden": hidden,
        },
        blocks=[
            *_render_page(
                page, filtered=everywhere != ConversationFilter(), elsewhere=hidden > 0, shows_cost=shows_cost
            ),
            *([line((f"{hidden} more in other projects: --all", "dim"))] if hidden else []),
        ],
        next=(f"bough conv show {short(page.items[0].id)}",) if page.items else ('bough run "…"',),
    )


def show(
    id: options.Conversation = "-",
    full: Annotated[bool, typer.Option("--full", help="Show long texts in full.")] = False,
    thinking: Annotated[bool, typer.Option("--thinking", help="Show what the model thought.")] = False,
    first: Annotated[int | None, typer.Option("--from", metavar="SEQ", min=0, help="Start at this event.")] = None,
    stop: Annotated[int | None, typer.Option("--to", metavar="SEQ", min=0, help="Stop before this event.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Show all events; with --json, one per line.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then follow new events until Ctrl+C; with --json, one per line.")
    ] = False,
    web: Annotated[bool, typer.Option("--web", help="Show it in a browser, as `bough web ID` does.")] = False,
    files: Annotated[bool, typer.Option("--files", help="List the files of its workspace at that event.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | None:
    """Show a conversation and its last 200 events."""
    target = Target.parse(id)
    settings = options.load_settings(home, store)
    if files:
        if any((web, full, thinking, all, follow, first is not None, stop is not None)):
            raise InvalidInput("--files takes the event only", hint="bough conv show ID@SEQ --files")
        from bough.cli.commands.conv.past_files import show_files

        return show_files(target, settings)
    if web:
        if target.at is not None or any((full, thinking, all, follow, first is not None, stop is not None)):
            raise InvalidInput(
                "--web takes the conversation only", hint="the page has the rest: bough conv show ID --web"
            )
        from bough.cli.commands.web import show_page

        show_page(target.name, settings, port=0, opens_browser=True, json=json)
        return None
    if follow and (stop is not None or target.at is not None):
        raise InvalidInput("--follow has no end", hint="leave --to and @SEQ out, or leave out --follow")
    if all or follow:
        start = 0 if all and first is None else first
        show_lines = partial(describe, full=full, thinking=thinking)
        asyncio.run(_stream(settings, target, start, stop, show_lines, follow=follow, json=json))
        return None
    record, events, end, tasks = asyncio.run(_read_page(settings, target, first, stop))
    task_list = [_task_json(task) for task in tasks]
    start = events[0]["seq"] if events else 0
    page_end = start + len(events)
    next_cursor = page_end if first is not None and page_end < end else None
    return Report(
        command="conv show",
        data={"conversation": record_json(record), "tasks": task_list, "events": events, "next_cursor": next_cursor},
        blocks=[
            *_heading(record),
            *(_task_line(task, "") for task in tasks),
            line(),
            *([line((f"… {_count(start)} before; --from 0, or --all", "dim"))] if start and first is None else []),
            *(output_line for event in events for output_line in describe(event, full=full, thinking=thinking)),
            *(
                [line((f"… {_count(end - next_cursor)} more: --from {next_cursor}", "dim"))]
                if next_cursor is not None
                else []
            ),
        ],
        next=(f"bough fork {short(record.id)}@SEQ", f"bough conv tree {short(record.id)}"),
    )


def tree(
    id: options.WholeConversation = "-",
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Show a conversation's tree of forks."""
    target = Target.parse(id)
    record, records, tasks, damaged = asyncio.run(_read_tree(options.load_settings(home, store), target.name))
    branches = list(list_branches(records))
    return Report(
        command="conv tree",
        data={
            "conversation": str(record.id),
            "root": str(record.root),
            "conversations": [record_json(branch) | {"depth": len(stem) // 3} for branch, stem in branches],
            "tasks": [_task_json(task) for task in tasks],
            "damaged": [as_details(finding) for finding in damaged],
        },
        blocks=[
            *(
                output_line
                for branch, stem in branches
                for output_line in (
                    _tree_line(branch, stem, marked=branch.id == record.id),
                    *(_task_line(task, stem) for task in tasks if branch.id in (task.conversation, task.parent)),
                )
            ),
            *_damage_lines(damaged),
        ],
    )


def tail(
    id: options.Conversation = "-",
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="Number of events to show.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new events until Ctrl+C.")] = False,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report | None:
    """Show the last events of a conversation.

    With --follow, also new events as they come; with --json, one per line.
    """
    target = Target.parse(id)
    settings = options.load_settings(home, store)
    if follow:
        asyncio.run(_follow(settings, target.name, lines, json=json))
        return None
    record, events = asyncio.run(_read_last(settings, target, lines))
    return Report(
        command="conv tail",
        data={"conversation": record_json(record), "events": events},
        blocks=[output_line for event in events for output_line in describe(event, more=_more(record))],
    )


def record_json(record: ConversationRecord) -> JsonObject:
    """Return the record of a conversation as JSON."""
    forked = str(record.forked_from) if record.forked_from else None
    return {
        "id": str(record.id),
        "short_id": short(record.id),
        "title": record.title,
        "status": record.status,
        "events": record.head,
        "agent": record.config.get("agent"),
        "model": record.config.get("model"),
        "workspace": record.config.get("workspace"),
        "tags": record.tags,
        "root": str(record.root),
        "forked_from": forked,
        "forked_at": record.forked_at,
        "created": record.created.isoformat(),
        "updated": record.updated.isoformat(),
        "usage": {
            "requests": record.usage.requests,
            "input_tokens": record.usage.input_tokens,
            "output_tokens": record.usage.output_tokens,
            "cost_usd": record.usage.cost_usd,
        },
    }


async def _list_page(
    settings: Settings,
    listed: ConversationFilter,
    everywhere: ConversationFilter,
    cursor: str | None,
    limit: int,
    order: Order,
) -> tuple[Page, int]:
    """Return a page of the conversations to list, and how many conversations of other projects match."""
    async with options.open_settings_store(settings, create=False) as store:
        page = await store.list(listed, cursor, limit, order)
        if listed.folder is None:
            return page, 0
        is_whole = cursor is None and page.next_cursor is None
        here = len(page.items) + len(page.damaged) if is_whole else await store.count(listed)
        return page, await store.count(everywhere) - here


async def _read_page(
    settings: Settings, target: Target, first: int | None, stop: int | None
) -> tuple[ConversationRecord, list[JsonObject], int, list[TaskSummary]]:
    """Return a conversation, the events of one page, the end of the requested range, and its tasks. O(page)."""
    from bough.tasks.stores.summary import list_tasks_around

    async with options.open_settings_store(settings, create=False) as store:
        record = await store.get(await resolve(store, target.name))
        end = _range_end(record, target, stop)
        start = max(0, end - _DEFAULT_EVENTS) if first is None else first
        read = store.read(record.id, start, min(end, start + _DEFAULT_EVENTS))
        events = [stored.as_json() async for stored in read]
        return record, events, end, await list_tasks_around(store, [record.id])


async def _stream(
    settings: Settings,
    target: Target,
    first: int | None,
    stop: int | None,
    show_lines: Callable[[JsonObject], Iterable[Line]],
    *,
    follow: bool,
    json: bool,
) -> None:
    """Write the events of a range as they are read; memory does not grow with their number.

    Args:
        first: The first event; None for the last 200.
        follow: Continue with new events until the command is interrupted.
    """
    renderer = renderer_for(json=json)
    async with options.open_settings_store(settings, create=False) as store:
        record = await store.get(await resolve(store, target.name))
        # Records and lines are both given to the renderer, which writes one of them: records as JSON, lines for people.
        renderer.record({"type": "conversation", "conversation": record_json(record)})
        for output_line in (*_heading(record), line()):
            renderer.result(output_line)
        end = _range_end(record, target, stop)
        start = max(0, end - _DEFAULT_EVENTS) if first is None else first
        await _write_events(
            store.subscribe(record.id, start - 1) if follow else store.read(record.id, start, end), renderer, show_lines
        )


async def _write_events(
    events: AsyncIterator[StoredEvent], renderer: Renderer, show_lines: Callable[[JsonObject], Iterable[Line]]
) -> None:
    async for stored in events:
        event = stored.as_json()
        renderer.record({"type": "event", "event": event})
        for output_line in show_lines(event):
            renderer.result(output_line)


def _range_end(record: ConversationRecord, target: Target, stop: int | None) -> int:
    """Return the end of the requested events: `stop`, but at most the end of the target."""
    end = target.end(record)
    return end if stop is None else min(end, stop)


async def _read_last(settings: Settings, target: Target, count: int) -> tuple[ConversationRecord, list[JsonObject]]:
    async with options.open_settings_store(settings, create=False) as store:
        record = await store.get(await resolve(store, target.name))
        stop = target.end(record)
        start = max(0, stop - count)
        return record, [stored.as_json() async for stored in store.read(record.id, start, stop)]


async def _follow(settings: Settings, name: str, count: int, *, json: bool) -> None:
    """Write the last `count` events, then new events until the command is interrupted."""
    renderer = renderer_for(json=json)
    async with options.open_settings_store(settings, create=False) as store:
        record = await store.get(await resolve(store, name))
        # The subscription starts with the last recorded events, so that none is missed or shown twice.
        events = store.subscribe(record.id, max(0, record.head - count) - 1)
        await _write_events(events, renderer, partial(describe, more=_more(record)))


def _more(record: ConversationRecord) -> str:
    """Return how to see an event in full: `tail` has no --full."""
    return f": bough conv show {short(record.id)} --from {{seq}} --full"


async def _read_tree(
    settings: Settings, name: str
) -> tuple[ConversationRecord, list[ConversationRecord], list[TaskSummary], list[IntegrityFinding]]:
    """Return a conversation, the conversations and tasks of its tree, and damaged rows.

    The tree includes deleted conversations, because their forks would otherwise be separate trees.
    """
    from bough.tasks.stores.summary import list_tasks_around

    async with options.open_settings_store(settings, create=False) as store:
        record = await store.get(await resolve(store, name))
        tree_filter = ConversationFilter(root=record.root, include_deleted=True)
        records: list[ConversationRecord] = []
        damaged: list[IntegrityFinding] = []
        cursor: str | None = None
        while True:
            page = await store.list(tree_filter, cursor, _PAGE_SIZE)
            records += page.items
            damaged += page.damaged
            cursor = page.next_cursor
            if cursor is None:
                break
        tasks = await list_tasks_around(store, [member.id for member in records if not member.deleted])
        return record, records, tasks, damaged


def _parse_status(name: str | None) -> Any:
    if name is None or name in get_args(Status):
        return name
    raise InvalidInput(f"invalid status {name!r}", hint=f"choose one of: {', '.join(get_args(Status))}")


def _render_page(page: Page, *, filtered: bool, elsewhere: bool, shows_cost: bool) -> Iterator[Block]:
    """Yield the output of `bough conv list`."""
    if not page.items and not page.damaged:
        text = "no conversation matches" if filtered else "no conversations yet"
        yield line((f"{text} in this project" if elsewhere else text, "dim"))
        return
    now = datetime.now(UTC)
    yield Table(
        head=("id", "title", "status", "events", *(("cost",) if shows_cost else ()), "updated"),
        rows=tuple(_row(record, now, shows_cost=shows_cost) for record in page.items),
        flexible=(1,),
        right=frozenset({3, 4} if shows_cost else {3}),
        drop=(3, 5, 4) if shows_cost else (3, 4),
    )
    yield from _damage_lines(page.damaged)
    if page.next_cursor:
        yield line(("… more: raise --limit", "dim"))


def _damage_lines(damaged: list[IntegrityFinding]) -> Iterator[Line]:
    for finding in damaged:
        yield line((f"{finding.problem}; `bough doctor` checks the whole store", "bad"))


def _row(record: ConversationRecord, now: datetime, *, shows_cost: bool) -> tuple[Span, ...]:
    title = one_line(record.title or "untitled")
    if record.forked_from is not None:
        title = f"↳ {title}"
    return (
        (short(record.id), "id"),
        (title, ""),
        (_SHORT_STATUS.get(record.status, record.status), _STATUS_STYLES.get(record.status, "")),
        (str(record.head), ""),
        *(((f"{record.usage.cost_usd:.4f} USD", ""),) if shows_cost else ()),
        (ago(record.updated, now), "dim"),
    )


def ago(then: datetime, now: datetime) -> str:
    """Return the time since `then` in its largest unit, or the date after a week."""
    seconds = max(0, int((now - then).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 7 * 86400:
            return then.astimezone().strftime("%Y-%m-%d")
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def _heading(record: ConversationRecord) -> Iterator[Line]:
    """Yield the lines above the events of a conversation."""
    yield line((short(record.id), "id"), "  ", (one_line(record.title or "untitled"), "strong"))
    details = [
        record.status,
        f"agent {record.config.get('agent', '?')}",
        f"model {record.config.get('model') or '?'}",
        _count(record.head),
    ]
    if record.forked_from is not None:
        details.append(f"fork of {short(record.forked_from)}@{record.forked_at}")
    yield line((" · ".join(details), "dim"))
    if record.tags:
        yield line(("tags " + " ".join(f"{key}={value}" for key, value in sorted(record.tags.items())), "dim"))


def _count(events: int) -> str:
    return "1 event" if events == 1 else f"{events} events"


def _task_line(task: TaskSummary, indent: str) -> Line:
    """Return the line of a task, shown below the conversation that it runs or that started it."""
    relation = "run as task" if task.conversation is not None else "started task"
    state = task.state.value
    return line(
        " " * len(indent),
        f"    {relation} ",
        (short(task.id), "id"),
        "  ",
        (state, _TASK_STYLES.get(state, "")),
        (f"  {task.agent or ''}", "dim"),
    )


def _task_json(task: TaskSummary) -> JsonObject:
    return {
        "id": task.id,
        "conversation": None if task.conversation is None else str(task.conversation),
        "parent": None if task.parent is None else str(task.parent),
        "state": task.state.value,
        "agent": task.agent,
    }


def _tree_line(record: ConversationRecord, stem: str, *, marked: bool) -> Line:
    fork_position: Span = (f"@{record.forked_at} ", "warn") if record.forked_from is not None else ("", "")
    title = "deleted" if record.deleted else one_line(record.title or "untitled", 40)
    return line(
        (stem, "dim"),
        fork_position,
        (short(record.id), "id"),
        f"  {title}",
        (f"  {_count(record.head)}, {record.status}", "dim"),
        ("  ←" if marked else "", "strong"),
        hang=len(stem) + 4,
    )
