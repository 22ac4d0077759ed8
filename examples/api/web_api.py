"""A web API of your own: a run as server-sent events, approvals in a second request. `uvicorn web_api:app`."""

import json
from collections.abc import AsyncIterator
from uuid import UUID

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from bough import AgentSpec, AlwaysConfirm, AsyncConversation, Delta


def publish(text: str) -> str:
    """Publish a text for everybody to read."""
    return f"published: {text}"


editor = AgentSpec(model="openai:gpt-5", tools=[publish], confirmation_policy=AlwaysConfirm())
app = FastAPI()


async def run(conversation: AsyncConversation) -> AsyncIterator[str]:
    async with conversation:  # a client that goes away closes it, which interrupts the run
        async for update in conversation.run_stream():
            kind, data = ("delta", update.text) if isinstance(update, Delta) else (update.kind, update.as_json())
            yield f"event: {kind}\ndata: {json.dumps(data)}\n\n"


@app.post("/chats/{id}/messages")
async def send(id: UUID, text: str) -> StreamingResponse:
    conversation = await AsyncConversation.create(editor, id=id, exist_ok=True)
    await conversation.send_message(text)
    return StreamingResponse(run(conversation), media_type="text/event-stream")


@app.post("/chats/{id}/approvals/{call}")
async def approve(id: UUID, call: str) -> StreamingResponse:
    conversation = await AsyncConversation.open(id, agent=editor)
    await conversation.approve(call)
    return StreamingResponse(run(conversation), media_type="text/event-stream")
