"""Tasks as programs and workers use them."""

from __future__ import annotations

from tests.journeys.conftest import Person

MODEL_OBJECT = """
import asyncio
from bough import TaskBroker, TaskStoreMemory
from bough.testing import ScriptedModel

async def main():
    async with TaskBroker(store=TaskStoreMemory(), model=ScriptedModel(["revenue grew"])) as broker:
        task_id = await broker.submit("Analyze revenue trends", system_prompt="You are an analyst.")
        task = await broker.wait(task_id, timeout=30)
        print(task.state.name, task.result, task.error)

asyncio.run(main())
"""


def test_a_task_of_a_system_prompt_runs_with_the_model_object_of_its_broker(person: Person) -> None:
    assert person.python(MODEL_OBJECT).stdout == "COMPLETED revenue grew None\n"
