"""A batch: 200 documents are answered by forks of one prepared conversation, which share a budget. It can be killed."""

import asyncio
import os
from collections import Counter
from uuid import UUID, uuid5

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough import AgentSpec, AsyncConversation, Budget, EventStore, open_store
from bough.errors import NotFound

BATCH = UUID("6f1c2a3e-0000-4000-8000-000000000002")  # a new batch gets a new id
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


async def prepare(store: EventStore) -> AsyncConversation:
    """Return the conversation that all documents share; an earlier attempt may have made it."""
    try:
        prepared = await AsyncConversation.open(BATCH, store=store, agent=CLASSIFIER)
    except NotFound:
        budget = Budget(requests=151, id="tickets")  # the preparation and 150 documents
        prepared = await AsyncConversation.create(CLASSIFIER, id=BATCH, store=store, budget=budget, title="rules")
    if prepared.status != "finished":
        rules = "Tickets about money that was paid are refunds, whatever else they say."
        await prepared.send_message(rules, id=uuid5(BATCH, "rules"))
        await prepared.run()
    return prepared


async def classify(prepared: AsyncConversation, number: int, text: str) -> str | None:
    """Return the kind of a document; None if the budget is used up. Each attempt finds the same fork by its id."""
    id = uuid5(BATCH, f"document {number}")
    async with AT_ONCE, await prepared.fork(id=id, title=text.partition(":")[0], tags={"n": str(number)}) as fork:
        if fork.status != "finished":
            await fork.send_message(text, id=uuid5(id, "message"))
            await fork.run()
        return fork.state.output if fork.status == "finished" else None


async def answer_all(store: EventStore) -> list[str | None]:
    async with await prepare(store) as prepared:
        kinds = await asyncio.gather(*(classify(prepared, n, text) for n, text in enumerate(DOCUMENTS)))
    print(len(kinds) - kinds.count(None), "documents answered,", kinds.count(None), "left")
    return kinds


async def main() -> None:
    store = await open_store(os.environ.get("STORE", "memory:"))
    kinds = await answer_all(store)
    if None in kinds:
        budget = Budget(id="tickets")
        print((await budget.usage(store)).requests, "requests,", (await budget.remaining(store)).requests, "left")
        await budget.change(store, requests=250)
        kinds = await answer_all(store)
    print(sorted(Counter(kind for kind in kinds if kind).items()))
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main())
