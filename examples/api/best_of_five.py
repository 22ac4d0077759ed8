"""Five answers side by side, one judge: forks share what was said before, and only the best one stays."""

import asyncio

import bough
from bough import AgentSpec, AsyncConversation

judge = AgentSpec(
    name="judge",
    model="openai:gpt-5",
    system_prompt="You are given numbered slogans. Answer with the number of the best one.",
    output_type=int,
)


async def main() -> None:
    async with await AsyncConversation.create("openai:gpt-5-mini") as conversation:
        await conversation.send_message("Write a slogan for a bakery by the sea.")
        branches = [await conversation.fork(ephemeral=True, tags={"try": str(n)}) for n in range(5)]
        results = await asyncio.gather(*(branch.run() for branch in branches))
        slogans = "\n".join(f"{n}. {result.output}" for n, result in enumerate(results, 1))
        print(slogans)

        best = (await bough.arun(slogans, agent=judge)).data or 1
        await conversation.graft(branches[best - 1])
        print(f"The judge took number {best}: {results[best - 1].output}")

        for branch in branches:
            await branch.aclose()  # which deletes it: it is ephemeral


asyncio.run(main())
