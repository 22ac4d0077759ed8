"""A task pipeline: invoices are read by parallel tasks, paid once, and repeated where that is safe."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from pydantic import BaseModel
from pydantic_ai import Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from bough import AgentSpec, LostCall, TaskBroker, TaskFilter, TaskState, TaskStorePostgres, TaskStoreSqlite, effect_key

INVOICES = {"july": "Rent 900 EUR", "august": "Rent 900 EUR", "september": "Rent in EUR", "october": "Rent 950 EUR"}
PAYMENTS: dict[str, int] = {}
"""The ledger of the bank, by idempotency key."""


class Receipt(BaseModel):
    paid_eur: int


def pay(amount_eur: int) -> str:
    """Pay an amount."""
    return f"paid {PAYMENTS.setdefault(effect_key(), amount_eur)}"


def find_payment(call: LostCall) -> str | None:
    """Return the receipt of a payment that a dead process may have made."""
    amount = PAYMENTS.get(call.effect_key)
    return None if amount is None else f"paid {amount}"


def read_offline(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    part = messages[-1].parts[-1]
    numbers = [int(word) for word in str(getattr(part, "content", "")).split() if word.isdigit()]
    if not numbers:
        raise ValueError("this invoice has no amount")
    if part.part_kind == "user-prompt":
        return ModelResponse([ToolCallPart("pay", {"amount_eur": numbers[0]})])
    return ModelResponse([TextPart("done"), ToolCallPart(info.output_tools[0].name, {"paid_eur": numbers[0]})])


CLERK = AgentSpec(
    name="clerk",
    model=os.environ.get("MODEL") or FunctionModel(read_offline),
    system_prompt="Pay the amount of the invoice, then give the receipt.",
    tools=[Tool(pay, metadata={"reconcile": find_payment})],
    output_type=Receipt,
)


async def submit_all(broker: TaskBroker) -> list[str]:
    return [
        await broker.submit(text, agent_name="clerk", idempotency_key=f"2026/{month}", month=month)
        for month, text in INVOICES.items()
    ]


async def main(url: str) -> None:
    store = TaskStorePostgres(url) if url.startswith("postgres") else TaskStoreSqlite(url)
    async with TaskBroker(store) as broker:
        broker.register_agents([CLERK])
        ids = [*await submit_all(broker), *await submit_all(broker)]  # finds the first ones: a key is a task for ever
        for task in await asyncio.gather(*(broker.wait(id) for id in dict.fromkeys(ids))):
            outcome = task.data if task.state is TaskState.COMPLETED else task.error
            print(f"{task.metadata['month']:10} {task.state.value:10} {outcome}")
            for call in task.interrupted_calls:
                print(f"{call.tool} {call.effect_key}: ask the bank")
        failed = await store.list(TaskFilter(states=frozenset({TaskState.FAILED})))
        print(f"{len(PAYMENTS)} payments, {len(failed.items)} to look at")
    await store.aclose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if sys.argv[1:] else f"sqlite:///{Path(folder) / 'tasks.db'}"))
