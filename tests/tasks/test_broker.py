"""The broker: what the seed's names do, on real stores with real runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from bough.agents.spec import AgentSpec
from bough.conversation.log.journal import Journal
from bough.errors import Conflict, InvalidInput, NotFound, Unavailable
from bough.events.model import UserMessage
from bough.settings import Settings
from bough.tasks import EventType, Task, TaskBroker, TaskState
from bough.tasks.stores.relational import RelationalTaskStore

pytestmark = pytest.mark.anyio

Scripted = Callable[..., AgentSpec]


async def test_a_task_is_submitted_run_and_waited_for(
    tasks: RelationalTaskStore, settings: Settings, scripted: Scripted
) -> None:
    """The whole path: PENDING, RUNNING, COMPLETED; result, usage and events are there when `wait` returns."""
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([scripted("writer", "a poem")])
        task_id = await broker.submit("write", agent_name="writer", ticket=7)
        task = await broker.wait(task_id, 20)
        assert (task.state, task.result, task.error) == (TaskState.COMPLETED, "a poem", None)
        assert (task.agent_name, task.metadata) == ("writer", {"agent_name": "writer", "ticket": 7})
        assert task.usage.requests == 1
        states = [event.payload["state"] for event in task.events if event.event_type is EventType.STATE_CHANGE]
        assert states == ["pending", "running", "completed"]


async def test_a_broker_that_is_not_entered_runs_nothing(tasks: RelationalTaskStore, settings: Settings) -> None:
    """It submits, polls and cancels."""
    broker = TaskBroker(tasks, settings=settings)
    task_id = await broker.submit("write")
    assert (await broker.wait(task_id, 0)).state is TaskState.PENDING
    assert (await broker.cancel(task_id)).state is TaskState.CANCELLED
    assert (await broker.cancel(task_id)).version == 1
    await broker.aclose()
    with pytest.raises(Unavailable):
        await broker.submit("late")


async def test_a_check_is_validated_and_limits_of_either_count_are_kept(
    tasks: RelationalTaskStore, settings: Settings, scripted: Scripted
) -> None:
    """An invalid check is refused, and nothing is written; bounds of the conversation stop the task."""
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([scripted("writer", "a poem", "another")])
        for check in ({"command": ""}, {"comand": "true"}, ["true"], 7):
            with pytest.raises(InvalidInput):
                await broker.submit("write", agent_name="writer", check=check)
        limits = {"requests": 0, "per": "conversation"}
        task = await broker.wait(await broker.submit("write", agent_name="writer", limits=limits), 20)
        assert (task.state, task.code) == (TaskState.FAILED, "limit_exceeded")
        task = await broker.wait(await broker.submit("write", agent_name="writer", limits={"requests": 5}), 20)
        assert task.state is TaskState.COMPLETED


async def test_b04_callbacks_are_told_each_state_once_in_order(
    tasks: RelationalTaskStore, settings: Settings, scripted: Scripted
) -> None:
    """States that were reached before registering too, with the task as it was then, before `wait` returns."""
    seen: list[tuple[str, TaskState, str | None]] = []

    def listen(name: str) -> Callable[[Task], None]:
        return lambda task: seen.append((name, task.state, task.result))

    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([scripted("writer", "a poem")])
        task_id = await broker.submit("write", agent_name="writer")
        await broker.notify(task_id, set(TaskState), listen("early"))
        await broker.wait(task_id, 20)
        early = list(seen)
        await broker.notify(task_id, {TaskState.RUNNING, TaskState.COMPLETED}, listen("late"))
    states = [(TaskState.PENDING, None), (TaskState.RUNNING, None), (TaskState.COMPLETED, "a poem")]
    assert early == [("early", *state) for state in states]
    assert seen[3:] == [("late", *state) for state in states[1:]]


async def test_a_callback_that_raises_is_noted(tasks: RelationalTaskStore, settings: Settings) -> None:
    """The others are still told."""
    seen: list[TaskState] = []

    def fail(task: Task) -> None:
        raise ValueError("no")

    broker = TaskBroker(tasks, settings=settings)
    task_id = await broker.submit("write")
    await broker.notify(task_id, {TaskState.PENDING}, fail)
    await broker.notify(task_id, {TaskState.PENDING}, lambda task: seen.append(task.state))
    task = await broker.poll(task_id)
    assert seen == [TaskState.PENDING]
    assert task.events[-1].payload["error"] == "ValueError: no"
    await broker.aclose()


async def test_a_stream_gives_every_event_once_and_ends(
    tasks: RelationalTaskStore, settings: Settings, scripted: Scripted
) -> None:
    """From its start, from the middle, and behind its end."""
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([scripted("writer", "a poem")])
        task_id = await broker.submit("write", agent_name="writer")
        live = [event async for event in broker.stream(task_id)]
        assert [event.payload.get("state", "log") for event in live] == ["pending", "running", "log", "completed"]
        assert [event.seq async for event in broker.stream(task_id, live[1].seq)] == [live[2].seq, live[3].seq]
        assert [event async for event in broker.stream(task_id, live[-1].seq)] == []
        assert (await broker.poll(task_id)).events == live


async def test_b05_cancel_all_cancels_pending_tasks_too(tasks: RelationalTaskStore, settings: Settings) -> None:
    """Five submitted, one running: five CANCELLED, one event each."""
    begun = asyncio.Event()

    async def hang() -> str:
        begun.set()
        await asyncio.Event().wait()
        return ""

    from pydantic_ai.messages import ToolCallPart

    from bough.testing import ScriptedModel

    spec = AgentSpec(name="slow", model=ScriptedModel([ToolCallPart("hang", {})]), tools=(hang,), skills=())
    async with TaskBroker(tasks, settings=settings, concurrency=1) as broker:
        broker.register_agents([spec])
        ids = [await broker.submit(str(number), agent_name="slow") for number in range(5)]
        await begun.wait()
        await broker.cancel_all()
        for task_id in ids:
            task = await broker.poll(task_id)
            cancelled = [event for event in task.events if event.payload.get("state") == "cancelled"]
            assert (task.state, len(cancelled)) == (TaskState.CANCELLED, 1)


async def test_b06_nothing_runs_on_after_the_broker_is_left(tasks: RelationalTaskStore, settings: Settings) -> None:
    """What ran is CANCELLED and has ended when `__aexit__` returns; what waits stays PENDING."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    from pydantic_ai.messages import ToolCallPart

    from bough.testing import ScriptedModel

    spec = AgentSpec(name="slow", model=ScriptedModel([ToolCallPart("hang", {})]), tools=(hang,), skills=())
    async with TaskBroker(tasks, settings=settings, concurrency=1) as broker:
        broker.register_agents([spec])
        running, waiting = await broker.submit("one", agent_name="slow"), await broker.submit("two", agent_name="slow")
        await begun.wait()
    assert ended.is_set()
    first, second = await tasks.get(running), await tasks.get(waiting)
    assert first is not None
    assert second is not None
    assert (first.state, first.events[-1].payload["reason"]) == (TaskState.CANCELLED, "the broker was closed")
    assert second.state is TaskState.PENDING


