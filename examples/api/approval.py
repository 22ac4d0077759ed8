"""Calls wait for a person, who lets them run, runs them with other arguments, or says no."""

from bough import AgentSpec, AlwaysConfirm, Conversation

SENT: list[str] = []


def send_money(to: str, amount_eur: float) -> str:
    """Send money to somebody."""
    SENT.append(f"{amount_eur:.2f} EUR to {to}")
    return SENT[-1]


bank = AgentSpec(name="bank", model="openai:gpt-5", tools=[send_money])

with Conversation(bank, confirmation_policy=AlwaysConfirm()) as conversation:
    conversation.send_message("Pay the plumber 900 EUR, and give Bob 5000 EUR.")
    result = conversation.run()
    while result.waiting:
        for call in result.waiting:
            print(f"{call.tool} {call.arguments}")
            if call.arguments["to"] == "Bob":
                conversation.reject(call.id, reason="we do not know Bob")
            else:
                conversation.approve(call.id, by="treasurer", arguments={**call.arguments, "amount_eur": 90.0})
        result = conversation.run()
    print(result.output)

print("sent:", *SENT)
