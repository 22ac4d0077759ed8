"""Memory over conversations: a tool that searches what was said before, in a person's other conversations."""

from pydantic_ai import RunContext

from bough import AgentSpec, AsyncConversation, Conversation, ToolContext

STORE = "sqlite:///memory.db"
ADA = {"person": "ada"}


async def recall(ctx: RunContext[ToolContext], words: str) -> list[str]:
    """Find what was said in earlier conversations: a few words that must all occur, `word*` for a beginning."""
    page = await AsyncConversation.search(words, tags=ADA, store=STORE)
    return [f"{hit.who}: {hit.snippet}" for hit in page.items if hit.conversation != ctx.deps.conversation]


# A tool, not a script of a skill: scripts run in a sandbox, which cannot reach the store and its other conversations.
assistant = AgentSpec(
    name="assistant",
    model="openai:gpt-5",
    system_prompt="Before you say that you do not know something about the person, call recall.",
    tools=[recall],
)


def tell(message: str) -> None:
    with Conversation(assistant, store=STORE, tags=ADA) as conversation:
        conversation.send_message(message)
        print(conversation.run().output)


tell("My sister Grace moved to Lisbon.")
tell("Which city shall I fly to if I visit my sister?")
