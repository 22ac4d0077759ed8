"""Routes for conversations: create, list, read, change, delete, compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query, Request, Response
from starlette.status import HTTP_201_CREATED, HTTP_304_NOT_MODIFIED

from bough.conversation import Turn
from bough.conversation.collection import erase_conversation, find_affected
from bough.conversation.fork.compare import Comparison, compare
from bough.conversation.fork.compare_turns import compare_turns
from bough.conversation.fork.orphans import remove_made
from bough.conversation.log.turns import read_turn_page
from bough.errors import Conflict, InvalidInput, NotFound
from bough.events.blob.blob import read_file
from bough.events.content import image_type
from bough.events.model import StateChanged
from bough.events.record import ConversationFilter, ConversationRecord, DeleteMode, MessageQuery, Order, Page
from bough.server.access import Access, Reader, Writer
from bough.server.bodies.base import MAX_SEQ, ItemPage, Success, answer_page
from bough.server.bodies.compared_turns import ComparedTurns, describe_turns
from bough.server.bodies.conversations import (
    AnyStart,
    Change,
    ComparedTurnPage,
    ConversationPage,
    ConversationQuery,
    ConversationSearch,
    Deletion,
    Graft,
    MessageHit,
    TurnPage,
)
from bough.server.bodies.info import (
    ComparedFile,
    ComparedSide,
    ComparisonInfo,
    ConversationInfo,
    Ledger,
    LineageInfo,
    LineageItem,
    summarize,
)
from bough.server.bounds.etag import (
    IdempotencyKey,
    IfMatch,
    IfNoneMatch,
    format_tag,
    id_from_key,
    is_known,
    parse_head,
    require_match,
    set_tag,
)
from bough.server.conversations.conversation import (
    info,
    info_of_record,
    make_document,
    open_conversation,
    read_snapshot,
)
from bough.server.conversations.starting import start_conversation
from bough.server.requests.routing import ConversationId, router
from bough.types import JsonObject

routes = router("Conversations")

_ORDERS: Mapping[str, Order] = {
    "CREATED_AT": "created",
    "CREATED_AT_DESC": "created_desc",
    "UPDATED_AT": "updated",
    "UPDATED_AT_DESC": "updated_desc",
    "COST": "cost",
    "COST_DESC": "cost_desc",
}
_SEARCH_FIELDS = frozenset({"q", "since", "tag", "project", "limit", "page_id"})


@routes.post("/api/conversations", status_code=HTTP_201_CREATED, responses={200: {"model": ConversationInfo}})
async def create_conversation(
    body: AnyStart, access: Writer, request: Request, response: Response, idempotency_key: IdempotencyKey = None
) -> ConversationInfo:
    """Start a conversation. The same request with the same id returns the existing conversation (200)."""
    id = id_from_key(access.caller, request, idempotency_key)
    record, is_new = await start_conversation(access, body, id)
    answer_made(response, record, is_new=is_new, keyed=idempotency_key is not None)
    return await info_of_record(access, record)


@routes.get("/api/conversations/search", response_model=ItemPage[MessageHit] | ItemPage[JsonObject])
async def search_conversations(query: Annotated[ConversationSearch, Query()], access: Reader) -> Response:
    """List conversations; with `q`, search the messages and answers of all conversations."""
    if query.q is not None:
        return await _search_messages(query, query.q, access)
    if query.since is not None:
        raise InvalidInput("since: only with q", hint="to list conversations, use updated_after")
    page, live = await list_records(query, access)
    if query.full:
        items = [(await info_of_record(access, record)).model_dump(mode="json") for record in page.items]
    else:
        items = [summarize(record, running=record.id in live) for record in page.items]
    return answer_page(items, page.next_cursor)


async def list_records(query: ConversationPage, access: Access) -> tuple[Page, frozenset[UUID]]:
    """Return a page of conversations, and the ids of those of the page that have a pending or running run."""
    page = await access.store.list(_parse_filter(query), query.page_id, query.limit, _ORDERS[query.sort_order])
    return page, await access.services.runs.live_among(page.items)


@routes.get("/api/conversations/count")
async def count_conversations(query: Annotated[ConversationQuery, Query()], access: Reader) -> int:
    """Count conversations."""
    return await access.store.count(_parse_filter(query))


@routes.get("/api/conversations")
async def get_conversations(
    access: Reader, ids: Annotated[list[UUID], Query(min_length=1, max_length=99)]
) -> list[ConversationInfo | None]:
    """Return conversations by id; null for an id without a conversation."""
    return [await _info_or_none(access, id) for id in ids]


@routes.get(
    "/api/conversations/{id}",
    response_model=ConversationInfo,
    responses={304: {"description": "The conversation has not changed."}},
)
async def get_conversation(id: ConversationId, access: Reader, if_none_match: IfNoneMatch = None) -> Response:
    """Return one conversation."""
    snapshot = await read_snapshot(access, id)
    head = snapshot.record.head
    if is_known(if_none_match, head):
        return Response(status_code=HTTP_304_NOT_MODIFIED, headers={"ETag": format_tag(head)})
    response = Response(await make_document(access, snapshot), media_type="application/json")
    set_tag(response, head)
    return response


@routes.patch("/api/conversations/{id}")
async def change_conversation(id: ConversationId, body: Change, access: Writer, if_match: IfMatch = None) -> Success:
    """Change the title or the tags of a conversation."""
    require_match(await access.store.get(id), if_match)
    changes = body.model_dump(exclude_none=True)
    if changes:
        await access.store.append(id, [StateChanged(changes=changes)], expected_head=parse_head(if_match))
    return Success()


@routes.delete("/api/conversations/{id}", response_model_exclude_none=True)
async def delete_conversation(
    id: ConversationId,
    access: Writer,
    mode: DeleteMode = "tombstone",
    forks: bool = False,
    if_match: IfMatch = None,
) -> Deletion:
    """Delete a conversation. `cascade` deletes its forks too. `erase` erases its content, also in forks.

    Both need the role admin. `erase` also erases the conversations of its sub-agents, with `forks` its forks, and what
    a deleted conversation left; it returns a receipt.
    """
    if mode != "tombstone":
        access.caller.require("admin")
    if forks and mode != "erase":
        raise InvalidInput("forks: only with mode=erase", hint="mode=cascade deletes the forks")
    affected = await find_affected(access.store, str(id), mode, forks=forks)
    if affected.records and affected.records[0].id == id:
        require_match(affected.records[0], if_match)
    live = await access.services.runs.live_among(affected.records)
    if live or any(conversation.status == "running" for conversation in affected.records):
        subject = "the conversation" if len(affected.records) == 1 else "the conversation or one of its forks"
        raise Conflict(f"{subject} is running", hint="interrupt it first")
    services, erasure = access.services, None
    if mode == "erase":
        whole_store = services.store if access.store.owner is None else None
        receipt = await erase_conversation(access.store, services.settings, affected, whole_store=whole_store)
        erasure = receipt.to_json()
    else:
        await access.store.delete(id, mode)
        await remove_made(services.store, services.settings.home, affected.records)
    for conversation in affected.records:
        services.states.forget(conversation.id)
        await services.webhooks.note_deletion(access.caller.tenant, conversation.id)
    return Deletion(erasure=erasure)


@routes.get("/api/conversations/{id}/lineage")
async def get_lineage(id: ConversationId, access: Reader) -> LineageInfo:
    """Return the ancestors of a conversation, the root first, followed by the conversation itself."""
    records = [*await access.store.ancestry(id), await access.store.get(id)]
    return LineageInfo(items=[LineageItem.of(record) for record in records])


@routes.get("/api/conversations/{id}/turns", response_model=ItemPage[JsonObject])
async def list_turns(id: ConversationId, query: Annotated[TurnPage, Query()], access: Reader) -> Response:
    """Return a page of turns: what was said, called and answered, in order. Reads only about the events of the page."""
    record = await access.store.get(id)
    first = int(query.page_id)
    turns, following = await read_turn_page(access.store, id, first, query.limit, head=record.head)
    return answer_page([turn.as_json() for turn in turns], None if following is None else str(following))


@routes.get("/api/conversations/{id}/attachments/{sha256}", response_class=Response)
async def read_attachment(id: ConversationId, sha256: str, access: Reader) -> Response:
    """Return the bytes of an image or file of a message or a tool's result. Browsers display images only."""
    content = await read_file(access.store, id, sha256)
    image = image_type(content)
    headers = {"X-Content-Type-Options": "nosniff"}
    if image is None:
        headers["Content-Disposition"] = f'attachment; filename="{sha256}"'
    return Response(content, media_type=image or "application/octet-stream", headers=headers)


