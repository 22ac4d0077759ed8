"""Pausing: anybody may ask a run to stop at its next step, here a tool; a person looks, and the run continues."""

from bough import AgentSpec, Conversation

WATERED: list[str] = []


def water(plant: str) -> str:
    """Water a plant."""
    WATERED.append(plant)
    if len(WATERED) == 2:
        conversation.pause(by="gardener", reason="the can is empty")
    return f"{plant} has water"


agent = AgentSpec(name="gardener", model="openai:gpt-5", tools=[water])

with Conversation(agent) as conversation:
    conversation.send_message("Water the fern, the palm and the cactus, one after the other.")
    result = conversation.run()
    print(result.status, *WATERED)

    conversation.send_message("The can is full again, but leave the cactus alone.")
    result = conversation.run()
    print(result.status, *WATERED)
    print(result.output)
