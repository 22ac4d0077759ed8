"""Branches side by side: a table of all, then the turns of two of them, step by step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import urlencode
from uuid import UUID

from starlette.responses import RedirectResponse, Response

from bough.errors import InvalidInput
from bough.html.calls import is_failure
from bough.html.fields import first_line
from bough.html.markup import dump
from bough.html.numbers import UNKNOWN, format_count, format_duration, format_usd
from bough.html.timeline import TurnTotals, add_up
from bough.server.bodies.compared_turns import ComparedStep, ComparedTurn, ComparedTurnSide
from bough.server.bodies.conversations import ComparedTurnPage, ConversationPage, Graft
from bough.server.routes.conversations import compare_conversation_turns, graft, list_records
from bough.types import JsonObject
from bough.web.head import read_head, read_word
from bough.web.screen import Action, HtmlPart, Visit, WebScreen, parse_body

if TYPE_CHECKING:
    from bough.server.bodies.info import ConversationRecord

_Steps: TypeAlias = tuple[ComparedStep | None, ComparedStep | None]
_MAX_COLUMNS = 8
_MAX_COUNTED = 2000
"""Branches with more events after the common ones have no totals of files and time."""

_COUNTED_KINDS = ("UserMessage", "ModelResponded", "ToolCalled", "ToolReturned")
_LETTERS = "ABCDEFGH"
MAX_WORD_BYTES: Final = 4096
"""Above this size of a side, lines are compared in place of words."""

_MAX_LINES: Final = 2000
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_SIGNS: Mapping[str, str] = {"": "waiting", "ToolReturned": "ok", "ToolRejected": "rejected", "ToolInterrupted": "lost"}


async def _read(visit: Visit) -> dict[str, Any]:
    ids = _read_ids(visit)
    records = [await visit.access.store.get(id) for id in ids]
    a, b, *others = records
    page = await compare_conversation_turns(a.id, b.id, _read_page(visit), visit.access)
    live = await visit.access.services.runs.live_among(records)
    branches = [
        await _describe_branch(visit, record, page.common, read_word(record, live), number)
        for number, record in enumerate(records)
    ]
    _mark_lowest(branches)
    only = visit.query.get("only") == "differences"
    candidates = await _list_candidates(visit, a, ids)
    return {
        "title": f"Compare {len(records)} branches",
        "head": await read_head(visit, a),
        "branches": branches,
        "common": page.common,
        "turns": [_describe_turn(turn, only=only) for turn in page.items],
        "only": only,
        "other": str(b.id),
        "also": [str(record.id) for record in others],
        "candidates": candidates,
        "next": None if page.next_page_id is None else _address(ids, only=only, page_id=page.next_page_id),
        "whole": _address(ids, only=False),
        "differences": _address(ids, only=True),
        "running": [str(record.id) for record in records[:2] if record.id in live],
        "ends": [record.head for record in records[:2]],
        "summary": visit.form.get("summary", ""),
    }


def _read_ids(visit: Visit) -> list[UUID]:
    """Return the ids of the compared branches: that of the screen, the other, and further ones, each once."""
    texts = [visit.path["id"], visit.path.get("other", ""), *visit.query.getlist("also")]
    try:
        ids = list(dict.fromkeys(UUID(text) for text in texts))
    except ValueError:
        raise InvalidInput("an id of the address is not a UUID", hint="choose the branches in a tree") from None
    if len(ids) < 2:
        raise InvalidInput("a conversation cannot be compared with itself", hint="choose another branch")
    return ids[:_MAX_COLUMNS]


def _read_page(visit: Visit) -> ComparedTurnPage:
    page_id = visit.query.get("page_id")
    return parse_body(ComparedTurnPage, {"cut": 16384} | ({"page_id": page_id} if page_id else {}))


def _address(ids: Sequence[UUID], *, only: bool, page_id: str | None = None) -> str:
    """Return the address of a comparison."""
    query = [("also", str(id)) for id in ids[2:]]
    query += [("only", "differences")] if only else []
    query += [] if page_id is None else [("page_id", page_id)]
    return f"/c/{ids[0]}/compare/{ids[1]}" + (f"?{urlencode(query)}" if query else "")


async def _describe_branch(
    visit: Visit, record: ConversationRecord, common: int, word: str, number: int
) -> dict[str, Any]:
    """Return a row of the table. Reads at most 2,000 events after the common ones."""
    totals = await _count(visit, record, common)
    usage = record.usage
    if totals is None:
        tokens, cost, steps = usage.input_tokens + usage.output_tokens, usage.cost_usd or None, usage.requests
    else:
        tokens, cost, steps = totals.tokens, totals.cost_usd, totals.steps
    seconds = None if totals is None else totals.seconds
    return {
        "letter": _LETTERS[number],
        "id": str(record.id),
        "title": record.title or "Untitled",
        "word": word,
        "values": {"steps": steps, "tokens": tokens, "cost": cost, "seconds": seconds},
        "steps": str(steps),
        "tokens": format_count(tokens),
        "cost": format_usd(cost),
        "time": format_duration(seconds),
        "files": UNKNOWN if totals is None else str(len(totals.files)),
        "added": 0 if totals is None else totals.added,
        "removed": 0 if totals is None else totals.removed,
        "lowest": set[str](),
    }


async def _count(visit: Visit, record: ConversationRecord, common: int) -> TurnTotals | None:
    """Return the totals of the events after the common ones; None if there are too many."""
    events: list[JsonObject] = []
    async for stored in visit.access.store.read(record.id, common, kinds=_COUNTED_KINDS):
        events.append(stored.as_json())
        if len(events) > _MAX_COUNTED:
            return None
    return add_up(events)


def _mark_lowest(branches: Sequence[dict[str, Any]]) -> None:
    """Mark the lowest number of each column among the branches that are over, unless all are equal."""
    done = [branch for branch in branches if branch["word"] == "done"]
    for name in ("steps", "tokens", "cost", "seconds"):
        values = [branch["values"][name] for branch in done if branch["values"][name] is not None]
        if len(set(values)) > 1:
            for branch in done:
                if branch["values"][name] == min(values):
                    branch["lowest"].add(name)


async def _list_candidates(visit: Visit, record: ConversationRecord, ids: Sequence[UUID]) -> list[dict[str, str]]:
    """Return the branches of the tree that could be added, the latest first."""
    query = ConversationPage(root=record.root, limit=50, sort_order="UPDATED_AT_DESC")
    page, _ = await list_records(query, visit.access)
    return [{"id": str(item.id), "title": item.title or "Untitled"} for item in page.items if item.id not in ids]


def _describe_turn(turn: ComparedTurn, *, only: bool) -> dict[str, Any]:
    """Return the rows of a turn: pairs, and runs of steps that are the same."""
    rows: list[dict[str, Any]] = []
    for same, group in groupby(turn.steps, key=lambda places: places.same):
        pairs = [(_find(turn.a, places.a), _find(turn.b, places.b)) for places in group]
        if not same:
            rows += [{"same": None, "a": step_a, "b": step_b} for step_a, step_b in map(_describe_pair, pairs)]
        elif not only:
            steps = [_describe_step(step) for step, _ in pairs if step is not None]
            rows.append({"same": steps, "a": None, "b": None})
    omitted = sum(side.omitted for side in (turn.a, turn.b) if side is not None)
    ended = {"a": turn.a is None, "b": turn.b is None}
    return {"number": turn.number, "rows": rows, "omitted": omitted, "ended": ended}


def _find(side: ComparedTurnSide | None, place: int | None) -> ComparedStep | None:
    return None if side is None or place is None else side.items[place]


def _describe_pair(pair: _Steps) -> tuple[JsonObject | None, JsonObject | None]:
    a, b = (None if step is None else _describe_step(step) for step in pair)
    if a is not None and b is not None:
        for name in ("text", "subject", "result"):
            a["pieces"][name], b["pieces"][name] = diff_texts(a[name], b[name])
    return a, b


def _describe_step(step: ComparedStep) -> JsonObject:
    result = _read_result(step) if step.kind == "call" else ""
    return {
        "seq": step.seq,
        "kind": step.kind,
        "tool": step.tool,
        "by": step.by,
        "subject": _summarize(step),
        "arguments": step.arguments,
        "text": step.text if step.kind != "call" else "",
        "result": result,
        "sign": _find_sign(step),
        "fact": first_line(result),
        "is_cut": step.cut is not None,
        "pieces": {},
    }


def _find_sign(step: ComparedStep) -> str:
    if step.ended == "ToolReturned" and is_failure(step.result):
        return "failed"
    return _SIGNS.get(step.ended, "failed")


def _read_result(step: ComparedStep) -> str:
    """Return the result of a call as text: of a command its output, and its exit code if it failed."""
    if step.cut is not None:
        return step.text
    value: Any = step.result
    if isinstance(value, str):
        return value
    result = cast("JsonObject", value) if isinstance(value, dict) else {}
    if isinstance(result.get("stdout"), str):
        code = result.get("exit_code")
        parts = [result["stdout"], result.get("stderr"), f"exit {code}" if code else ""]
        return "\n".join(part for part in parts if isinstance(part, str) and part) or "no output"
    return "" if value is None else dump(value)


def _summarize(step: ComparedStep) -> str:
    """Return the argument by which a person knows a call: the command or path, else the first one."""
    for name in ("command", "path", "script", "query", "url", "task"):
        if isinstance(value := step.arguments.get(name), str):
            return value
    return next((value for value in step.arguments.values() if isinstance(value, str)), "")


class Piece(NamedTuple):
    """A part of a text: in both texts, or in one of them."""

    text: str
    change: Literal["", "del", "ins"]


def diff_texts(a: str, b: str) -> tuple[list[Piece], list[Piece]]:
    """Return both texts in pieces. The pieces of a text, joined, are the text.

    O(words²) up to `MAX_WORD_BYTES`, else O(lines²) up to 2,000 lines; a longer text is one piece.
    """
    if a == b:
        return [Piece(a, "")], [Piece(b, "")]
    if max(len(a.encode("utf-8", "replace")), len(b.encode("utf-8", "replace"))) <= MAX_WORD_BYTES:
        parts_a, parts_b = _WORDS.findall(a), _WORDS.findall(b)
    else:
        parts_a, parts_b = a.splitlines(keepends=True), b.splitlines(keepends=True)
        if max(len(parts_a), len(parts_b)) > _MAX_LINES:
            return [Piece(a, "del")], [Piece(b, "ins")]
    pieces_a: list[Piece] = []
    pieces_b: list[Piece] = []
    # Frequent words are not ignored: "the" on both sides is the same word.
    for tag, start_a, stop_a, start_b, stop_b in SequenceMatcher(None, parts_a, parts_b, autojunk=False).get_opcodes():
        if start_a < stop_a:
            pieces_a.append(Piece("".join(parts_a[start_a:stop_a]), "" if tag == "equal" else "del"))
        if start_b < stop_b:
            pieces_b.append(Piece("".join(parts_b[start_b:stop_b]), "" if tag == "equal" else "ins"))
    return pieces_a, pieces_b


async def _choose(visit: Visit) -> Response:
    """Redirect from ids in the query to the address of a comparison: of a form without scripts."""
    ids = list(dict.fromkeys(visit.query.getlist("id")))
    if visit.path.get("id"):
        ids = [visit.path["id"], *ids]
    uuids = _parse_ids(ids)
    if len(uuids) == 1:
        record = await visit.access.store.get(uuids[0])
        uuids += await _choose_other(visit, record)
    if len(uuids) < 2:
        raise InvalidInput("choose two conversations to compare", hint="tick two rows of the list")
    return RedirectResponse(_address(uuids[:_MAX_COLUMNS], only=False), 303)


def _parse_ids(texts: Sequence[str]) -> list[UUID]:
    try:
        return [UUID(text) for text in texts]
    except ValueError:
        raise InvalidInput("an id of the address is not a UUID", hint="choose the branches in a tree") from None


async def _choose_other(visit: Visit, record: ConversationRecord) -> list[UUID]:
    """Return the branch that a conversation is compared with if none is named: its source, else its latest fork."""
    if record.forked_from is not None:
        return [record.forked_from]
    candidates = await _list_candidates(visit, record, [record.id])
    return [UUID(candidates[0]["id"])] if candidates else []


async def _graft(visit: Visit) -> str:
    """Put a summary of one branch into another as a message, and return the address of the other's timeline."""
    id = visit.read_id("into")
    summary = str(visit.form.get("summary") or "").strip()
    await graft(id, parse_body(Graft, {"source": visit.path.get("source", ""), "summary": summary}), visit.access)
    return f"/c/{id}"


SCREEN = WebScreen(
    path="/c/{id}/compare/{other}",
    template="compare.html",
    data=_read,
    modules=("compare.js", "fork.js"),
    place="conversations",
)
CHOOSE = HtmlPart(path="/compare", handle=_choose)
CHOOSE_OTHER = HtmlPart(path="/c/{id}/compare", handle=_choose)
GRAFT = Action(verb="graft", handle=_graft)