async def test_b10_an_unknown_agent_fails_its_task(
    tasks: RelationalTaskStore, settings: Settings, scripted: Scripted
) -> None:
    """FAILED, code `not_found`, with the nearest name; no model is asked."""
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([scripted("writer", "a poem")])
        task = await broker.wait(await broker.submit("write", agent_name="writr"), 20)
    assert (task.state, task.code, task.usage.requests) == (TaskState.FAILED, "not_found", 0)
    assert "did you mean 'writer'?" in (task.error or "")


async def test_one_key_is_one_task(tasks: RelationalTaskStore, settings: Settings) -> None:
    """A hundred submissions at once: one task; another input under the key is a conflict."""
    broker = TaskBroker(tasks, settings=settings)
    ids = await asyncio.gather(*(broker.submit("write", idempotency_key="k") for _ in range(100)))
    assert len(set(ids)) == 1
    assert len(await tasks.list_by_state(TaskState.PENDING)) == 1
    with pytest.raises(Conflict):
        await broker.submit("write something else", idempotency_key="k")
    await broker.aclose()


async def test_a_retry_goes_on_in_the_same_conversation(
    tasks: RelationalTaskStore, settings: Settings, scripted: Scripted
) -> None:
    """A new task with an id of its own; the usage is its own part."""
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([scripted("writer", "a poem")])
        task_id = await broker.submit("write", agent_name="nobody")
        assert (await broker.wait(task_id, 20)).state is TaskState.FAILED
        again = await broker.retry(task_id, agent_name="writer")
        task = await broker.wait(again, 20)
        assert (task.state, task.result, task.conversation) == (TaskState.COMPLETED, "a poem", UUID(task_id))
        with pytest.raises(Conflict):
            await broker.retry(again)


