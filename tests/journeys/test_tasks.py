"""What a person does with tasks: a broker in a program of their own, a worker at the command line."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.journeys.conftest import Person

_MODEL_OBJECT = """
import asyncio
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel
from bough import TaskBroker, TaskState, TaskStoreMemory

def answer(messages, info):
    return ModelResponse(parts=[TextPart("revenue grows")])

async def main():
    async with TaskBroker(store=TaskStoreMemory(), model=FunctionModel(answer)) as broker:
        first = await broker.submit("Analyze revenue trends", system_prompt="You are an analyst.")
        second = await broker.submit("Analyze revenue trends")
        for task_id in (first, second):
            task = await broker.wait(task_id)
            print(task.state.value, task.result, task.error)
        again = await broker.run((await broker.poll(first)).conversation, "And costs?")
        print((await broker.wait(again)).result)

asyncio.run(main())
"""


def test_a_broker_with_a_model_object_runs_tasks_without_a_registered_agent(person: Person) -> None:
    lines = person.python(_MODEL_OBJECT).stdout.splitlines()
    assert lines == ["completed revenue grows None", "completed revenue grows None", "revenue grows"]


_PARALLEL_STARTS = """
import asyncio
from bough import AgentSpec, Limits, TaskBroker, TaskStoreSqlite
from bough.tasks import TaskFilter
from bough.testing import ScriptedModel, tool_call

async def main():
    starts = [tool_call("submit_task", agent_name="leaf", prompt=f"part {number}") for number in range(6)]
    leaf = AgentSpec(name="leaf", model=ScriptedModel(["done"] * 6), skills=())
    top = AgentSpec(name="top", model=ScriptedModel([starts, "all started"]), skills=(), sub_agents=(leaf,),
                    limits=Limits(tasks=2))
    async with TaskBroker(TaskStoreSqlite("sqlite:///tasks.db")) as broker:
        broker.register_agents([top])
        task = await broker.wait(await broker.submit("begin", agent_name="top"))
        print(task.state.value, len((await broker.store.list(TaskFilter(parent=task.conversation))).items))

asyncio.run(main())
"""


def test_the_bound_of_tasks_holds_for_the_calls_of_one_response(person: Person) -> None:
    assert person.python(_PARALLEL_STARTS).stdout.split() == ["completed", "2"]


_DEADLINE = """
import asyncio
from bough import AgentSpec, TaskBroker, TaskStoreMemory
from bough.tasks import TaskFilter
from bough.testing import ScriptedModel, tool_call

async def hang() -> str:
    await asyncio.Event().wait()
    return "never"

async def main(how):
    leaf = AgentSpec(name="leaf", model=ScriptedModel([tool_call("hang")]), tools=(hang,), skills=())
    steps = [tool_call("delegate", agent_name="leaf", prompt="go")]
    top = AgentSpec(name="top", model=ScriptedModel(steps), skills=(), sub_agents=(leaf,))
    async with TaskBroker(TaskStoreMemory()) as broker:
        broker.register_agents([top])
        bound = {"deadline_seconds": 2} if how == "deadline" else {}
        id = await broker.submit("begin", agent_name="top", **bound)
        child = None
        while child is None or not any(e.payload.get("tool") == "hang" for e in (await broker.poll(child)).events):
            child = next((t.id for t in (await broker.store.list(TaskFilter(agent="leaf"))).items), None)
            await asyncio.sleep(0.02)
        if how == "cancel":
            await broker.cancel(id)
        task = await broker.wait(id)
        child = await broker.wait(child, 20)
        print(how, task.state.value, task.usage.requests, child.state.value, child.usage.requests)

for how in ("cancel", "deadline"):
    asyncio.run(main(how))
"""


def test_a_stopped_task_stops_its_children_and_says_what_it_used(person: Person) -> None:
    lines = person.python(_DEADLINE).stdout.splitlines()
    assert lines == ["cancel cancelled 2 cancelled 1", "deadline failed 2 cancelled 1"]


_ASKING = """
import asyncio
from bough import AgentSpec, TaskBroker, TaskStoreMemory
from bough.tasks import TaskFilter, TaskState
from bough.testing import ScriptedModel, tool_call

