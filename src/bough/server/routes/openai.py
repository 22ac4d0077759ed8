"""Routes in OpenAI's format: models are agents, and a chat is a conversation."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from fastapi import Header, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sse_starlette import EventSourceResponse

from bough.errors import InvalidInput, NotFound
from bough.server.access import Reader, Writer
from bough.server.openai.answering import ask
from bough.server.openai.completions import follow, make_completion, stream_chunks
from bough.server.openai.messages import IGNORED_HEADER, ChatRequest
from bough.server.requests.routing import router
from bough.types import JsonObject

routes = router("OpenAI")

CONVERSATION_HEADER = "X-Bough-Conversation"
"""The header with the id of a chat's conversation: in each response, and in a request that names one."""

_Conversation = Annotated[
    UUID | None,
    Header(alias=CONVERSATION_HEADER, description="The conversation to continue."),
]


class ModelInfo(BaseModel):
    """An agent, as a model."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "bough"


class ModelList(BaseModel):
    """All agents, as models."""

    object: Literal["list"] = "list"
    data: list[ModelInfo]


@routes.get("/v1/models")
async def list_models(access: Reader) -> ModelList:
    """List the agents as models."""
    return ModelList(data=[ModelInfo(id=name) for name in access.services.agents.names()])


@routes.get("/v1/models/{model}")
async def get_model(model: str, access: Reader) -> ModelInfo:
    """Return an agent as a model."""
    try:
        access.services.agents.find_named(model)
    except InvalidInput as error:
        raise NotFound("no agent has that name", hint=error.hint) from None
    return ModelInfo(id=model)


@routes.post("/v1/chat/completions", response_model=JsonObject)
async def complete_chat(body: ChatRequest, access: Writer, conversation: _Conversation = None) -> Response:
    """Complete a chat with an agent. The same chat with more messages continues the same conversation.

    A chat with a changed message is a fork before that message. Tools run on the server; their calls are in
    `reasoning_content`. A call that needs an approval is refused.
    """
    # Before a run is started whose answer the caller could not read.
    access.services.limits.require_stream(access.caller)
    chat = await ask(access, body, conversation)
    completion = make_completion(chat, int(access.services.clock.now().timestamp()))
    headers = {CONVERSATION_HEADER: str(chat.id)}
    if ignored := body.list_ignored():
        headers[IGNORED_HEADER] = ", ".join(ignored)
    if not body.stream:
        async for _ in follow(access, chat, completion):
            pass
        return JSONResponse(completion.as_completion(), headers=headers)
    server, with_usage = access.services.server, body.stream_options is not None and body.stream_options.include_usage
    return EventSourceResponse(
        stream_chunks(access, chat, completion, with_usage=with_usage),
        ping=max(1, round(server.heartbeat_seconds)),
        send_timeout=server.send_seconds,
        headers=headers | {"X-Accel-Buffering": "no"},
        sep="\n",
    )
