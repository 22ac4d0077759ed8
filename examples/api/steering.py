"""Saying something while the agent works: it is seen at the next step, and nothing has to be stopped."""

from bough import AgentSpec, Conversation, StoredEvent


def search(query: str, page: int) -> str:
    """Search for flats."""
    return f"page {page}: 3 flats for {query!r}"


agent = AgentSpec(name="agent", model="openai:gpt-5", tools=[search])

with Conversation(agent) as conversation:
    conversation.send_message("Find me a flat with a garden; continue until I say stop.")
    found = 0
    for update in conversation.run_stream():
        if isinstance(update, StoredEvent) and update.event.kind == "ToolReturned":
            found += 1
            if found == 2:
                conversation.send_message("Stop: the second page has what I want.", sender="user")
    if conversation.result is not None:
        print(conversation.result.status, conversation.result.output)
