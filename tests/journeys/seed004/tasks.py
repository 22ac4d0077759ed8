"""Tasks: a broker with a store in memory and one in files; waiting, events, callbacks, cancelling."""

import asyncio

from bough.errors import BoughError
from bough.orchestrator import AgentSpec
from bough.tasks import (
    TERMINAL_STATES,
    EventType,
    Task,
    TaskBroker,
    TaskState,
    TaskStore,
    TaskStoreJson,
    TaskStoreMemory,
)
from bough.testing import ScriptedModel, tool_call


def look_up(year: int) -> int:
    """Return the revenue of a year."""
    return {2024: 100, 2025: 120}[year]


started = asyncio.Event()


async def wait_for_ever() -> str:
    """Never return."""
    started.set()
    await asyncio.Event().wait()
    return "never"


def make_agents() -> list[AgentSpec]:
    analyst = AgentSpec(
        name="analyst",
        model=ScriptedModel([tool_call("look_up", year=2025), "It grows."]),
        tools=[look_up],
    )
    sleeper = AgentSpec(name="sleeper", model=ScriptedModel([tool_call("wait_for_ever")]), tools=[wait_for_ever])
    failing = AgentSpec(name="failing", model=ScriptedModel([RuntimeError("no connection")]))
    return [analyst, sleeper, failing]


async def use(store: TaskStore) -> None:
    started.clear()
    async with TaskBroker(store=store) as broker:
        broker.register_agents({spec.name: spec for spec in make_agents()})
        states = []
        finished = asyncio.Event()

        def my_callback(task: Task) -> None:
            states.append(task.state.value)
            finished.set()

        task_id = await broker.submit("Analyze revenue trends", agent_name="analyst", ticket="A-1")
        await broker.notify(task_id, {TaskState.COMPLETED}, my_callback)
        task = await broker.wait(task_id)
        await finished.wait()
        print(task.state.value, task.result, task.error, task.metadata, states)
        events = [event async for event in broker.stream(task_id)]
        print([event.payload["state"] for event in events if event.event_type is EventType.STATE_CHANGE])
        print([event.payload["tool"] for event in events if event.event_type is EventType.PROGRESS][:1])
        print({event.task_id for event in events} == {task_id})

        try:
            await broker.submit("Analyze", agnet_name="analyst")
        except BoughError as error:
            print(error.code, error.hint)
        misspelt = await broker.wait(await broker.submit("Analyze", agent_name="analist"))
        print(misspelt.state.value, misspelt.error)

        failed = await broker.wait(await broker.submit("Try", agent_name="failing"))
        print(failed.state.value, failed.state in TERMINAL_STATES, "no connection" in failed.error)

        sleeping = await broker.submit("Sleep", agent_name="sleeper")
        await started.wait()
        print((await broker.poll(sleeping)).state.value)
        await broker.cancel(sleeping)
        print((await broker.poll(sleeping)).state.value)
        print([task.input for task in await store.list_by_state(TaskState.COMPLETED)])
        await broker.cancel_all()


async def main() -> None:
    await use(TaskStoreMemory())
    await use(TaskStoreJson())


asyncio.run(main())
