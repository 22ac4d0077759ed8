"""An agent that was written for PydanticAI, with its own deps, tools and output: it runs as it is."""

import asyncio

from pydantic_ai import Agent, ModelRetry, RunContext

from bough import AgentSpec, AsyncConversation

weather = Agent(deps_type=dict[str, str], output_type=str, name="weather", instructions="You tell the weather.")


@weather.tool
def look_up(ctx: RunContext[dict[str, str]], city: str) -> str:
    """Look up the weather of a city."""
    if city not in ctx.deps:
        raise ModelRetry(f"unknown city; known ones: {', '.join(ctx.deps)}")
    return ctx.deps[city]


async def main() -> None:
    spec = AgentSpec.of(weather, model="openai:gpt-5", deps={"Lisbon": "sunny", "Bergen": "rain"})
    async with await AsyncConversation.create(spec) as conversation:
        await conversation.send_message("How is the weather in Norway?")
        print((await conversation.run()).output)
        async for stored in conversation.events:
            if stored.event.kind == "ToolFailed":
                print("told to the model:", stored.event.error)


asyncio.run(main())
