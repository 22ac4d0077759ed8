"""A conversation of two questions; the second one knows the first.

python examples/api/hello.py
"""

from bough import AgentSpec, Conversation

assistant = AgentSpec(
    name="assistant",
    model="openai:gpt-5",
    system_prompt="You answer in one sentence.",
)

with Conversation(assistant) as conversation:
    for question in ("What is the capital of France?", "And how many people live there?"):
        conversation.send_message(question)
        result = conversation.run()
        print(f"> {question}\n{result.output}")

    used = conversation.usage
    print(f"{conversation.short_id}: {used.requests} requests, {used.input_tokens} tokens in, {used.output_tokens} out")
