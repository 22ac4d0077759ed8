"""Customer support: a conversation for each customer over weeks, found again by its words, deleted on request."""

import os
import tempfile
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough import AgentSpec, Conversation, ConversationFilter, EventStore, SummarizingCondenser, open_store_sync


def answer_offline(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    text = str(getattr(messages[-1].parts[-1], "content", ""))
    return ModelResponse([TextPart(f"Noted: {text[:60].rstrip('.?')}. A colleague will call you.")])


CLERK = AgentSpec(
    model=os.environ.get("MODEL") or FunctionModel(answer_offline),
    system_prompt="You answer customers of a bicycle shop, in one sentence.",
)


def write(store: EventStore, customer: str, text: str) -> str:
    """Answer a customer, in the conversation that has everything they ever wrote."""
    with Conversation(
        CLERK,
        store=store,
        id=uuid5(NAMESPACE_URL, f"customer/{customer}"),
        title=customer,
        tags={"customer": customer},
        exist_ok=True,
        condenser=SummarizingCondenser(),  # weeks of messages fit into a request
    ) as conversation:
        conversation.send_message(text)
        return conversation.run().output


def main(url: str) -> None:
    with open_store_sync(url) as store:
        print(write(store, "ada", "My red bicycle lost its bell on Grove Road."))
        print(write(store, "bob", "When is my repair ready?"))
    with open_store_sync(url) as store:  # weeks later, in another process
        write(store, "ada", "Thank you, the new bell rings well.")
        for hit in Conversation.search('bell -"colleague will"', store=store).items:
            print(f"{hit.title} {hit.seq}: {hit.snippet}")

        for record in Conversation.list(store, filter=ConversationFilter(tags={"customer": "ada"})).items:
            Conversation.export(record.id, Path(tempfile.mkdtemp()) / "ada.bough", store=store)  # a copy for her
            receipt = Conversation.erase(record.id, store=store)
            print(f"erased {receipt.events} events, compacted: {receipt.is_compacted}")
        print([record.title for record in Conversation.list(store).items])
    if url.startswith("sqlite:///"):
        print("Grove Road" in Path(url.removeprefix("sqlite:///")).read_bytes().decode(errors="replace"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(os.environ.get("STORE", f"sqlite:///{folder}/support.db"))
