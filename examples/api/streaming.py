"""Text as it is written, calls as they happen: one stream in the order of causes."""

import asyncio

from bough import AgentSpec, AsyncConversation, Delta
from bough.events import ToolCalled, ToolReturned


def roll(sides: int) -> int:
    """Roll a die."""
    return sides  # a lucky one


async def main() -> None:
    agent = AgentSpec(model="openai:gpt-5", tools=[roll])
    async with await AsyncConversation.create(agent) as conversation:
        await conversation.send_message("Roll a die of six sides and tell me about it.")
        async for update in conversation.run_stream():
            match update:
                case Delta(kind="text", text=text):
                    print(text, end="", flush=True)
                case Delta():
                    pass  # what the model thinks, and arguments on their way
                case _:
                    match update.event:
                        case ToolCalled(tool=tool, arguments=arguments):
                            print(f"[{tool} {arguments}")
                        case ToolReturned(result=result):
                            print(f" -> {result}]")
                        case _:
                            pass
        print(f"\n{conversation.status}")


asyncio.run(main())
