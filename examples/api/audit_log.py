"""The log is the truth: what happened, who decided, what it cost; read by kind, as text, as JSON."""

import json

from bough import AgentSpec, Conversation
from bough.events import ModelResponded, ToolCalled


def delete_account(name: str) -> str:
    """Delete an account."""
    return f"{name} is gone"


clerk = AgentSpec(name="clerk", model="openai:gpt-5", tools=[delete_account])

with Conversation(clerk, tags={"ticket": "4711"}) as conversation:
    conversation.send_message("Delete the account of Mallory.")
    conversation.run()

    for stored in conversation.events:
        match stored.event:
            case ToolCalled(tool=tool, arguments=arguments, risk=risk):
                print(f"{stored.seq:3} {stored.ts:%H:%M} {tool} {json.dumps(arguments)} risk={risk}")
            case ModelResponded(usage=usage, finish_reason=reason):
                print(f"{stored.seq:3} {usage.input_tokens} in, {usage.output_tokens} out, {reason}")
            case _:
                pass

    with open("audit.jsonl", "w") as file:
        file.writelines(json.dumps(stored.as_json()) + "\n" for stored in conversation.events)
