"""Questions about a conversation that it never hears of: its log has what they cost, and nothing else."""

from bough import AgentSpec, Conversation

coach = AgentSpec(name="coach", model="openai:gpt-5", system_prompt="You help people to learn the piano.")

with Conversation(coach) as conversation:
    conversation.send_message("I practised scales for an hour and my wrist hurts.")
    print(conversation.run().output)

    conversation.set_title(conversation.ask("Give this conversation a title of three words."))
    worried = conversation.ask("Should a doctor look at this? Answer yes or no.").lower().startswith("yes")
    conversation.set_tags({"worried": str(worried)})
    print(conversation.title, conversation.tags)

    added = [stored.event for stored in conversation.events if stored.event.kind == "UsageAdded"]
    print(f"{len(added)} questions beside it, {len(conversation.messages())} messages in it")
