"""Settings of the model: how long it thinks, how it samples, how much it may say."""

from bough import AgentSpec, Conversation, Delta

thinker = AgentSpec(
    model="openai:gpt-5",
    settings={"thinking": "high", "max_tokens": 4000, "parallel_tool_calls": False},
)
quick = thinker.model_copy(update={"settings": {"thinking": "low", "max_tokens": 200}})

with Conversation(thinker) as conversation:
    conversation.send_message("How many squares are there on a chessboard? Count those of every size.")
    for update in conversation.run_stream():
        if isinstance(update, Delta) and update.kind == "text":
            print(update.text, end="")
    print()

    with conversation.fork(agent=quick) as second:
        second.send_message("And on a board of nine by nine?")
        result = second.run()
        print(result.output if not result.partial else f"{result.output}… (cut off: {result.reason})")
