"""Moving in and out: a history of PydanticAI becomes a conversation, and a conversation becomes such a history."""

import asyncio

from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, ModelResponse, TextPart, UserPromptPart

from bough import AsyncConversation, export_messages, import_messages

history = [
    ModelRequest(parts=[UserPromptPart("My name is Ada.")]),
    ModelResponse(parts=[TextPart("Hello, Ada.")], model_name="gpt-5"),
]


async def main() -> None:
    async with await AsyncConversation.create("openai:gpt-5") as conversation:
        await import_messages(conversation, history)
        await conversation.send_message("What is my name?")
        print((await conversation.run()).output)

        data = await export_messages(conversation)
        for message in ModelMessagesTypeAdapter.validate_json(data):
            print(message.kind, *(part.part_kind for part in message.parts))


asyncio.run(main())
