"""Tools that run elsewhere: in a browser or on a phone. The run ends, and continues once they have answered."""

from typing import Any

from pydantic_ai import ExternalToolset, ToolDefinition

from bough import AgentSpec, Conversation

locate = ToolDefinition(
    name="locate",
    description="Ask the customer's phone where it is.",
    parameters_json_schema={"type": "object", "properties": {"precise": {"type": "boolean"}}},
)
guide = AgentSpec(name="guide", model="openai:gpt-5", toolsets=[ExternalToolset[Any]([locate])])

with Conversation(guide) as conversation:
    conversation.send_message("Where is the nearest bakery?")
    result = conversation.run()
    conversation_id = result.conversation
    for call in result.waiting:
        print(f"{call.kind}: {call.tool} {call.arguments}")

# Later, perhaps in another process, the phone has answered.
with Conversation.open(conversation_id, agent=guide) as conversation:
    for call in conversation.waiting:
        conversation.answer(call.id, {"latitude": 48.85, "longitude": 2.35}, by="phone")
    print(conversation.run().output)