async def main():
    answers = [tool_call("ask", question="Which colour?"), "painted"]
    leaf = AgentSpec(name="leaf", model=ScriptedModel(answers), skills=(), ask=True)
    steps = [tool_call("submit_task", agent_name="leaf", prompt="paint"), tool_call("wait", timeout=60), "all done"]
    top = AgentSpec(name="top", model=ScriptedModel(steps), skills=(), sub_agents=(leaf,))
    async with TaskBroker(TaskStoreMemory()) as broker:
        broker.register_agents([top])
        id = await broker.submit("begin", agent_name="top")
        asked = asyncio.Event()
        await broker.notify(id, set(TaskState) - {TaskState.PENDING, TaskState.RUNNING}, lambda task: asked.set())
        await asked.wait()
        task = await broker.poll(id)
        print(task.state.value, task.request["request"]["question"])
        await broker.provide_input(id, "blue")
        print((await broker.wait(id)).result)
        [child] = (await broker.store.list(TaskFilter(agent="leaf"))).items
        print(child.state.value, child.result)

asyncio.run(main())
"""


def test_a_background_task_that_asks_makes_its_waiting_parent_ask(person: Person) -> None:
    lines = person.python(_ASKING).stdout.splitlines()
    assert lines == ["input_required Which colour?", "all done", "completed painted"]


_DEAD_WORKER = """
import asyncio, os
from bough import TaskBroker, TaskState, TaskStoreSqlite

async def main():
    store = TaskStoreSqlite("sqlite:///log.db")
    broker = TaskBroker(store)
    lost = await broker.submit("hello")
    late = await broker.submit("hello", queue="elsewhere", deadline_seconds=0.001)
    await store.update_state(lost, TaskState.RUNNING)
    print(lost, late, flush=True)
    os._exit(0)

asyncio.run(main())
"""


def test_a_worker_that_runs_once_takes_over_and_looks_at_deadlines(person: Person) -> None:
    store = ("--store", f"sqlite:///{person.folder / 'log.db'}")
    lost, late = person.python(_DEAD_WORKER).stdout.split()
    person.bough("worker", "--once", *store)
    shown = [task["state"] for task in person.bough("tasks", "list", "--json", *store).json()["tasks"]]
    assert shown == ["failed", "completed"], (lost, late)


def test_an_a2a_client_of_version_0_3_may_send_a_null_id(person: Person) -> None:
    """As `fasta2a` 0.6 does in `tasks/get`."""
    message = {"kind": "message", "role": "user", "messageId": "1", "parts": [{"kind": "text", "text": "hello"}]}
    with person.serve() as server, server.client() as client:

        def call(method: str, params: dict[str, Any]) -> Any:
            body = {"jsonrpc": "2.0", "id": None, "method": method, "params": params}
            answer = client.post("/a2a/default", json=body).json()
            assert answer["id"] is None
            return answer["result"]

        task = call("message/send", {"message": message})
        assert call("tasks/get", {"id": task["id"]})["id"] == task["id"]


_NEW_MESSAGES = """
import asyncio
from bough import AgentSpec
from bough.orchestrator import OrchestratorAgent
from bough.testing import ScriptedModel

async def main():
    async with OrchestratorAgent(AgentSpec(name="a", model=ScriptedModel(["one", "two"]), skills=())) as agent:
        for prompt in ("first", "second"):
            result = await agent.run(prompt)
            print([part.content for message in result.new_messages() for part in message.parts], result.output)

asyncio.run(main())
"""


def test_the_new_messages_of_a_turn_begin_with_its_prompt(person: Person) -> None:
    """As PydanticAI's own results do, so that a program may append them to a history of its own."""
    lines = person.python(_NEW_MESSAGES).stdout.splitlines()
    assert lines == ["['first', 'one'] one", "['second', 'two'] two"]


def test_a_worker_says_which_task_begins_and_how_it_ended(person: Person) -> None:
    store = ("--store", f"sqlite:///{person.folder / 'log.db'}")
    model = ("--model", "offline")
    person.bough("run", "--detach", "hello", *model, *store)
    [task] = person.bough("tasks", "list", "--json", *store).json()["tasks"]
    lines = person.bough("worker", "--once", *model, *store).stderr.splitlines()
    task_lines = [line for line in lines if task["id"] in line]
    assert len(task_lines) == 2, lines
    assert re.fullmatch(rf"{task['id']}  begins  default  attempt 1 of 3", task_lines[0])
    assert re.fullmatch(rf"{task['id']}  completed  default  \d+\.\d s(  \d+\.\d{{4}} USD)?", task_lines[1])

    person.bough("run", "--detach", "again", *model, *store)
    records = person.bough("worker", "--once", "--json", *model, *store).stdout.splitlines()
    begun, ended = (json.loads(record) for record in records)
    assert (begun["event"], begun["agent"]) == ("begin", "default")
    assert (ended["event"], ended["state"], ended["task"]) == ("end", "completed", begun["task"])
    assert ended["seconds"] >= 0 and "cost_usd" in ended
