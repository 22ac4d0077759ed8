"""A conversation outlives its program: the same id creates it the first time and opens it every other time."""

from uuid import NAMESPACE_URL, uuid5

from bough import AgentSpec, Conversation

STORE = "sqlite:///shop.db"

assistant = AgentSpec(name="assistant", model="openai:gpt-5", system_prompt="You remember what people like.")


def answer(person: str, message: str) -> str:
    """Answer a person, who may have been here before; each call could be a process of its own."""
    id = uuid5(NAMESPACE_URL, f"https://shop.example/people/{person}")
    with Conversation(assistant, id=id, exist_ok=True, store=STORE, tags={"person": person}) as conversation:
        conversation.send_message(message)
        return conversation.run().output


print(answer("ada", "I like oolong."))
print(answer("bob", "Good morning."))
print(answer("ada", "What shall I drink?"))

for record in Conversation.list(STORE).items:
    print(f"{record.tags['person']}: {record.title}, {record.head} events, {record.status}")