@routes.get("/api/conversations/{id}/compare/{other}")
async def compare_conversations(
    id: ConversationId,
    other: UUID,
    access: Reader,
    until: Annotated[int | None, Query(ge=1, le=MAX_SEQ, description="The last turn to compare in both.")] = None,
) -> ComparisonInfo:
    """Compare two conversations up to the last turn that both have: return what they share and where they differ."""
    await access.store.get(id)
    await access.store.get(other)
    return _describe_comparison(await compare(access.store, id, other, until=None if until is None else Turn(until)))


@routes.get("/api/conversations/{id}/compare/{other}/turns")
async def compare_conversation_turns(
    id: ConversationId, other: UUID, query: Annotated[ComparedTurnPage, Query()], access: Reader
) -> ComparedTurns:
    """Return a page of the turns after the common events of two conversations, step by step. No log is read whole."""
    records = [await access.store.get(conversation) for conversation in (id, other)]
    if id == other:
        raise InvalidInput("a conversation cannot be compared with itself", hint="choose another branch")
    first = None if query.page_id is None else int(query.page_id)
    comparison = await compare_turns(access.store, *records, first=first, limit=query.limit)
    return describe_turns(comparison, query.cut)


@routes.post("/api/conversations/{id}/graft")
async def graft(id: ConversationId, body: Graft, access: Writer) -> JsonObject:
    """Copy a range of another conversation of the tenant, or a summary of it, into a conversation."""
    async with open_conversation(access, id) as conversation, open_conversation(access, body.source) as source:
        await conversation.graft(source, start=body.start, stop=body.stop, summary=body.summary)
        return {"head": conversation.state.head}


