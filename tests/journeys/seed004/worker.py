"""A worker runs one task of a store; the store knows its state, its events and what is next."""

import asyncio

from bough.tasks import EventType, Task, TaskEvent, TaskState, TaskStoreMemory, Worker
from bough.testing import ScriptedModel


async def main() -> None:
    task = Task(input="Analyze this dataset")
    print(task.state.value, task.result, task.error, task.events, task.metadata)

    store = TaskStoreMemory()
    await store.create(task)
    print((await store.next_pending()).id == task.id)
    await store.add_event(task.id, TaskEvent(task_id=task.id, event_type=EventType.LOG, payload={"text": "queued"}))
    worker = Worker(store, model=ScriptedModel(["42 rows"]))
    await worker.execute(task.id)
    task = await store.get(task.id)
    print(task.state.value, task.result)
    print([event.payload["state"] for event in task.events if event.event_type is EventType.STATE_CHANGE])

    other = Task(input="Analyze another one")
    await store.create(other)
    await store.update_state(other.id, TaskState.CANCELLED)
    print([task.input for task in await store.list_by_state(TaskState.CANCELLED)], await store.next_pending())


asyncio.run(main())
