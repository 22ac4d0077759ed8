"""A provider that fails: requests are repeated, each wait is an event, and another model takes over in the end."""

from bough import AgentSpec, Conversation, RetryPolicy, StoredEvent
from bough.conversation import Update
from bough.errors import ModelError
from bough.events import RequestRetried

agent = AgentSpec(
    model="openai:gpt-5",
    retry=RetryPolicy(attempts=2, base_seconds=0.01, max_seconds=30),
    fallback=["openai:gpt-5-mini"],
)


def tell(update: Update) -> None:
    """Print what went wrong, while it does."""
    if isinstance(update, StoredEvent) and isinstance(retried := update.event, RequestRetried):
        then = f"now {retried.next_model}" if retried.next_model else f"again in {retried.wait_seconds:.2f} s"
        print(f"{retried.model}: status {retried.status}, {then}")


with Conversation(agent) as conversation:
    conversation.send_message("Are you there?")
    try:
        print(conversation.run(on_event=tell).output)
    except ModelError as error:
        print(f"gave up: {error.message}")
