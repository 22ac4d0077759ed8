"""A web API of your own: messages, a stream of events that clients may leave and join again, approvals.

Start it with `uvicorn web_api:app`.
"""

import json
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse

from bough import AgentSpec, AlwaysConfirm, AsyncConversation, Delta, StoredEvent
from bough.errors import BoughError, Conflict, NotFound


def publish(text: str) -> str:
    """Publish a text for everybody to read."""
    return f"published: {text}"


editor = AgentSpec(model="openai:gpt-5", tools=[publish], confirmation_policy=AlwaysConfirm())
app = FastAPI()


@app.post("/chats/{id}/messages", status_code=202)
async def send(id: UUID, text: str) -> dict[str, int]:
    """Send a message and start a run. Returns the seq after which `events` has its events."""
    conversation = await AsyncConversation.create(editor, id=id, exist_ok=True)
    try:
        after = conversation.state.head - 1
        await conversation.send_message(text)
        await conversation.start(close=True)  # raises Conflict before the response, if another run is active
    except BaseException:
        await conversation.aclose()
        raise
    return {"after": after}


@app.post("/chats/{id}/approvals/{call}", status_code=202)
async def approve(id: UUID, call: str) -> dict[str, int]:
    """Approve a call and start a run."""
    conversation = await AsyncConversation.open(id, agent=editor)
    try:
        after = conversation.state.head - 1
        await conversation.approve(call)
        await conversation.start(close=True)
    except BaseException:
        await conversation.aclose()
        raise
    return {"after": after}


@app.get("/chats/{id}/events")
async def events(id: UUID, after: Annotated[int, Query(ge=-1)] = -1) -> StreamingResponse:
    """Stream the events after a seq until the run has ended. A client that leaves stops nothing, and may come back."""
    conversation = await AsyncConversation.open(id, agent=editor)  # raises NotFound before the response
    return StreamingResponse(lines(conversation, conversation.follow(after)), media_type="text/event-stream")


async def lines(conversation: AsyncConversation, updates: AsyncIterator[StoredEvent | Delta]) -> AsyncIterator[str]:
    """Return updates as server-sent events."""
    async with conversation:
        async for update in updates:
            if isinstance(update, Delta):
                yield f"event: delta\ndata: {json.dumps(update.text)}\n\n"
            else:
                yield f"id: {update.seq}\nevent: {update.kind}\ndata: {json.dumps(update.as_json())}\n\n"


@app.exception_handler(BoughError)
async def explain(_: Request, error: BoughError) -> JSONResponse:
    """Return an error as JSON."""
    status = 404 if isinstance(error, NotFound) else 409 if isinstance(error, Conflict) else 400
    return JSONResponse(error.as_dict(), status)
