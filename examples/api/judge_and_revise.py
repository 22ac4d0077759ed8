"""A writer and a critic: the critic reads a fork, so that the writer sees nothing but what it is told."""

from pydantic import BaseModel

from bough import AgentSpec, Conversation


class Verdict(BaseModel):
    """What the critic says."""

    good: bool
    wish: str = ""


writer = AgentSpec(name="writer", model="openai:gpt-5", system_prompt="You write short poems.")
critic = AgentSpec(name="critic", model="openai:gpt-5-mini", system_prompt="You judge poems.", output_type=Verdict)

with Conversation(writer) as conversation:
    conversation.send_message("Write a poem about rain, in one line.")
    for attempt in range(1, 4):
        print(f"{attempt}. {conversation.run().output}")
        with conversation.fork(agent=critic, ephemeral=True) as fork:
            fork.send_message("Is the latest poem good? If not, what should change?")
            verdict = fork.run().data
        if verdict is None or verdict.good:
            break
        print(f"   {verdict.wish}")
        conversation.send_message(verdict.wish, sender="critic")
