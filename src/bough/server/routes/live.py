"""Server-sent events of one conversation: frames from its broadcast, in either form."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

from pydantic import Field
from sse_starlette import ServerSentEvent

from bough.errors import InvalidInput
from bough.events.record import ConversationRecord, StoredEvent
from bough.server.access import Access
from bough.server.forms.base import Form
from bough.server.forms.events import EventForm
from bough.server.live.broadcast import CaughtUp, Fragment, Heard, StreamEnd

RETRY_MILLISECONDS = 1000
_PLACE = re.compile(r"-?[0-9]{1,15}")


class StreamQuery(Form):
    """Where a stream begins, and what it holds."""

    after: str | None = Field(default=None, max_length=20)
    form: Literal["ours", "openhands"] = "ours"
    deltas: bool = True
    until: Literal["caught_up"] | None = None

    def place(self, last_event_id: str | None, head: int) -> int:
        """Return the seq after which the stream begins.

        Args:
            last_event_id: Of a reader that comes back; goes before `after`.

        Raises:
            InvalidInput: It is not a position in a conversation of `head` events.
        """
        given = last_event_id or self.after
        if given is None:
            return -1
        if given == "now":
            return head - 1
        if _PLACE.fullmatch(given) is None or not -1 <= int(given) < max(head, 1):
            raise InvalidInput("after: not a place in this conversation", hint=f"-1 to {head - 1}, or now")
        return int(given)


async def sse_frames(
    access: Access, record: ConversationRecord, query: StreamQuery, after: int
) -> AsyncIterator[ServerSentEvent]:
    """Iterate the frames of one reader.

    Raises:
        LimitExceeded: The tenant has as many streams as it may have.
    """
    services = access.services
    form = services.form_of(ours=query.form == "ours")
    with services.limits.stream(access.caller):
        async with services.broadcasts.join(record.id) as broadcast:
            yield await _state(access, record, record.head)
            calls: dict[str, str] = {}
            async for heard in broadcast.read(after):
                for frame in _frames(heard, form, calls, deltas=query.deltas):
                    yield frame
                if isinstance(heard, StoredEvent) and _changes_status(heard):
                    yield await _state(access, await access.store.get(record.id), heard.seq + 1)
                if isinstance(heard, CaughtUp) and query.until == "caught_up":
                    return


def _frames(heard: Heard, form: EventForm, calls: dict[str, str], *, deltas: bool) -> Iterator[ServerSentEvent]:
    match heard:
        case StoredEvent():
            calls |= form.calls_made(heard)
            parts = form.encode(heard, calls)
            for part in parts[:-1]:
                yield _frame("event", part)
            yield _frame("event", parts[-1], id=heard.seq)
        case Fragment() if deltas:
            yield _frame("delta", {"order": heard.order, "kind": heard.kind, "text": heard.text})
        case CaughtUp():
            yield _frame("caught_up", {"seq": heard.seq})
        case StreamEnd():
            yield _frame("end", {"reason": heard.reason})
        case _:
            pass


async def _state(access: Access, record: ConversationRecord, head: int) -> ServerSentEvent:
    run = await access.services.runs.latest(record.id)
    said: dict[str, Any] = {"execution_status": record.status, "head": head}
    return _frame("state", said | {"run": None if run is None else run.model_dump(mode="json")})


def _changes_status(stored: StoredEvent) -> bool:
    return stored.kind == "StateChanged" and "status" in stored.as_json().get("changes", {})


def _frame(event: str, data: Any, *, id: int | None = None) -> ServerSentEvent:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return ServerSentEvent(data=text, event=event, id=None if id is None else str(id), retry=RETRY_MILLISECONDS)
