"""`bough conv search`: find messages and answers in all conversations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from bough.cli import options
from bough.cli.commands.conv.look import ago
from bough.cli.progress import Progress
from bough.cli.render import Report, renderer_for
from bough.cli.target import short
from bough.cli.text import Block, Table, line, one_line
from bough.errors import InvalidInput
from bough.events.record import MessageQuery, SearchHit, SearchPage
from bough.settings import Settings
from bough.types import JsonObject

_SPAN = re.compile(r"([0-9]{1,6})(min|h|d|w)")
_UNITS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


def search(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help='Words, all required; "a phrase", -excluded, begin*. One argument.')
    ],
    tag: options.Tags = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only messages since then: 12h, 7d, 4w, or 2026-11-28."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, max=100, help="Show at most N.")] = 20,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="next_cursor of the page before (--json).")
    ] = None,
    home: options.Home = None,
    store: options.Store = None,
    json: options.Json = False,
) -> Report:
    """Search all conversations, newest message first."""
    now = datetime.now(UTC)
    query = MessageQuery(text=text, tags=options.parse_tags(tag), limit=limit, cursor=cursor)
    query = replace(query, since=None if since is None else _parse_since(since, now))
    progress = Progress(renderer_for(json=json), "messages indexed")
    page = asyncio.run(_search(options.load_settings(home, store), query, progress))
    return Report(
        command="conv search",
        data={"hits": [_hit_json(hit) for hit in page.items], "next_cursor": page.next_cursor},
        blocks=list(_render_page(page, now)),
        next=(f"bough conv show {short(page.items[0].conversation)} --from {page.items[0].seq}",) if page.items else (),
    )


async def _search(settings: Settings, query: MessageQuery, progress: Progress) -> SearchPage:
    async with options.open_settings_store(settings, create=False) as store:
        return await store.search(query, on_indexed=progress)


def _parse_since(text: str, now: datetime) -> datetime:
    """Return the time that `--since` names; a time without a zone is local.

    Raises:
        InvalidInput: It is neither a span nor a time.
    """
    try:
        if (span := _SPAN.fullmatch(text)) is not None:
            return now - int(span[1]) * _UNITS[span[2]]
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"--since {text!r} is not a time", hint="for example 12h, 7d, 4w or 2026-11-28") from error


def _hit_json(hit: SearchHit) -> JsonObject:
    return {
        "conversation": str(hit.conversation),
        "short_id": short(hit.conversation),
        "title": hit.title,
        "seq": hit.seq,
        "who": hit.who,
        "when": hit.when.isoformat(),
        "snippet": hit.snippet,
        "matches": [list(match) for match in hit.matches],
    }


def _render_page(page: SearchPage, now: datetime) -> Iterator[Block]:
    if not page.items:
        yield line(("no message matches", "dim"))
        return
    yield Table(
        head=("id", "seq", "who", "title", "text", "when"),
        rows=tuple(
            (
                (short(hit.conversation), "id"),
                (str(hit.seq), ""),
                (hit.who, ""),
                (one_line(hit.title or "untitled", 24), ""),
                (one_line(hit.snippet), ""),
                (ago(hit.when, now), "dim"),
            )
            for hit in page.items
        ),
        flexible=(4,),
        right=frozenset({1}),
        drop=(5, 2, 3),
    )
    if page.next_cursor:
        yield line((f"… more: --cursor {page.next_cursor}", "dim"))
