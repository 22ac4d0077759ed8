"""Bounds: of each run, of the whole conversation, and what happens when one is reached."""

from bough import AgentSpec, Conversation, Limits


def look_further(page: int) -> str:
    """Read a page of a report that never ends."""
    return f"page {page}: to be continued on page {page + 1}"


reader = AgentSpec(name="reader", model="openai:gpt-5", tools=[look_further])
bounds = [Limits(steps=2, wall_seconds=60), Limits(per="conversation", total_tokens=100_000)]

with Conversation(reader, limits=bounds) as conversation:
    conversation.send_message("How does the report end?")
    result = conversation.run()
    print(result.status, result.reason, result.steps)

    result = conversation.run()  # a bound of each run: running again continues
    print(result.status, result.reason, result.steps)

    conversation.set_limits(Limits(steps=10))  # from the next step on, also of a run in progress
    result = conversation.run()
    print(result.status, result.output)
    print(f"{conversation.usage.input_tokens + conversation.usage.output_tokens} tokens in all")
