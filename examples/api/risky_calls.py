"""Only risky calls wait: rules look at commands and paths, and another model judges what rules do not know."""

from bough import AgentSpec, ConfirmRisky, Conversation, ModelAnalyzer, Risk


def set_thermostat(celsius: float) -> str:
    """Set the temperature of the house."""
    return f"{celsius} degrees"


house = AgentSpec(name="house", model="openai:gpt-5", tools=[set_thermostat])
judge = ModelAnalyzer("openai:gpt-5-mini")

with Conversation(
    house, confirmation_policy=ConfirmRisky(threshold=Risk.MEDIUM), security_analyzer=judge
) as conversation:
    conversation.send_message("Make it 20 degrees in here.")
    print(conversation.run().output)

    conversation.send_message("And now 60 degrees.")
    result = conversation.run()
    for call in result.waiting:
        print(f"{call.tool} {call.arguments} waits: {call.risk}, {call.reason}")
    conversation.reject(reason="that would be a sauna")
    print(conversation.run().output)
    print(f"{conversation.usage.requests} requests, those of the judge included")
