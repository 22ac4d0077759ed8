"""Interrupting a run that takes too long, and continuing later: the call that was cut off is on record."""

import asyncio

from bough import AgentSpec, AsyncConversation


async def print_poster(copies: int) -> str:
    """Print posters, which takes a while."""
    if copies > 10:
        printing.set()
        await asyncio.sleep(3600)
    return f"{copies} posters"


printing = asyncio.Event()
printer = AgentSpec(name="printer", model="openai:gpt-5", tools=[print_poster])


async def main() -> None:
    async with await AsyncConversation.create(printer) as conversation:
        await conversation.send_message("Print a thousand posters.")
        run = asyncio.create_task(conversation.run())
        await printing.wait()
        await conversation.interrupt(by="caretaker", reason="the paper is running out")
        result = await run
        print(result.status, result.reason)
        print(*(f"{call.tool}: {call.outcome.kind}" for call in conversation.state.calls.values() if call.outcome))

        await conversation.send_message("Ten will do.")
        print((await conversation.run()).output)


asyncio.run(main())
