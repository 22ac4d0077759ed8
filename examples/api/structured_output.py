"""An answer of a type: validated, repeated until it fits, recorded in the log."""

from typing import Literal

from pydantic import BaseModel, Field

from bough import AgentSpec, Conversation


class Ticket(BaseModel):
    """A request to the support."""

    summary: str = Field(max_length=80)
    urgency: Literal["low", "normal", "high"]
    products: list[str]


clerk = AgentSpec(
    model="openai:gpt-5",
    system_prompt="You turn letters of customers into tickets.",
    output_type=Ticket,
    output_retries=2,
)

with Conversation(clerk) as conversation:
    conversation.send_message("Our printer P-40 is on fire. Again. Also the scanner squeaks.")
    ticket = conversation.run().data
    if ticket is None:
        raise SystemExit(f"no ticket: {conversation.status}")
    print(f"[{ticket.urgency}] {ticket.summary}: {', '.join(ticket.products)}")
