"""Routing: a small model decides how hard a question is, and the conversation continues with the model that fits."""

from typing import Literal

import bough
from bough import AgentSpec, Conversation

MODELS = {"easy": "openai:gpt-5-mini", "hard": "openai:gpt-5"}

router = AgentSpec(
    name="router",
    model="openai:gpt-5-mini",
    system_prompt="Say how hard the question is to answer.",
    output_type=Literal["easy", "hard"],
)

with Conversation(MODELS["easy"]) as conversation:
    for question in ("What is 2 + 2?", "Is every even number above 2 the sum of two primes?"):
        difficulty = bough.run(question, agent=router).data or "hard"
        conversation.set_model(MODELS[difficulty])
        conversation.send_message(question)
        print(f"{difficulty} ({conversation.agent.model_name}): {conversation.run().output}")
