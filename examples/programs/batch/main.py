"""A batch: 200 documents are answered by forks of one prepared conversation, which share a budget."""

import asyncio
import os
from collections import Counter

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough import AgentSpec, AsyncConversation, Budget, ConversationFilter, open_store

DOCUMENTS = [f"Ticket {number}: {('refund', 'login', 'invoice')[number % 3]} problem" for number in range(200)]
AT_ONCE = asyncio.Semaphore(16)


def classify_offline(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    text = str(getattr(messages[-1].parts[-1], "content", ""))
    kind = next((kind for kind in ("refund", "login", "invoice") if kind in text), "Understood.")
    return ModelResponse([TextPart(kind)])


CLASSIFIER = AgentSpec(
    model=os.environ.get("MODEL") or FunctionModel(classify_offline),
    system_prompt="You sort tickets by kind: refund, login or invoice. Answer with the kind alone.",
    settings={"max_tokens": 50},
)


async def classify(prepared: AsyncConversation, number: int, text: str) -> str | None:
    """Return the kind of a document; None if the budget is used up: the fork continues once it is raised."""
    async with AT_ONCE, await prepared.fork(title=text.partition(":")[0], tags={"document": str(number)}) as fork:
        await fork.send_message(text)
        result = await fork.run()
    return result.output if result.status == "finished" else None


async def main() -> None:
    budget = Budget(requests=151)  # the preparation and 150 documents
    store = await open_store(os.environ.get("STORE", "memory:"))
    async with await AsyncConversation.create(CLASSIFIER, store=store, budget=budget, title="rules") as prepared:
        await prepared.send_message("Tickets about money that was paid are refunds, whatever else they say.")
        await prepared.run()
        kinds = await asyncio.gather(*(classify(prepared, n, text) for n, text in enumerate(DOCUMENTS)))
        print(len(kinds) - kinds.count(None), "documents answered,", kinds.count(None), "left")
        print((await budget.usage(store)).requests, "requests,", (await budget.remaining(store)).requests, "left")

        await budget.change(store, requests=250)
        page = await store.list(ConversationFilter(root=prepared.id, status="paused"), limit=200)
        for record in page.items:
            async with await AsyncConversation.open(record.id, store=store, agent=CLASSIFIER) as fork:
                kinds.append((await fork.run()).output)
        print(len(page.items), "continued,", (await budget.usage(store)).requests, "requests")
        print(sorted(Counter(kind for kind in kinds if kind).items()))
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main())
