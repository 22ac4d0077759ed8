"""Plain functions as tools: the docstring is what the model reads, the types are checked before a call runs."""

from datetime import date

from pydantic_ai import Tool

from bough import AgentSpec, Conversation

HOLIDAYS = {date(2026, 12, 25): "Christmas Day", date(2026, 12, 26): "Boxing Day"}


def days_between(start: date, end: date) -> int:
    """Count the days from one date to another."""
    return (end - start).days


def find_holidays(start: date, end: date) -> list[str]:
    """List the public holidays between two dates."""
    return [name for day, name in HOLIDAYS.items() if start <= day <= end]


planner = AgentSpec(
    name="planner",
    model="openai:gpt-5",
    # A lookup may simply run again after a crash; other calls that were under way are reported as interrupted.
    tools=[days_between, Tool(find_holidays, metadata={"idempotent": True})],
)

with Conversation(planner) as conversation:
    conversation.send_message("How many working days are there from 2026-12-21 to 2026-12-28?")
    result = conversation.run()
    print(result.output)
    print(f"{result.steps} steps")
    for stored in conversation.events:
        if stored.event.kind == "ToolReturned":
            print(f"{stored.event.tool}: {stored.event.result}")