async def test_a_conversation_is_run_as_a_task(
    tasks: RelationalTaskStore, settings: Settings, scripted: Scripted
) -> None:
    """A further run of it is a task of its own, with the usage of that run alone; one live task at a time."""
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([scripted("writer", "one", "two")])
        first = await broker.wait(await broker.submit("write", agent_name="writer"), 20)
        assert first.conversation is not None
        second_id = await broker.run(first.conversation, "more", agent_name="writer")
        assert second_id is not None
        second = await broker.wait(second_id, 20)
        assert (second.state, second.input, second.usage.requests) == (TaskState.COMPLETED, "more", 1)
        assert second.id != first.id
    idle = TaskBroker(tasks, settings=settings)
    pending = await idle.run(first.conversation, "again")
    with pytest.raises(Conflict) as live:
        await idle.run(first.conversation, "and again")
    assert live.value.details["task"] == pending
    assert await idle.run(first.conversation, "and again", join=True) == pending
    await idle.aclose()


async def test_a_message_for_a_state_that_others_have_left_behind_is_said_after_what_they_said(
    tasks: RelationalTaskStore, settings: Settings, scripted: Scripted
) -> None:
    """The caller's fold spares reading the log; where somebody appended meanwhile, it is read, and nothing is lost."""
    async with TaskBroker(tasks, settings=settings) as broker:
        broker.register_agents([scripted("writer", "one", "two")])
        first = await broker.wait(await broker.submit("write", agent_name="writer"), 20)
        assert first.conversation is not None
        journal = Journal(tasks.log, first.conversation)
        await journal.catch_up()
        known = journal.state
        await broker.run(first.conversation, "somebody else", start=False)
        with pytest.raises(Conflict):
            await broker.run(first.conversation, "more", expected_head=known.head, state=known)
        task_id = await broker.run(first.conversation, "more", state=known, agent_name="writer")
        assert task_id is not None
        await broker.wait(task_id, 20)
        said = [stored.event async for stored in tasks.log.read(first.conversation, kinds=["UserMessage"])]
        assert [event.plain for event in said if isinstance(event, UserMessage)] == ["write", "somebody else", "more"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"priority": "high"}, {"priority": 10**9}, {"queue": "a b"}, {"queue": ""}, {"max_attempts": 0},
        {"deadline_seconds": -1}, {"not_before": "tomorrow"}, {"id": "../x"}, {"conversation": "1"},
        {"idempotency_key": ""}, {"idempotency_key": "x" * 201}, {"tags": [1]}, {"limits": {"colour": 1}},
        {"agent_name": 7}, {"workspace": 3}, {"thing": object()}, {"thing": float("nan")}, {"thing": "x" * 70_000},
        {"workspace": "/no/such/folder"},
    ],
)  # fmt: skip
async def test_bad_input_is_told_and_nothing_is_written(
    tasks: RelationalTaskStore, settings: Settings, metadata: dict[str, Any]
) -> None:
    """A `BoughError` with code and hint."""
    broker = TaskBroker(tasks, settings=settings)
    with pytest.raises(InvalidInput) as error:
        await broker.submit("write", **metadata)
    assert error.value.hint
    assert (await tasks.list()).items == []
    await broker.aclose()


async def test_tasks_that_are_not_there_are_told(tasks: RelationalTaskStore, settings: Settings) -> None:
    """Every method that names one raises `NotFound`."""
    broker = TaskBroker(tasks, settings=settings)
    for id in ("../x", Task(input="x").id):
        for call in (broker.poll(id), broker.wait(id, 1), broker.cancel(id), broker.retry(id)):
            with pytest.raises(NotFound):
                await call
        with pytest.raises(NotFound):
            await broker.notify(id, set(TaskState), print)
        with pytest.raises(NotFound):
            await anext(aiter(broker.stream(id)))
        with pytest.raises(NotFound):
            await broker.provide_input(id, True)
    await broker.aclose()


@pytest.mark.parametrize("specs", [["writer"], [object()], {"writer": None}])
async def test_what_is_no_agent_is_not_registered(tasks: RelationalTaskStore, settings: Settings, specs: Any) -> None:
    async with TaskBroker(tasks, settings=settings) as broker:
        with pytest.raises(InvalidInput, match="is not an agent"):
            broker.register_agents(specs)
