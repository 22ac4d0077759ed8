"""An A/B test of prompts: recorded conversations are asked again under a new prompt, and no tool runs."""

import asyncio
import os

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough import AgentSpec, AsyncConversation, ConversationFilter, EventStore, Turn, open_store

SENT: list[str] = []
QUESTIONS = ("Where is parcel 17?", "Send parcel 18 again.", "Where is parcel 19?")


def find_parcel(number: int) -> str:
    """Find out where a parcel is."""
    return f"parcel {number} is in Linz"


def send_again(number: int) -> str:
    """Send a parcel once more."""
    SENT.append(f"parcel {number}")
    return f"parcel {number} will be there tomorrow"


def answer_offline(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    last = messages[-1].parts[-1]
    text = str(getattr(last, "content", ""))
    if last.part_kind == "user-prompt":
        number = next(int(word.strip(".?")) for word in text.split() if word.strip(".?").isdigit())
        return ModelResponse([ToolCallPart("send_again" if "again" in text else "find_parcel", {"number": number})])
    is_short = "short" in (info.instructions or "")
    return ModelResponse([TextPart(text if is_short else f"Thank you for your question! I have looked, and {text}.")])


CLERK = AgentSpec(
    model=os.environ.get("MODEL") or FunctionModel(answer_offline),
    system_prompt="You answer questions about parcels.",
    tools=[find_parcel, send_again],
)


async def record_production(store: EventStore) -> None:
    """Stands for weeks of production."""
    for question in QUESTIONS:
        async with await AsyncConversation.create(CLERK, store=store, tags={"app": "parcels"}) as conversation:
            await conversation.send_message(question)
            await conversation.run()


async def ask_again(source: AsyncConversation, prompt: str) -> AsyncConversation:
    """Return a fork in which every recorded message was answered under another prompt."""
    branch = await source.fork(
        at=Turn(0),
        overrides={"system_prompt": prompt, "tools": "recorded"},
        tags={"app": "test"},
        inherit_tags=False,
    )
    for turn in await source.turns():
        await branch.repeat(turn)
        await branch.run()
    return branch


async def main() -> None:
    store = await open_store(os.environ.get("STORE", "memory:"))
    await record_production(store)
    page = await store.list(ConversationFilter(tags={"app": "parcels"}))
    for record in reversed(page.items):
        async with (
            await AsyncConversation.open(record.id, store=store, agent=CLERK) as source,
            await ask_again(source, "You answer questions about parcels. Be short.") as branch,
        ):
            for before, after in zip(await source.turns(), await branch.turns(), strict=True):
                print(f"{before.message.plain}\n  A {before.output}\n  B {after.output}")
            compared = await source.compare(branch)
            print(f"  output tokens: {compared.a.usage.output_tokens} and {compared.b.usage.output_tokens}")
    print("sent:", *SENT)
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main())
