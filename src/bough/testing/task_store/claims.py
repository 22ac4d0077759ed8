"""Claims: one owner at a time, take-over from a dead owner, fencing after a lost lease."""

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


def make_gone_owner() -> str:
    """Return an owner string of a process on this machine that has exited."""
    ended = subprocess.Popen(["true"])  # noqa: S607 - any process that ends at once
    # Reaped, so that the pid is free and the owner counts as dead.
    ended.wait()
    parts = owner().split("/")
    # Fails when the format of an owner changes, before the wrong part is replaced.
    assert parts[3] == str(os.getpid())
    return "/".join([*parts[:3], str(ended.pid), *parts[4:]])


class ClaimsContract:
    """Claim, heartbeat, release, take-over."""

    pytestmark = pytest.mark.anyio

    async def test_a_claim_is_a_transition_and_a_lease(self, tasks: TaskStore) -> None:
        """RUNNING, one attempt, the lease of the conversation; what is claimed is not claimed again."""
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
            following = await tasks.next_pending()
            claim = await tasks.claim(owner())
            assert following is not None
            assert claim is not None
            assert following.id == claim.task.id
            inputs.append(claim.task.input)
        assert (inputs, await tasks.next_pending()) == (["b", "d", "a", "c"], None)

    async def test_queues_are_claimed_by_name(self, tasks: TaskStore) -> None:
        """A worker of several queues takes the best of them; it takes nothing of others."""
        for queue, priority in (("a", 0), ("b", 1), ("c", 2)):
            await tasks.create(Task(input=queue, queue=queue, priority=priority))
        assert await tasks.claim(owner()) is None
        first, second = await tasks.claim(owner(), ("a", "b")), await tasks.claim(owner(), ("a", "b"))
        assert first is not None
        assert second is not None
        assert (first.task.input, second.task.input) == ("b", "a")
        assert await tasks.claim(owner(), ("a", "b")) is None

    async def test_a_task_is_not_claimed_before_its_start_time(self, tasks: TaskStore) -> None:
        """Neither by queue nor by id; a due task is claimed."""
        current_time = datetime.now(UTC)
        later = await tasks.create(Task(input="later", not_before=current_time + timedelta(hours=1)))
        await tasks.create(Task(input="due", not_before=current_time - timedelta(hours=1)))
        claim = await tasks.claim(owner())
        assert claim is not None
        assert claim.task.input == "due"
        assert await tasks.claim(owner()) is None
        assert await tasks.claim(owner(), id=later.id) is None

    async def test_each_task_is_claimed_by_one_worker(self, tasks: TaskStore) -> None:
        """Twenty at once for ten tasks: each task once."""
        for number in range(10):
            await tasks.create(Task(input=str(number)))
        claims = await asyncio.gather(*(tasks.claim(owner()) for _ in range(20)))
        inputs = sorted(int(claim.task.input) for claim in claims if claim is not None)
        assert inputs == list(range(10))

    async def test_a_task_of_a_dead_owner_is_taken_over_at_once(self, tasks: TaskStore) -> None:
        """State and version stay, the attempts rise; the loser's transitions and events are refused."""
        task = await tasks.create(Task(input="one"))
        lost = await tasks.claim(make_gone_owner())
        assert lost is not None
        takeover = await tasks.claim(owner(), id=task.id)
        assert takeover is not None
        assert (takeover.task.state, takeover.task.version, takeover.task.attempts) == (
            TaskState.RUNNING,
            lost.task.version,
            2,
        )
        assert takeover.lease.generation > lost.lease.generation
        assert await tasks.claim(owner(), id=task.id) is None  # its new owner lives, so it cannot be taken over again
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
        """The owner lives, but has not renewed."""
        task = await tasks.create(Task(input="one"))
        assert await tasks.claim(owner(), ttl_seconds=0) is not None
        assert await tasks.claim(owner(), id=task.id) is not None

    async def test_a_task_whose_workers_die_fails(self, tasks: TaskStore) -> None:
        """After `max_attempts` it is FAILED, code `unavailable`: one task does not kill all workers."""
        task = await tasks.create(Task(input="one", max_attempts=2))
        for _ in range(2):
            assert await tasks.claim(make_gone_owner(), id=task.id) is not None
        assert await tasks.claim(owner(), id=task.id) is None
        stored = await tasks.get(task.id)
        assert stored is not None
        assert (stored.state, stored.code, stored.error) == (TaskState.FAILED, "unavailable", "its worker died 2 times")

    async def test_a_claim_that_is_released_can_be_claimed_again(self, tasks: TaskStore) -> None:
        """Handing back is not a failure: it does not count as an attempt."""
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
        """`update_state(RUNNING)` is a claim in this process's name: no other claim succeeds."""
        task = await tasks.create(Task(input="one"))
        running = await tasks.update_state(task.id, TaskState.RUNNING)
        assert running is not None
        assert running.attempts == 1
        assert await tasks.claim(owner(), id=task.id) is None

    async def test_a_task_of_a_leased_conversation_is_postponed(self, tasks: TaskStore) -> None:
        """Another owner holds the lease without a task: the claim takes the next task, and this one waits a second."""
        busy, free = await tasks.create(Task(input="busy")), await tasks.create(Task(input="free"))
        await tasks.log.acquire(UUID(busy.id), owner(), 60)
        claim = await tasks.claim(owner())
        assert claim is not None
        assert claim.task.id == free.id
        stored = await tasks.get(busy.id)
        assert stored is not None
        assert stored.state is TaskState.PENDING
        assert stored.not_before is not None
