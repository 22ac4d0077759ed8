"""64 conversations that run at once and spend one budget, against the same ones without a budget.

Each request holds its amount in one more statement before it is sent, and settles it in the transaction of its
response. All of them write the same row, so this is where they would wait for each other. The model
takes as long as a fast one does until its answer; with a model that answers at once, the figure would show the
statements alone, and tests count those.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough import AgentSpec, AsyncConversation, Budget, Settings, open_store
from harness import compare_async, measure_seconds_async

CONVERSATIONS = 64
MESSAGES = 3
ANSWER_SECONDS = 0.3


async def answer(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
    """Answer as a fast model does."""
    await asyncio.sleep(ANSWER_SECONDS)
    return ModelResponse(parts=[TextPart("done")])


async def main() -> None:
    """Measure runs of all conversations, in a durable store, and report them."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        settings = Settings.load(Path(folder) / "home")
        store = await open_store(f"sqlite:///{folder}/log.db")
        agent = AgentSpec(name="worker", model=FunctionModel(answer), skills=())

        async def run_all(budget: Budget | None) -> None:
            async def converse() -> None:
                conversation = await AsyncConversation.create(
                    agent, workspace=folder, store=store, settings=settings, budget=budget
                )
                async with conversation:
                    for _ in range(MESSAGES):
                        await conversation.send_message("go")
                        if (await conversation.run()).status != "finished":
                            raise RuntimeError(str(conversation.state.limit))

            await asyncio.gather(*(converse() for _ in range(CONVERSATIONS)))

        shared = Budget(tokens=1 << 50, requests=1 << 50, id="shared")
        await measure_seconds_async(lambda: run_all(shared))
        await compare_async(
            f"budget: {CONVERSATIONS} conversations that share one",
            lambda: run_all(Budget(id="shared")),
            lambda: run_all(None),
        )
        await store.aclose()


if __name__ == "__main__":
    asyncio.run(main())
