"""Two ways on from the same point: the beginning is shared, and what each did is held side by side."""

from bough import AgentSpec, Conversation


def book(hotel: str, nights: int) -> str:
    """Book a room."""
    return f"{nights} nights at {hotel}"


agent = AgentSpec(name="traveller", model="openai:gpt-5", tools=[book])

with Conversation(agent, title="a weekend") as conversation:
    conversation.send_message("We want to go to Lisbon. What should we think of?")
    print(conversation.run().output)

    with (
        conversation.fork(title="cheap") as cheap,
        conversation.fork(title="grand", overrides={"model": "openai:gpt-5-mini"}) as grand,
    ):
        for branch, wish in ((cheap, "Book something cheap."), (grand, "Book the best there is.")):
            branch.send_message(wish)
            print(f"{branch.title}: {branch.run().output}")

        compared = cheap.compare(grand)
        print(f"{compared.common} events in common")
        for difference in compared.calls:
            print("cheap:", *(call.arguments for call in difference.a))
            print("grand:", *(call.arguments for call in difference.b))
