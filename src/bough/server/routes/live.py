"""Server-sent events of one conversation, made from its broadcast, in bough's or OpenHands' form."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any, Literal
from uuid import UUID

from pydantic import Field
from sse_starlette import ServerSentEvent

from bough.errors import BoughError, InvalidInput
from bough.events.record import ConversationRecord, StoredEvent
from bough.server.access import Access, watch_key
from bough.server.bodies.base import Form
from bough.server.bodies.events import EventForm
from bough.server.live.broadcast import Broadcast, CaughtUp, Fragment, StreamEnd, StreamItem

RETRY_MILLISECONDS = 1000
_POSITION = re.compile(r"-?[0-9]{1,15}")


class StreamQuery(Form):
    """Where a stream begins, and what it contains."""

    after: str | None = Field(default=None, max_length=20)
    form: Literal["ours", "openhands"] = "ours"
    deltas: bool = True
    until: Literal["caught_up"] | None = None

    def find_start(self, last_event_id: str | None, head: int) -> int:
        """Return the seq after which the stream begins.

        Args:
            last_event_id: The id that a reconnecting reader received last; precedes `after`.
            head: Number of events in the conversation.

        Raises:
            InvalidInput: The value is not a position in the conversation.
        """
        start = last_event_id or self.after
        if start is None:
            return -1
        if start == "now":
            return head - 1
        if _POSITION.fullmatch(start) is None or not -1 <= int(start) < max(head, 1):
            raise InvalidInput("after: not a position in this conversation", hint=f"use -1 to {head - 1}, or now")
        return int(start)


async def sse_frames(
    access: Access, record: ConversationRecord, query: StreamQuery, after: int
) -> AsyncIterator[bytes]:
    """Iterate the frames for one reader.

    Raises:
        LimitExceeded: The key or the tenant has the maximum number of streams.
    """
    services = access.services
    form = services.form_for(ours=query.form == "ours")
    with services.limits.stream(access.caller):
        async with services.broadcasts.join(record.id) as broadcast, watch_key(access, broadcast) as is_refused:
            yield await _state_frame(access, record, record.head)
            calls: dict[str, str] = {}
            async for update in broadcast.read(after, is_refused):
                if isinstance(update, StoredEvent):
                    yield _event_frames(broadcast, update, form, calls)
                    if _changes_status(update):
                        yield await _state_frame_after(broadcast, access, record.id, update)
                else:
                    frame = _build_frame(update, deltas=query.deltas)
                    if frame is not None:
                        yield frame
                if isinstance(update, CaughtUp) and query.until == "caught_up":
                    return


def _event_frames(broadcast: Broadcast, stored: StoredEvent, form: EventForm, calls: dict[str, str]) -> bytes:
    """Return the frames of an event, and add the calls it makes to `calls`.

    The frames are encoded once for all readers with the same form that know the same tool call.
    """
    calls |= form.calls_made(stored)

    def encode() -> bytes:
        *parts, last = form.encode(stored, calls)
        return b"".join([*(_frame("event", part) for part in parts), _frame("event", last, id=stored.seq)])

    call = calls.get(getattr(stored.event, "tool_call_id", None) or "")
    return broadcast.share(stored.seq, (type(form), call), encode)


def _build_frame(update: StreamItem, *, deltas: bool) -> bytes | None:
    """Return the frame of an update that is not an event; None if readers get no frame for it."""
    match update:
        case Fragment() if deltas:
            piece = update.piece
            place = {"response": str(piece.response), "offset": piece.offset}
            return _frame("delta", {"order": update.order, "kind": piece.kind, "text": piece.text} | place)
        case CaughtUp():
            return _frame("caught_up", {"seq": update.seq})
        case StreamEnd():
            return _frame("end", {"reason": update.reason})
        case _:
            return None


async def _state_frame_after(broadcast: Broadcast, access: Access, id: UUID, stored: StoredEvent) -> bytes:
    """Return the frame of the state after an event. The state is read once for all readers, even if one disconnects.

    Raises:
        BoughError: The state cannot be read; the next reader tries again.
    """

    async def read() -> bytes:
        return await _state_frame(access, await access.store.get(id), stored.seq + 1)

    state_task = broadcast.share(stored.seq, "state", lambda: asyncio.create_task(read(), name=f"state of {id}"))
    try:
        return await asyncio.shield(state_task)
    except BoughError:
        broadcast.forget(stored.seq, "state")
        raise


async def _state_frame(access: Access, record: ConversationRecord, head: int) -> bytes:
    run = await access.services.runs.latest(record.id)
    state: dict[str, Any] = {"execution_status": record.status, "head": head}
    return _frame("state", state | {"run": None if run is None else run.model_dump(mode="json")})


def _changes_status(stored: StoredEvent) -> bool:
    return stored.kind == "StateChanged" and "status" in stored.as_json().get("changes", {})


def _frame(event: str, data: Any, *, id: int | None = None) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    event_id = None if id is None else str(id)
    return ServerSentEvent(data=text, event=event, id=event_id, retry=RETRY_MILLISECONDS).encode()
