"""Routes for events: pages, single events, a stream; and for messages."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Header, Query, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse

from bough.conversation import Turn
from bough.conversation.log.journal import Journal
from bough.conversation.message import find_message
from bough.conversation.run.waiting.decision import CallDecision
from bough.errors import Conflict, InvalidInput, NotFound
from bough.events.model import UserMessage
from bough.events.record import ConversationRecord
from bough.server.access import Access, Approver, Reader, Writer
from bough.server.bodies.base import ItemPage, Success, answer_page
from bough.server.bodies.conversations import Repeat
from bough.server.bodies.events import (
    ConfirmationAnswer,
    EventPage,
    EventQuery,
    FieldQuery,
    MessageSent,
    NewMessage,
    answer_field,
    wants_ours,
)
from bough.server.bounds.etag import IdempotencyKey, IfMatch, id_from_key, parse_head, require_match
from bough.server.conversations.conversation import open_conversation, require_short, say
from bough.server.conversations.deciding import decide, list_approvals
from bough.server.reading import EventReader
from bough.server.requests.routing import ConversationId, router
from bough.server.routes.live import StreamQuery, sse_frames
from bough.types import JsonObject, new_id

routes = router("Events")
_OPENHANDS_LIMIT = 100

Accept = Annotated[str | None, Header(description="`application/vnd.bough.event+json` returns events in bough's form.")]


@routes.get("/api/conversations/{id}/events/search", response_model=ItemPage[JsonObject])
async def search_events(
    id: ConversationId, query: Annotated[EventPage, Query()], access: Reader, accept: Accept = None
) -> Response:
    """Return a page of events."""
    ours = wants_ours(accept)
    if not ours and query.limit > _OPENHANDS_LIMIT:
        raise InvalidInput("limit: at most 100 in this form", hint="500 with Accept: application/vnd.bough.event+json")
    page = await (await _open_reader(access, id, ours=ours)).page(query, limit=query.limit)
    return answer_page(page.items, page.next_page_id)


@routes.get("/api/conversations/{id}/events/count")
async def count_events(
    id: ConversationId, query: Annotated[EventQuery, Query()], access: Reader, accept: Accept = None
) -> int:
    """Count events in the requested form."""
    return await (await _open_reader(access, id, ours=wants_ours(accept))).count(query)


@routes.get("/api/conversations/{id}/events/stream", response_class=EventSourceResponse)
async def stream_events(
    id: ConversationId,
    query: Annotated[StreamQuery, Query()],
    request: Request,
    access: Reader,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventSourceResponse:
    """Stream a conversation: recorded events with their seq as id, pieces of text as `delta`, and changes of status."""
    record = await access.store.get(id)
    after = query.find_start(last_event_id, record.head)
    access.services.limits.require_stream(access.caller)
    server = access.services.server
    return EventSourceResponse(
        sse_frames(access, record, query, after),
        ping=max(1, round(server.heartbeat_seconds)),
        send_timeout=server.send_seconds,
        headers={"X-Accel-Buffering": "no"},
    )


@routes.get("/api/conversations/{id}/events")
async def get_events(
    id: ConversationId,
    access: Reader,
    ids: Annotated[list[str], Query(min_length=1, max_length=100)],
    accept: Accept = None,
) -> list[JsonObject | None]:
    """Return events by id; null for an id without an event."""
    reader = await _open_reader(access, id, ours=wants_ours(accept))
    return [await _read_or_none(reader, event_id) for event_id in ids]


@routes.get("/api/conversations/{id}/events/{event_id}", response_model=JsonObject)
async def get_event(
    id: ConversationId, event_id: str, query: Annotated[FieldQuery, Query()], access: Reader, accept: Accept = None
) -> Response:
    """Return one event, or one part of an event.

    With `field`, a range of that field in bough's form, as text: a value that is not a text is JSON.
    """
    if query.field is None:
        return JSONResponse(await (await _open_reader(access, id, ours=wants_ours(accept))).one(event_id))
    event = await (await _open_reader(access, id, ours=True)).one(event_id)
    return answer_field(event, query)


@routes.post("/api/conversations/{id}/events")
async def send_message(
    id: ConversationId,
    body: NewMessage,
    access: Writer,
    request: Request,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
) -> MessageSent:
    """Send a message. With `run`, the active run or a new one answers it."""
    record = await access.store.get(id)
    require_match(record, if_match)
    message = body.event()
    require_short(access, message)
    event_id = body.id or id_from_key(access.caller, request, idempotency_key) or new_id()
    message = message.model_copy(update={"id": event_id})
    is_repeatable = body.id is not None or idempotency_key is not None  # a generated id is new
    if not (is_repeatable and await _was_sent(access, id, message)):
        await _say(access, record, message, run=body.run, expected_head=parse_head(if_match))
    return MessageSent(event_id=event_id, head=(await access.store.get(id)).head)


@routes.post("/api/conversations/{id}/repeat")
async def repeat_turn(id: ConversationId, body: Repeat, access: Writer) -> MessageSent:
    """Send the message of a recorded turn again, of this conversation or of one related by forks, as a new message."""
    record = await access.store.get(id)
    source = record if body.conversation is None else await access.store.get(body.conversation)
    journal = Journal(access.store, source.id)
    try:
        await journal.catch_up()
        recorded = await find_message(journal, record.root, Turn(body.turn), source=source)
    finally:
        await journal.aclose()
    message = recorded if body.id is None else recorded.model_copy(update={"id": body.id})
    if body.id is None or not await _was_sent(access, id, message):
        await _say(access, record, message, run=body.run)
    return MessageSent(event_id=message.id, head=(await access.store.get(id)).head)


@routes.post("/api/conversations/{id}/events/respond_to_confirmation")
async def respond_to_confirmation(id: ConversationId, body: ConfirmationAnswer, access: Approver) -> Success:
    """Approve or reject all waiting calls. After an approval, the run continues."""
    calls, by = await list_approvals(access, await access.store.get(id)), access.caller.name
    decision = CallDecision(approve=calls, by=by) if body.accept else _reject(calls, body.reason, by)
    await decide(access, id, decision, run=body.accept)
    return Success()


def _reject(calls: tuple[str, ...], reason: str, by: str) -> CallDecision:
    return CallDecision(reject=calls, reason=reason, by=by)


async def _open_reader(access: Access, id: UUID, *, ours: bool) -> EventReader:
    record = await access.store.get(id)
    return EventReader(store=access.store, cid=id, head=record.head, form=access.services.form_for(ours=ours))


async def _read_or_none(reader: EventReader, id: str) -> JsonObject | None:
    try:
        return await reader.one(id)
    except NotFound:
        return None


async def _say(
    access: Access, record: ConversationRecord, message: UserMessage, *, run: bool, expected_head: int | None = None
) -> None:
    """Send a message; see `say`.

    Raises:
        Conflict: The id of the message belongs to an event of any log.
    """
    async with open_conversation(access, record) as conversation:
        try:
            await say(access, conversation, message, run=run, expected_head=expected_head)
        except Conflict:
            if await _event_exists(access, message.id):
                raise _make_conflict() from None
            raise


async def _was_sent(access: Access, id: UUID, message: UserMessage) -> bool:
    """Whether the log already contains this message.

    Raises:
        Conflict: The log contains another event with the id of the message.
    """
    try:
        _, seq = await access.store.locate(message.id, cid=id)
    except NotFound:
        return False
    async for stored in access.store.read(id, seq, seq + 1):
        event = stored.event
        if isinstance(event, UserMessage) and (event.content, event.sender) == (message.content, message.sender):
            return True
    raise _make_conflict()


async def _event_exists(access: Access, id: UUID) -> bool:
    """Whether an event of any log, of any tenant, has this id."""
    try:
        await access.services.store.locate(id)
    except NotFound:
        return False
    return True


def _make_conflict() -> Conflict:
    return Conflict("the id is used by another event", hint="use another id, or send the same message")
