"""Waiting for transitions: no wait is lost, whenever it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from bough.errors import Unavailable
from bough.events.side_tables import Tables
from bough.tasks import Task, TaskBroker, TaskState, TaskStoreMemory
from bough.tasks.notify import TransitionWatch, has_ended

pytestmark = pytest.mark.anyio


async def test_a_wait_that_begins_while_the_last_one_ends_is_not_lost() -> None:
    """Some turns of the event loop lie between them: in one of them the follower is just leaving."""
    tasks = TaskStoreMemory()
    watch = TransitionWatch(tasks)
    for turns in range(12):
        first, second = await tasks.create(Task(input="first")), await tasks.create(Task(input="second"))
        waiting = asyncio.create_task(watch.wait(UUID(first.id), has_ended, None))
        await tasks.update_state(first.id, TaskState.COMPLETED)
        watch.look()
        await waiting
        watch.look()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting = asyncio.create_task(watch.wait(UUID(second.id), has_ended, None))
        await tasks.update_state(second.id, TaskState.COMPLETED)
        watch.look()
        async with asyncio.timeout(20):
            assert await waiting
    await watch.aclose()
    await tasks.aclose()


async def test_waits_that_begin_while_the_store_is_read_are_not_told_that_their_task_is_gone() -> None:
    tasks = TaskStoreMemory()
    watch = TransitionWatch(tasks)
    made = [await tasks.create(Task(input=f"task {number}")) for number in range(40)]
    waits: list[asyncio.Task[bool]] = []
    for task in made:
        waits.append(asyncio.create_task(watch.wait(UUID(task.id), has_ended, None)))
        for _ in range(len(waits) % 5):
            await asyncio.sleep(0)
        watch.look()
    for task in made:
        await tasks.update_state(task.id, TaskState.COMPLETED)
    watch.look()
    async with asyncio.timeout(20):
        assert await asyncio.gather(*waits) == [True] * len(made)
    await watch.aclose()
    await tasks.aclose()


async def test_a_callback_may_wait_for_its_own_task_and_for_another_one() -> None:
    """Callbacks of two tasks that wait for each other's, and for their own, hold up nobody."""
    tasks = TaskStoreMemory()
    broker = TaskBroker(tasks)
    first, second = (await tasks.create(Task(input="one"))).id, (await tasks.create(Task(input="two"))).id
    seen: list[tuple[str, TaskState]] = []

    async def look(task: Task) -> None:
        for id in (first, second):
            seen.append((task.id, (await broker.wait(id)).state))

    for id in (first, second):
        await broker.notify(id, [TaskState.CANCELLED], look)
    async with asyncio.timeout(20):
        await broker.cancel(first)
        await broker.cancel(second)
        for id in (first, second):
            await broker.wait(id)
    assert sorted(seen) == sorted([(id, TaskState.CANCELLED) for id in (first, first, second, second)])
    await broker.aclose()
    await tasks.aclose()


class AwayTaskStore(TaskStoreMemory):
    """Cannot read the transitions of a task while it is away; small looks are answered."""

    is_away = False
    refused = 0

    async def look(self, question: Callable[[Tables], Any], *, small: bool = False) -> Any:
        if self.is_away and not small:
            self.refused += 1
            raise Unavailable("the store is away")
        return await super().look(question, small=small)


async def test_a_callback_is_told_of_an_end_that_could_not_be_read_when_it_came() -> None:
    tasks = AwayTaskStore()
    watch = TransitionWatch(tasks)
    task, other = await tasks.create(Task(input="one")), await tasks.create(Task(input="two"))
    told: asyncio.Future[TaskState] = asyncio.get_running_loop().create_future()
    await watch.subscribe(UUID(task.id), [TaskState.COMPLETED], lambda task: told.set_result(task.state))
    tasks.is_away = True
    await tasks.update_state(task.id, TaskState.COMPLETED)
    while not tasks.refused:
        await asyncio.sleep(0)
    tasks.is_away = False
    await tasks.update_state(other.id, TaskState.CANCELLED)  # any commit shows that the store is back
    async with asyncio.timeout(20):
        assert await told is TaskState.COMPLETED
    await watch.aclose()
    await tasks.aclose()


async def test_a_callback_for_a_state_that_cannot_be_read_is_refused() -> None:
    tasks = AwayTaskStore()
    watch = TransitionWatch(tasks)
    task = await tasks.create(Task(input="one"))
    await tasks.update_state(task.id, TaskState.COMPLETED)
    tasks.is_away = True
    with pytest.raises(Unavailable):
        await watch.subscribe(UUID(task.id), [TaskState.COMPLETED], lambda _: None)
    await watch.aclose()
    await tasks.aclose()
