"""Secrets by name: a command gets those that it names, and nobody ever sees a value."""

import os

from bough import AgentSpec, Conversation, EnvSecret, Secrets

os.environ.setdefault("SHOP_TOKEN", "tok-2718281828")


def fetch_password() -> str:
    """Return a password from wherever it is kept; asked once a run."""
    return "correct-horse-battery"


secrets = Secrets({"API_TOKEN": EnvSecret("SHOP_TOKEN"), "DB_PASSWORD": fetch_password})
operator = AgentSpec(
    name="operator",
    model="openai:gpt-5",
    system_prompt="You run commands. $API_TOKEN is set for commands that name it.",
    workspace_access="run",
)

with Conversation(operator, secrets=secrets) as conversation:
    conversation.send_message("Check that the token is set.")
    print(conversation.run().output)
    for stored in conversation.events:
        if stored.event.kind == "ToolReturned":
            print("the model was told:", stored.event.result)
