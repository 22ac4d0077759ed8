"""Many conversations at once in one event loop, no more than a few at a time, each with its own log."""

import asyncio
from contextlib import aclosing

import bough
from bough import AgentSpec, open_store
from bough.errors import BoughError

CITIES = ("Lisbon", "Bergen", "Graz", "Atlantis")

geographer = AgentSpec(
    name="geographer",
    model="openai:gpt-5-mini",
    system_prompt="Name the river of a city in one word.",
)


async def main() -> None:
    few = asyncio.Semaphore(2)
    async with aclosing(await open_store("sqlite:///rivers.db")) as store:  # one for all: their writes share commits

        async def find_river(city: str) -> str:
            async with few:
                try:
                    return (await bough.arun(city, agent=geographer, store=store)).output
                except BoughError as error:
                    return f"unknown ({error.code})"

        rivers = await asyncio.gather(*(find_river(city) for city in CITIES))
    for city, river in zip(CITIES, rivers, strict=True):
        print(f"{city}: {river}")


asyncio.run(main())
