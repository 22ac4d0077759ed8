"""One event whole: every field, and the event as JSON."""

from __future__ import annotations

import json
from typing import Any

from bough.errors import InvalidInput, NotFound
from bough.html.numbers import format_bytes
from bough.server.conversations.log_part import read_log_part
from bough.types import Json, JsonObject
from bough.web.screen import Visit, WebScreen

_MAX_PIECE_CHARS = 1 << 16
"""How much of a field one page shows."""

_OFFSET_DIGITS = 12


async def _read(visit: Visit) -> dict[str, Any]:
    id, seq = visit.read_id(), visit.path["seq"]
    record = await visit.access.store.get(id)
    if not (seq.isascii() and seq.isdigit() and len(seq) <= _OFFSET_DIGITS and int(seq) < record.head):
        raise NotFound("there is no such event", hint="go back to the conversation")
    part = await read_log_part(visit.access.store, record, int(seq), int(seq) + 1)
    event = next(event for event in part.events if event["seq"] == int(seq))
    field = visit.query.get("field")
    names = [name for name in event if name not in ("seq", "id", "kind", "ts")] if field is None else [field]
    return {
        "title": f"Event {seq} of {record.title or 'Untitled'}",
        "id": str(id),
        "seq": int(seq),
        "event": event,
        "fields": [_show_field(event, name, _read_offset(visit)) for name in names],
        "is_whole": field is None,
        "json": json.dumps(event, ensure_ascii=False, indent=2)[:_MAX_PIECE_CHARS],
    }


def _read_offset(visit: Visit) -> int:
    """Return the number of characters that the page leaves out at the beginning.

    Raises:
        InvalidInput: It is not a number.
    """
    text = visit.query.get("offset", "0")
    if not (text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS):
        raise InvalidInput("offset: not a number", hint="use the links of the page")
    return int(text)


def _show_field(event: JsonObject, name: str, offset: int) -> JsonObject:
    """Return a piece of a field.

    Raises:
        NotFound: The event has no such field.
    """
    if name not in event:
        raise NotFound("the event has no such field", hint="go back to the event")
    value: Json = event[name]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    stop = min(offset + _MAX_PIECE_CHARS, len(text))
    return {
        "name": name,
        "text": text[offset:stop],
        "size": format_bytes(len(text.encode("utf-8", "replace"))),
        "offset": offset,
        "next": stop if stop < len(text) else None,
    }


SCREEN = WebScreen(path="/c/{id}/e/{seq}", template="event.html", data=_read, place="conversations")