@routes.get("/api/conversations/{id}/agent_final_response")
async def get_final_response(id: ConversationId, access: Reader) -> JsonObject:
    """Return the text of the agent's latest response."""
    state = await access.services.states.state_of(await access.store.get(id))
    return {"response": state.output}


@routes.get("/api/conversations/{id}/runtime")
async def get_runtime(id: ConversationId, access: Reader) -> JsonObject:
    """Report that a conversation is available; conversations need no runtime to be started."""
    await access.store.get(id)
    return {"runtime_status": "available", "can_resume": True, "runtime_error": None}


def answer_made(response: Response, record: ConversationRecord, *, is_new: bool, keyed: bool) -> None:
    """Set the headers of a response that returns a conversation, and status 200 if it existed before."""
    set_tag(response, record.head)
    response.headers["Location"] = f"/api/conversations/{record.id}"
    if not is_new:
        response.status_code = 200
        if keyed:
            response.headers["Idempotency-Replayed"] = "true"


async def _info_or_none(access: Access, id: UUID) -> ConversationInfo | None:
    try:
        return await info(access, id)
    except NotFound:
        return None


async def _search_messages(query: ConversationSearch, text: str, access: Access) -> Response:
    if not query.model_fields_set <= _SEARCH_FIELDS:
        raise InvalidInput(
            "q: some other parameter only lists conversations", hint="give tag, project, since, limit or page_id"
        )
    tags, since = _parse_tags(query.tag), query.since
    narrowed: Any = {"tags": tags, "since": since, "project": query.project}
    message_query = MessageQuery(text=text, limit=query.limit, cursor=query.page_id, **narrowed)
    page = await access.store.search(message_query)
    return answer_page([MessageHit.of(hit) for hit in page.items], page.next_cursor)


def _parse_tags(pairs: list[str]) -> dict[str, str]:
    tags: dict[str, str] = {}
    for tag in pairs:
        name, colon, value = tag.partition(":")
        if not colon or not name:
            raise InvalidInput("tag: not of the form name:value", hint="for example tag=team:red")
        tags[name] = value
    return tags


def _parse_filter(query: ConversationQuery) -> ConversationFilter:
    return ConversationFilter(
        status=query.status,
        tags=_parse_tags(query.tag),
        text=query.text,
        agent=query.agent,
        root=query.root,
        project=query.project,
        created_after=query.created_after,
        created_before=query.created_before,
        updated_after=query.updated_after,
        updated_before=query.updated_before,
        min_cost_usd=query.min_cost_usd,
    )


def _describe_comparison(comparison: Comparison) -> ComparisonInfo:
    sides = [
        ComparedSide(
            id=side.id,
            head=side.head,
            stop=side.stop,
            own=Ledger.of(side.usage),
            calls=[_describe_call(call) for call in side.calls],
        )
        for side in (comparison.a, comparison.b)
    ]
    files = [ComparedFile(path=file.path, change=file.change) for file in comparison.files]
    return ComparisonInfo(common=comparison.common, a=sides[0], b=sides[1], cost_usd=comparison.cost_usd, files=files)


def _describe_call(call: Any) -> JsonObject:
    return {"tool": call.tool, "arguments": call.arguments, "ended": call.ended, "result": call.result}
