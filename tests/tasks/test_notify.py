"""Waiting for transitions: no wait is lost, whenever it begins."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

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
