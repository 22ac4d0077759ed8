"""200 forks of one prepared conversation, each asked one question, beside the model's own time for the questions.

Sixteen forks run at once, in a durable store, and the model takes as long as a fast one does until its answer. The
floor is a bare PydanticAI agent that is asked the same questions, sixteen at once, after the same messages.

    python benchmarks/batch.py [--small]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough import AgentSpec, AsyncConversation, Settings, open_store
from harness import ROUNDS, compare_async

FORKS = 200
SMALL_FORKS = 8
AT_ONCE = 16
ANSWER_SECONDS = 0.3
PROMPT = "You sort tickets. Answer with the kind alone."
Ask = Callable[[int], Awaitable[None]]
RULES = "Sort by what the customer wants. " * 50


async def answer(_: list[ModelMessage], __: AgentInfo) -> ModelResponse:
    """Answer as a fast model does."""
    await asyncio.sleep(ANSWER_SECONDS)
    return ModelResponse(parts=[TextPart("refund")])


async def main(forks: int, rounds: int) -> None:
    """Measure the forks of one conversation and report them."""
    model = FunctionModel(answer)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        settings = Settings.load(Path(folder) / "home")
        store = await open_store(f"sqlite:///{folder}/log.db")
        spec = AgentSpec(name="clerk", model=model, system_prompt=PROMPT, skills=())
        prepared = await AsyncConversation.create(spec, workspace=folder, store=store, settings=settings)
        await prepared.send_message(RULES)
        await prepared.run()
        agent = Agent(model, instructions=PROMPT)
        history = (await agent.run(RULES)).all_messages()

        async def ask_fork(number: int) -> None:
            async with await prepared.fork(title=f"ticket {number}") as fork:
                await fork.send_message(f"Ticket {number}: I want my money back.")
                if (await fork.run()).status != "finished":
                    raise RuntimeError(f"fork {number} did not finish")

        async def ask_agent(number: int) -> None:
            await agent.run(f"Ticket {number}: I want my money back.", message_history=history)

        async def ask_all(ask: Ask) -> None:
            at_once = asyncio.Semaphore(AT_ONCE)

            async def ask_one(number: int) -> None:
                async with at_once:
                    await ask(number)

            await asyncio.gather(*(ask_one(number) for number in range(forks)))

        await compare_async(
            f"batch: {forks} forks of one conversation, to the model's own time",
            lambda: ask_all(ask_fork),
            lambda: ask_all(ask_agent),
            unit="s",
            rounds=rounds,
        )
        await prepared.aclose()
        await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(SMALL_FORKS, 5) if "--small" in sys.argv[1:] else main(FORKS, ROUNDS))
