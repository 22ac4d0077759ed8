"""Long conversations stay short for the model: a summary stands for the middle, and the log keeps everything."""

from bough import AgentSpec, Conversation, SummarizingCondenser

tutor = AgentSpec(model="openai:gpt-5", system_prompt="You teach history, one fact at a time.")
condenser = SummarizingCondenser(model="openai:gpt-5-mini", max_events=5, keep_first=1)

with Conversation(tutor, condenser=condenser) as conversation:
    for century in ("15th", "16th", "17th", "18th"):
        conversation.send_message(f"Tell me one fact of the {century} century.")
        print(conversation.run().output)

    for stored in conversation.events:
        if stored.event.kind == "Condensed":
            print(f"events {stored.event.start} to {stored.event.stop} are now: {stored.event.summary}")
    print(f"{conversation.state.head} events in the log, {len(conversation.messages())} messages for the model")
