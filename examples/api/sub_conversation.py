"""A tool that has a conversation of its own: another agent, another model, and its own log."""

import asyncio

import bough
from bough import AgentSpec, AsyncConversation, Limits

researcher = AgentSpec(
    name="researcher",
    model="openai:gpt-5-mini",
    system_prompt="You answer one question in one sentence, and say how sure you are.",
)


async def research(question: str) -> str:
    """Have a question looked into; several may be asked at once."""
    result = await bough.arun(question, agent=researcher, limits=Limits(steps=5, total_tokens=20_000))
    return result.output if result.status == "finished" else f"no answer: {result.reason}"


async def main() -> None:
    writer = AgentSpec(name="writer", model="openai:gpt-5", tools=[research])
    async with await AsyncConversation.create(writer) as conversation:
        await conversation.send_message("Write one sentence about tides on Earth and one about those on Titan.")
        print((await conversation.run()).output)
    page = await AsyncConversation.list()
    print(f"{len(page.items)} conversations")


asyncio.run(main())
