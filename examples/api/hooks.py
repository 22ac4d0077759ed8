"""Hooks: functions or programs that are asked before a call, before a message, and at the end of a run."""

from typing import Any

from bough import AgentSpec, Conversation, Hook, HookKind, HookSet

FILES = {"notes.txt": "buy milk", "salaries.csv": "ada,90000"}


def read(name: str) -> str:
    """Read a file."""
    return FILES[name]


def guard_salaries(asked: dict[str, Any]) -> dict[str, str] | None:
    """Say no to whatever would read the salaries."""
    if "salaries" in asked["tool_input"]["name"]:
        return {"decision": "block", "reason": "salaries are read by people only"}
    return None


hooks = HookSet((Hook(kind=HookKind.PRE_TOOL_USE, matcher="read", function=guard_salaries),))

with Conversation(AgentSpec(model="openai:gpt-5", tools=[read]), hooks=hooks) as conversation:
    conversation.send_message("What is in my notes, and what does Ada earn?")
    print(conversation.run().output)
    for stored in conversation.events:
        if stored.event.kind == "ToolRejected":
            print(f"refused by {stored.event.by}: {stored.event.reason}")
