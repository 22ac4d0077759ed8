"""The live stream of a timeline: server-sent events with rows as HTML, made by the same macros as the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from bough.errors import InvalidInput
from bough.server.access import watch_key
from bough.server.live.broadcast import Fragment, RunEnded, StoredEvent, StreamEnd, StreamItem
from bough.web.log import Chunk, LogReader, count_turns, describe_status
from bough.web.screen import Visit

_JOIN_SECONDS: Final = 0.05
"""How long items are collected before they are sent together."""

_MAX_ITEMS: Final = 50
_QUEUE_ITEMS: Final = 200
_MAX_FRAME_CHARS: Final = 1 << 16
_RETRY_MILLISECONDS: Final = 1000


async def stream_rows(visit: Visit, after: int | None) -> Response:
    """Return the stream of the rows after an event; None for all of them.

    Raises:
        InvalidInput: The log has fewer events.
        LimitExceeded: The key or the tenant has the maximum number of streams.
    """
    access, id = visit.access, visit.read_id()
    head = (await access.store.get(id)).head
    sent = visit.request.headers.get("last-event-id", "")
    last = int(sent) if sent.isascii() and sent.isdigit() else after
    last = -1 if last is None else last
    if last >= max(head, 1):
        raise InvalidInput("after: not a position in this conversation", hint="reload the page")
    access.services.limits.require_stream(access.caller)
    server = access.services.server
    return EventSourceResponse(
        _iterate_frames(visit, last),
        ping=max(1, round(server.heartbeat_seconds)),
        send_timeout=server.send_seconds,
        headers={"X-Accel-Buffering": "no"},
    )


async def _iterate_frames(visit: Visit, after: int) -> AsyncIterator[bytes]:
    access, id = visit.access, visit.read_id()
    services = access.services
    queue: asyncio.Queue[StreamItem | None] = asyncio.Queue(_QUEUE_ITEMS)
    with services.limits.stream(access.caller):
        async with services.broadcasts.join(id) as broadcast, watch_key(access, broadcast) as is_refused:

            async def fill() -> None:
                try:
                    async for item in broadcast.read(after, is_refused):
                        await queue.put(item)
                finally:
                    await queue.put(None)

            # A task fills the queue, so that waiting for 50 ms loses no item and a slow reader holds up only itself.
            filling = asyncio.create_task(fill(), name=f"rows of {id}")
            try:
                last, counted = after, (0, 0)
                while True:
                    items = await _take(queue)
                    if not items:
                        await filling  # raises what ended it
                        return
                    frames, counted = await _make_frames(visit, items, last, counted)
                    for frame in frames:
                        yield frame
                    last = max([last, *(item.seq for item in items if isinstance(item, StoredEvent))])
                    if isinstance(items[-1], StreamEnd):
                        return
            finally:
                filling.cancel()
                await asyncio.gather(filling, return_exceptions=True)


async def _take(queue: asyncio.Queue[StreamItem | None]) -> list[StreamItem]:
    """Return the next items, those that come within 50 ms of the first; empty if no more will come."""
    item = await queue.get()
    items: list[StreamItem] = []
    if item is not None and not isinstance(item, StreamEnd) and queue.empty():
        await asyncio.sleep(_JOIN_SECONDS)
    while item is not None:
        items.append(item)
        if queue.empty() or len(items) == _MAX_ITEMS:
            return items
        item = queue.get_nowait()
    if items:
        queue.put_nowait(None)  # the next call returns no items
    return items


async def _make_frames(
    visit: Visit, items: list[StreamItem], last: int, counted: tuple[int, int]
) -> tuple[list[bytes], tuple[int, int]]:
    """Return the frames of some items: pieces of text, then rows with the state of the conversation, then the end.

    Args:
        counted: A seq, and the number of the turn before it, as the frames before told; those of now are returned.
    """
    frames: list[bytes] = []
    texts: dict[str, str] = {}
    stop = last + 1
    needs_state = False
    for item in items:
        match item:
            case Fragment():
                texts[item.piece.kind] = texts.get(item.piece.kind, "") + item.piece.text
            case RunEnded():
                needs_state = True
            case StreamEnd():
                frames.append(_frame("end", json.dumps({"reason": item.reason})))
            case StoredEvent():
                stop = item.seq + 1
                texts = {}  # the event contains the pieces before it
            case _:
                pass
    rows: list[bytes] = []
    if stop > last + 1 or needs_state:
        rows, counted = await _render_rows(visit, last, stop, counted)
    deltas = [_frame("delta", json.dumps({"kind": kind, "text": text})) for kind, text in texts.items()]
    return [*rows, *deltas, *frames], counted


async def _render_rows(
    visit: Visit, last: int, stop: int, counted: tuple[int, int]
) -> tuple[list[bytes], tuple[int, int]]:
    reader = await LogReader.open(visit.access, visit.read_id(), counted=counted)
    state = visit.render("state.html", {"status": describe_status(reader), "info": reader.info})
    frames: list[bytes] = []
    if stop > last + 1:
        chunks = await reader.read_from(last, stop)
        frames, counted = await _render_range(visit, reader, chunks, last, stop), count_turns(chunks) or counted
    return [*frames, _frame("state", state)], counted


async def _render_range(visit: Visit, reader: LogReader, chunks: Sequence[Chunk], last: int, stop: int) -> list[bytes]:
    """Return the frames of the rows after `last`: one, or more if it would have more than 64 KB."""
    context = {"chunks": chunks, "setting": reader.setting, "start": last + 1, "stop": stop}
    html = visit.render("fragment.html", context)
    if len(html) > _MAX_FRAME_CHARS and stop - last > 2:
        middle = (last + 1 + stop) // 2
        halves = [(last, middle), (middle - 1, stop)]
        return [
            frame
            for after, end in halves
            for frame in await _render_range(visit, reader, await reader.read_from(after, end), after, end)
        ]
    return [_frame("rows", html, id=stop - 1)]


def _frame(event: str, data: str, *, id: int | None = None) -> bytes:
    event_id = None if id is None else str(id)
    return ServerSentEvent(data=data, event=event, id=event_id, retry=_RETRY_MILLISECONDS).encode()
