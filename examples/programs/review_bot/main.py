"""A review bot in a web app: one conversation for each pull request, and reviews that continue without their caller."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from uuid import NAMESPACE_URL, uuid5

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough import AgentSpec, AsyncConversation, Delta, effect_key, open_store
from bough.errors import BoughError

COMMENTS: dict[str, str] = {}  # stands for the code host: a comment by idempotency key; a key posts once


class Review(BaseModel):
    approve: bool
    summary: str


def post_comment(line: int, text: str) -> str:
    """Post a comment on a line of the change."""
    COMMENTS.setdefault(effect_key(), f"line {line}: {text}")
    return "posted"


def review_offline(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if messages[-1].parts[-1].part_kind == "user-prompt":
        return ModelResponse([ToolCallPart("post_comment", {"line": 3, "text": "This file is never closed."})])
    return ModelResponse([ToolCallPart(info.output_tools[0].name, {"approve": False, "summary": "One open file."})])


BOT = AgentSpec(
    model=os.environ.get("MODEL") or FunctionModel(review_offline),
    system_prompt="Review the change. Comment on single lines with post_comment, then give your review.",
    tools=[post_comment],
    output_type=Review,
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with aclosing(await open_store(os.environ.get("STORE", "memory:"))) as app.state.store:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/pulls/{number}/reviews", status_code=202)
async def review(number: int, request: Request) -> dict[str, int]:
    id, store = uuid5(NAMESPACE_URL, f"pull/{number}"), request.app.state.store
    conversation = await AsyncConversation.create(BOT, id=id, store=store, title=f"#{number}", exist_ok=True)
    try:
        after = conversation.state.head - 1
        key = request.headers.get("Idempotency-Key")
        await conversation.send_message((await request.body()).decode(), id=uuid5(id, key) if key else None)
        await conversation.start(close=True)  # Conflict before the response if a review is running
    except BaseException:
        await conversation.aclose()
        raise
    return {"after": after}


@app.get("/pulls/{number}/events")
async def events(number: int, request: Request, after: int = -1) -> StreamingResponse:
    id, store = uuid5(NAMESPACE_URL, f"pull/{number}"), request.app.state.store
    conversation = await AsyncConversation.open(id, store=store, agent=BOT)  # NotFound before the response

    async def lines() -> AsyncIterator[str]:
        async with conversation:
            async for update in conversation.follow(after):
                if not isinstance(update, Delta):
                    yield f"{update.seq} {update.kind}\n"
            yield f"review: {conversation.state.data}\n"

    return StreamingResponse(lines(), media_type="text/plain")


@app.exception_handler(BoughError)
async def explain(_: Request, error: BoughError) -> JSONResponse:
    return JSONResponse(error.as_dict(), {"not_found": 404, "conflict": 409}.get(error.code, 400))


async def main() -> None:
    async with lifespan(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bot") as web:
        started = await web.post("/pulls/7/reviews", content="+ file = open(path)")
        print(started.status_code, (await web.get("/pulls/7/events", params=started.json())).text, end="")
        print(*COMMENTS.values(), (await web.get("/pulls/8/events")).json()["message"], sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
