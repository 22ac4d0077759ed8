"""The timeline of a conversation: its events in turns, the outline of its turns, and the form for a message."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from fastapi.responses import JSONResponse
from starlette.responses import HTMLResponse, Response

from bough.errors import InvalidInput
from bough.html.fields import join_words
from bough.html.markup import count_changed_lines
from bough.html.numbers import format_age, format_count, format_usd
from bough.html.rows import CallRow, ErrorRow, MessageRow, StepRow
from bough.server.bodies.conversations import ConversationQuery
from bough.server.bodies.events import NewMessage
from bough.server.conversations.log_part import find_turn_start, read_outline
from bough.server.conversations.model import describe_context, estimate_next_request, find_cached
from bough.server.routes.conversations import count_conversations
from bough.server.routes.events import send_message
from bough.server.routes.runs import RunBody, interrupt_conversation, pause_conversation, run_conversation
from bough.web.live import stream_rows
from bough.web.log import CHUNK, Chunk, LogReader, describe_status
from bough.web.screen import Action, HtmlPart, Visit, WebScreen, parse_body

_FIRST_EVENTS = 100
_MAX_WHOLE_EVENTS = 400
"""A conversation of at most so many events is shown whole, so that the browser's own search finds everything."""

_MAX_PART_EVENTS = 500
_MAX_FILTERED_EVENTS = 5000
_OUTLINE_TURNS = 8
_MAX_MATCHES_LISTED = 50
_KINDS = {"messages": (MessageRow, StepRow), "calls": (CallRow,), "errors": (CallRow, ErrorRow)}


async def _read(visit: Visit) -> dict[str, Any]:
    id = visit.read_id()
    reader = await LogReader.open(visit.access, id)
    find, kinds = visit.query.get("find", "").strip(), visit.query.get("kinds", "all")
    matches, at = await _find_place(visit, reader, find)
    chunks, older, newer = await _read_chunks(reader, at, kinds)
    turn = _find_turn(chunks, at)
    outline = await read_outline(visit.access.store, reader.record, turn, _OUTLINE_TURNS) if turn else ()
    state = await visit.access.services.states.state_of(reader.record)
    info = reader.info
    limits = {name: value for name, value in info.limits.items() if value is not None}
    return {
        "title": info.title or "Untitled",
        "id": str(id),
        "info": info.model_dump(mode="json"),
        "status": describe_status(reader),
        "setting": reader.setting,
        "chunks": chunks,
        "head": reader.head,
        "last": reader.head - 1,
        "at": at,
        "older": older,
        "newer": newer,
        "find": find,
        "kinds": kinds,
        "matches": matches[:_MAX_MATCHES_LISTED],
        "turn": turn,
        "turns": state.turns,
        "outline": [_describe_turn(record) for record in outline],
        "setup": _list_setup(reader),
        "usage": _list_usage(reader, limits),
        "status_line": await _describe_context(visit, reader, state),
        "tab": "timeline",
        "request_key": uuid4().hex,
        "branches": await count_conversations(ConversationQuery(root=reader.record.root), visit.access),
    }


async def _find_place(visit: Visit, reader: LogReader, find: str) -> tuple[list[int], int | None]:
    """Return the matches of a search, and the event that the screen opens at; None for the end of the log."""
    at = visit.read_seq("at")
    turn = visit.read_seq("turn")
    if turn is not None:
        return [], await find_turn_start(visit.access.store, reader.record, turn)
    if not find:
        return [], None if at is None else min(at, max(reader.head - 1, 0))
    if find.startswith("#") and find[1:].isascii() and find[1:].isdigit():
        return [], min(int(find[1:]), max(reader.head - 1, 0))
    matches, _ = await reader.find(find, at or 0)
    return matches, matches[0] if matches else at


