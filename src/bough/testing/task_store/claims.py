"""Claims: one owner at a time, takeover from a dead owner, and fencing after a lost lease."""

from __future__ import annotations

import asyncio
import os
import subprocess
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bough.errors import Conflict
from bough.events.model import TaskNoted
from bough.events.owner import owner
from bough.tasks.model import Task
from bough.tasks.state import TaskState
from bough.tasks.store import TaskStore


def make_dead_owner() -> str:
    """Return the owner string of a process on this machine that has exited."""
    process = subprocess.Popen(["true"])  # noqa: S607 - any process that ends at once
    # Reaped, so that the pid is free and the owner counts as dead.
    process.wait()
    parts = owner().split("/")
    # Fails if the format of an owner has changed and another part would be replaced.
    assert parts[3] == str(os.getpid())
    return "/".join([*parts[:3], str(process.pid), *parts[4:]])


class ClaimsContract:
    """Claim, heartbeat, release and takeover."""

    pytestmark = pytest.mark.anyio

    async def test_a_claim_is_a_transition_and_a_lease(self, tasks: TaskStore) -> None:
        """A claim sets RUNNING, counts an attempt and takes the conversation's lease; a second claim gets nothing."""
        task = await tasks.create(Task(input="one"))
        claim = await tasks.claim(owner())
        assert claim is not None
        assert (claim.task.id, claim.task.state, claim.task.attempts) == (task.id, TaskState.RUNNING, 1)
        assert claim.lease.conversation == UUID(task.id)
        assert await tasks.claim(owner()) is None
        assert await tasks.claim(owner(), id=task.id) is None

    async def test_tasks_are_ordered_by_priority_and_age(self, tasks: TaskStore) -> None:
        """`next_pending` uses the same order and claims nothing."""
        for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
            await tasks.create(Task(input=name, priority=priority))
        inputs: list[str] = []
        for _ in range(4):
            next_task = await tasks.next_pending()
            claim = await tasks.claim(owner())
            assert next_task is not None
            assert claim is not None
            assert next_task.id == claim.task.id
            inputs.append(claim.task.input)
        assert (inputs, await tasks.next_pending()) == (["b", "d", "a", "c"], None)

    async def test_queues_are_claimed_by_name(self, tasks: TaskStore) -> None:
        """A worker of several queues claims their first task by priority, and no task of another queue."""
        for queue, priority in (("a", 0), ("b", 1), ("c", 2)):
            await tasks.create(Task(input=queue, queue=queue, priority=priority))
        assert await tasks.claim(owner()) is None
        first, second = await tasks.claim(owner(), ("a", "b")), await tasks.claim(owner(), ("a", "b"))
        assert first is not None
        assert second is not None
        assert (first.task.input, second.task.input) == ("b", "a")
        assert await tasks.claim(owner(), ("a", "b")) is None

    async def test_a_task_is_not_claimed_before_its_start_time(self, tasks: TaskStore) -> None:
        """Not by queue and not by id; a task whose time has come is claimed."""
        current_time = datetime.now(UTC)
        later = await tasks.create(Task(input="later", not_before=current_time + timedelta(hours=1)))
        await tasks.create(Task(input="due", not_before=current_time - timedelta(hours=1)))
        claim = await tasks.claim(owner())
        assert claim is not None
        assert claim.task.input == "due"
        assert await tasks.claim(owner()) is None
        assert await tasks.claim(owner(), id=later.id) is None

    async def test_each_task_is_claimed_by_one_worker(self, tasks: TaskStore) -> None:
        """Twenty concurrent claims of ten tasks claim each task once."""
        for number in range(10):
            await tasks.create(Task(input=str(number)))
        claims = await asyncio.gather(*(tasks.claim(owner()) for _ in range(20)))
        inputs = sorted(int(claim.task.input) for claim in claims if claim is not None)
        assert inputs == list(range(10))

    async def test_a_task_of_a_dead_owner_is_taken_over_at_once(self, tasks: TaskStore) -> None:
        """State and version remain, and the attempts increase; transitions and events of the old claim are rejected."""
        task = await tasks.create(Task(input="one"))
        lost = await tasks.claim(make_dead_owner())
        assert lost is not None
        takeover = await tasks.claim(owner(), id=task.id)
        assert takeover is not None
        assert (takeover.task.state, takeover.task.version, takeover.task.attempts) == (
            TaskState.RUNNING,
            lost.task.version,
            2,
        )
        assert takeover.lease.generation > lost.lease.generation
        assert (
            await tasks.claim(owner(), id=task.id) is None
        )  # the new owner is alive, so the task cannot be taken over again
        with pytest.raises(Conflict):
            await tasks.heartbeat(lost)
        with pytest.raises(Conflict):
            await tasks.release(lost, TaskState.COMPLETED)
        with pytest.raises(Conflict):
            await tasks.update_state(task.id, TaskState.COMPLETED, claim=lost)
        with pytest.raises(Conflict):
            await tasks.log.append(UUID(task.id), [TaskNoted()], generation=lost.lease.generation)
        await tasks.heartbeat(takeover)
        await tasks.release(takeover, TaskState.COMPLETED, result="done")
        ended = await tasks.get(task.id)
        assert ended is not None
        assert (ended.state, ended.result) == (TaskState.COMPLETED, "done")

    async def test_an_expired_lease_is_taken_over(self, tasks: TaskStore) -> None:
        """The owner is alive, but has not renewed the lease."""
        task = await tasks.create(Task(input="one"))
        assert await tasks.claim(owner(), ttl_seconds=0) is not None
        assert await tasks.claim(owner(), id=task.id) is not None

    async def test_a_task_whose_workers_die_fails(self, tasks: TaskStore) -> None:
        """After `max_attempts` it is FAILED with code `unavailable`, so that one task does not kill all workers."""
        task = await tasks.create(Task(input="one", max_attempts=2))
        for _ in range(2):
            assert await tasks.claim(make_dead_owner(), id=task.id) is not None
        assert await tasks.claim(owner(), id=task.id) is None
        stored = await tasks.get(task.id)
        assert stored is not None
        assert (stored.state, stored.code, stored.error) == (TaskState.FAILED, "unavailable", "its worker died 2 times")

    async def test_a_claim_that_is_released_can_be_claimed_again(self, tasks: TaskStore) -> None:
        """Releasing a claim without a state is not a failure, and does not count as an attempt."""
        task = await tasks.create(Task(input="one", max_attempts=1))
        for _ in range(3):
            claim = await tasks.claim(owner())
            assert claim is not None
            assert claim.task.attempts == 1
            await tasks.release(claim)
        stored = await tasks.get(task.id)
        assert stored is not None
        assert (stored.state, stored.attempts) == (TaskState.PENDING, 0)

    async def test_update_state_to_running_takes_the_lease(self, tasks: TaskStore) -> None:
        """`update_state(RUNNING)` claims the task for this process, so that no other claim succeeds."""
        task = await tasks.create(Task(input="one"))
        running = await tasks.update_state(task.id, TaskState.RUNNING)
        assert running is not None
        assert running.attempts == 1
        assert await tasks.claim(owner(), id=task.id) is None

    async def test_a_task_of_a_leased_conversation_is_postponed(self, tasks: TaskStore) -> None:
        """If another owner holds the conversation's lease, the task waits a second, and the next task is claimed."""
        busy, free = await tasks.create(Task(input="busy")), await tasks.create(Task(input="free"))
        await tasks.log.acquire(UUID(busy.id), owner(), 60)
        claim = await tasks.claim(owner())
        assert claim is not None
        assert claim.task.id == free.id
        stored = await tasks.get(busy.id)
        assert stored is not None
        assert stored.state is TaskState.PENDING
        assert stored.not_before is not None
