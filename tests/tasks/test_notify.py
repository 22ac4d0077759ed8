"""Waiting for transitions: no wait is lost, whenever it begins."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from bough.tasks import Task, TaskState, TaskStoreMemory
from bough.tasks.notify import TransitionWatch

pytestmark = pytest.mark.anyio


def _completed(task: Task) -> bool:
    return task.state is TaskState.COMPLETED


async def test_a_wait_that_begins_while_the_last_one_ends_is_not_lost() -> None:
    """Some turns of the event loop lie between them: in one of them the follower is just leaving."""
    tasks = TaskStoreMemory()
    watch = TransitionWatch(tasks)
    for turns in range(12):
        first, second = await tasks.create(Task(input="first")), await tasks.create(Task(input="second"))
        waiting = asyncio.create_task(watch.wait(UUID(first.id), _completed, None))
        await tasks.update_state(first.id, TaskState.COMPLETED)
        watch.look()
        await waiting
        watch.look()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting = asyncio.create_task(watch.wait(UUID(second.id), _completed, None))
        await tasks.update_state(second.id, TaskState.COMPLETED)
        watch.look()
        async with asyncio.timeout(20):
            assert (await waiting or first).id == second.id
    await watch.aclose()
    await tasks.aclose()