async def _read_chunks(reader: LogReader, at: int | None, kinds: str) -> tuple[list[Chunk], int | None, int | None]:
    """Return the chunks of the screen, and the events at which the pages before and after it open."""
    if kinds in _KINDS:
        return await _read_filtered(reader, at, kinds)
    if reader.head <= _MAX_WHOLE_EVENTS:
        return await reader.read(0, reader.head), None, None
    # The chunk before the event, too: what led to it is read with it.
    seq = reader.head - 1 if at is None else at
    start = max(seq // CHUNK - 1, 0) * CHUNK
    stop = min(start + _FIRST_EVENTS, reader.head)
    return (
        await reader.read(start, stop),
        start - 1 if start else None,
        min(stop + CHUNK, reader.head - 1) if stop < reader.head else None,
    )


async def _read_filtered(reader: LogReader, at: int | None, kinds: str) -> tuple[list[Chunk], int | None, int | None]:
    """Return chunks before an event with the rows of some kinds only, of at most 5,000 events."""
    stop = reader.head if at is None else min(at + 1, reader.head)
    lowest = max(stop - _MAX_FILTERED_EVENTS, 0)
    chunks: list[Chunk] = []
    while stop > lowest and sum(len(part.rows) for chunk in chunks for part in chunk.parts) < _FIRST_EVENTS:
        start = max(stop - _MAX_PART_EVENTS, lowest)
        chunks = [filter_chunk(chunk, kinds) for chunk in await reader.read(start, stop)] + chunks
        stop = start
    return chunks, stop - 1 if stop else None, None


def filter_chunk(chunk: Chunk, kinds: str) -> Chunk:
    """Return a chunk with only the rows of some kinds: `messages`, `calls` or `errors`."""
    wanted_rows = _KINDS[kinds]

    def is_wanted(row: object) -> bool:
        if not isinstance(row, wanted_rows):
            return False
        if isinstance(row, StepRow):
            return bool(row.text)
        return kinds != "errors" or not isinstance(row, CallRow) or row.sign in ("failed", "rejected")

    return chunk.keep(is_wanted)


def _find_turn(chunks: list[Chunk], at: int | None) -> int:
    """Return the number of the turn that an event belongs to; that of the last turn for None."""
    numbers = [
        part.number for chunk in chunks for part in chunk.parts if at is None or not part.rows or part.rows[0].seq <= at
    ]
    return numbers[-1] if numbers else 0


async def _describe_context(visit: Visit, reader: LogReader, state: Any) -> str:
    """Return how much of its context the next request uses, what it costs at most, and how old the cached part is."""
    tokens, window = describe_context(state)
    if not tokens:
        return ""
    share = f" of {format_count(window)}" if window else ""
    usd = estimate_next_request(state, visit.access.services.settings.prices)
    cached = await find_cached(visit.access, reader.record, state)
    return join_words([
        f"Context {format_count(tokens)}{share} tokens",
        f"next request up to {format_usd(usd)}" if usd else "",
        f"cached {format_age(visit.access.services.clock.now() - cached)}" if cached else "",
    ])  # fmt: skip


def _describe_turn(record: Any) -> dict[str, Any]:
    """Return what the outline shows of a turn."""
    added = removed = 0
    for call in record.calls:
        if call.tool == "edit_file" and call.ended == "ToolReturned":
            counts = count_changed_lines(str(call.arguments.get("old", "")), str(call.arguments.get("new", "")))
            added, removed = added + counts[0], removed + counts[1]
        elif call.tool == "write_file" and call.ended == "ToolReturned":
            added += len(str(call.arguments.get("content", "")).splitlines())
    steps = record.usage.requests
    return {
        "number": record.number,
        "seq": record.start,
        "text": record.message.plain,
        "steps": steps,
        "cost": None if record.usage.cost_usd is None else format_usd(record.usage.cost_usd),
        "added": added,
        "removed": removed,
        "open": record.is_open,
    }


def _list_setup(reader: LogReader) -> list[tuple[str, str]]:
    info = reader.info
    policy = {
        "NeverConfirm": "never asks",
        "AlwaysConfirm": "asks before every call",
        "ConfirmRisky": "asks from a risk",
    }
    kind = str(info.confirmation_policy.get("kind", ""))
    skills = [*info.activated_knowledge_skills, *info.invoked_skills]
    facts = [
        ("Agent", reader.setting.agent),
        ("Model", str(info.spec.get("model") or "")),
        ("Policy", policy.get(kind, kind)),
        ("Workspace", str(info.workspace.get("working_dir") or "")),
        ("Skills", ", ".join(dict.fromkeys(skills))),
    ]
    return [(name, value) for name, value in facts if value]


def _list_usage(reader: LogReader, limits: dict[str, Any]) -> list[tuple[str, str]]:
    own = reader.info.own
    steps, budget = limits.get("steps"), limits.get("usd") or limits.get("cost_usd")
    cached = (
        f", {own.cache_read_tokens / own.input_tokens:.0%} cached" if own.input_tokens and own.cache_read_tokens else ""
    )
    facts = [
        ("Cost", format_usd(own.cost_usd) + (f" of {format_usd(budget)}" if budget else "")),
        ("Steps", str(own.requests) + _write_bound_of_steps(steps, limits)),
        ("Input", format_count(own.input_tokens) + cached),
        ("Output", format_count(own.output_tokens)),
    ]
    return facts


def _write_bound_of_steps(steps: int | None, limits: dict[str, Any]) -> str:
    if not steps:
        return ""
    return f", at most {steps} a run" if limits.get("per") == "run" else f" of {steps}"


async def _read_rows(visit: Visit) -> Response:
    """Return the chunks of a range of events as HTML."""
    start, stop = visit.read_seq("from"), visit.read_seq("to")
    if start is None or stop is None or not 0 < stop - start <= _MAX_PART_EVENTS:
        raise InvalidInput("from, to: not a range of at most 500 events", hint="give both")
    reader = await LogReader.open(visit.access, visit.read_id())
    chunks = await reader.read_from(start - 1, min(stop, reader.head))
    html = visit.render("fragment.html", {"chunks": chunks, "setting": reader.setting, "start": start, "stop": stop})
    headers = {"Cache-Control": "no-store", "X-Head": str(reader.head), "X-Content-Type-Options": "nosniff"}
    return HTMLResponse(html, headers=headers)


async def _read_matches(visit: Visit) -> Response:
    """Return the rows that contain a text as JSON: seqs, and from where to go on."""
    text = visit.query.get("text", "")
    if not 0 < len(text) <= 200:
        raise InvalidInput("text: not 1 to 200 characters", hint="give a shorter text")
    reader = await LogReader.open(visit.access, visit.read_id())
    matches, following = await reader.find(text, visit.read_seq("from") or 0)
    return JSONResponse({"matches": matches, "next": following, "head": reader.head})


async def _read_live(visit: Visit) -> Response:
    return await stream_rows(visit, visit.read_seq("after"))


async def _send(visit: Visit) -> str:
    """Send the message of the form; it is queued while a run goes on."""
    id = visit.read_id()
    text = str(visit.form.get("message", ""))
    body = parse_body(NewMessage, {"content": text.replace("\r\n", "\n"), "run": True})
    # Without the key, a double click would send the message twice.
    key = visit.read_text("request_key") or None
    await send_message(id, body, visit.access, visit.request, None, key)
    return f"/c/{id}#talk"


async def _continue(visit: Visit) -> str:
    """Continue a run that failed or was paused, without a new message."""
    id = visit.read_id()
    await run_conversation(id, visit.access, visit.request, RunBody())
    return f"/c/{id}#talk"


async def _pause(visit: Visit) -> str:
    id = visit.read_id()
    await pause_conversation(id, visit.access)
    return f"/c/{id}#talk"


async def _interrupt(visit: Visit) -> str:
    id = visit.read_id()
    await interrupt_conversation(id, visit.access)
    return f"/c/{id}#talk"


SCREEN = WebScreen(
    path="/c/{id}",
    template="timeline.html",
    data=_read,
    modules=("stream.js", "timeline.js", "fork.js"),
    place="conversations",
)
PARTS = (
    HtmlPart(path="/c/{id}/rows", handle=_read_rows),
    HtmlPart(path="/c/{id}/find", handle=_read_matches),
    HtmlPart(path="/c/{id}/live", handle=_read_live),
)
ACTIONS = (
    Action(verb="send", handle=_send, screen=SCREEN),
    Action(verb="continue", handle=_continue, screen=SCREEN),
    Action(verb="pause", handle=_pause),
    Action(verb="interrupt", handle=_interrupt),
)
