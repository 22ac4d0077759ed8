"""Claims: one owner at a time, taken over when it is gone, fenced when it was lost."""

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
    """Return the owner that a process of this machine had which is no longer there."""
    ended = subprocess.Popen(["true"])  # noqa: S607 - any process that ends at once
    ended.wait()
    parts = owner().split("/")
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

    async def test_priority_goes_first_then_age(self, tasks: TaskStore) -> None:
        """`next_pending` looks at the same order and claims nothing."""
        for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
            await tasks.create(Task(input=name, priority=priority))
        seen: list[str] = []
        for _ in range(4):
            following = await tasks.next_pending()
            claim = await tasks.claim(owner())
            assert following is not None
            assert claim is not None
            assert following.id == claim.task.id
            seen.append(claim.task.input)
        assert (seen, await tasks.next_pending()) == (["b", "d", "a", "c"], None)

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

    async def test_what_may_not_start_yet_is_not_claimed(self, tasks: TaskStore) -> None:
        """Neither by queue nor by id; what is due is."""
        now = datetime.now(UTC)
        later = await tasks.create(Task(input="later", not_before=now + timedelta(hours=1)))
        await tasks.create(Task(input="due", not_before=now - timedelta(hours=1)))
        claim = await tasks.claim(owner())
        assert claim is not None
        assert claim.task.input == "due"
        assert await tasks.claim(owner()) is None
        assert await tasks.claim(owner(), id=later.id) is None

    async def test_of_many_workers_one_claims(self, tasks: TaskStore) -> None:
        """Twenty at once for ten tasks: each task once."""
        for number in range(10):
            await tasks.create(Task(input=str(number)))
        claims = await asyncio.gather(*(tasks.claim(owner()) for _ in range(20)))
        inputs = sorted(int(claim.task.input) for claim in claims if claim is not None)
        assert inputs == list(range(10))

    async def test_a_gone_owner_is_taken_over_at_once(self, tasks: TaskStore) -> None:
        """State and version stay, the attempts rise; the loser's transitions and events are refused."""
        task = await tasks.create(Task(input="one"))
        lost = await tasks.claim(make_gone_owner())
        assert lost is not None
        taken = await tasks.claim(owner(), id=task.id)
        assert taken is not None
        assert (taken.task.state, taken.task.version, taken.task.attempts) == (TaskState.RUNNING, lost.task.version, 2)
        assert taken.lease.generation > lost.lease.generation
        assert await tasks.claim(owner(), id=task.id) is None  # the taker lives: nobody takes it over in its turn
        with pytest.raises(Conflict):
            await tasks.heartbeat(lost)
        with pytest.raises(Conflict):
            await tasks.release(lost, TaskState.COMPLETED)
        with pytest.raises(Conflict):
            await tasks.update_state(task.id, TaskState.COMPLETED, claim=lost)
        with pytest.raises(Conflict):
            await tasks.log.append(UUID(task.id), [TaskNoted()], generation=lost.lease.generation)
        await tasks.heartbeat(taken)
        await tasks.release(taken, TaskState.COMPLETED, result="done")
        found = await tasks.get(task.id)
        assert found is not None
        assert (found.state, found.result) == (TaskState.COMPLETED, "done")

    async def test_a_lapsed_lease_is_taken_over(self, tasks: TaskStore) -> None:
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
        found = await tasks.get(task.id)
        assert found is not None
        assert (found.state, found.code, found.error) == (TaskState.FAILED, "unavailable", "its worker died 2 times")

    async def test_a_claim_that_is_released_can_be_claimed_again(self, tasks: TaskStore) -> None:
        """Handing back is not a failure: it does not count as an attempt."""
        task = await tasks.create(Task(input="one", max_attempts=1))
        for _ in range(3):
            claim = await tasks.claim(owner())
            assert claim is not None
            assert claim.task.attempts == 1
            await tasks.release(claim)
        found = await tasks.get(task.id)
        assert found is not None
        assert (found.state, found.attempts) == (TaskState.PENDING, 0)

    async def test_running_by_hand_takes_the_lease(self, tasks: TaskStore) -> None:
        """`update_state(RUNNING)` is a claim in this process's name: nobody claims it beside."""
        task = await tasks.create(Task(input="one"))
        running = await tasks.update_state(task.id, TaskState.RUNNING)
        assert running is not None
        assert running.attempts == 1
        assert await tasks.claim(owner(), id=task.id) is None

    async def test_a_conversation_that_is_run_is_put_off(self, tasks: TaskStore) -> None:
        """Somebody holds the lease without a task: the claim takes the next one, and this one waits a second."""
        busy, free = await tasks.create(Task(input="busy")), await tasks.create(Task(input="free"))
        await tasks.log.acquire(UUID(busy.id), owner(), 60)
        claim = await tasks.claim(owner())
        assert claim is not None
        assert claim.task.id == free.id
        found = await tasks.get(busy.id)
        assert found is not None
        assert found.state is TaskState.PENDING
        assert found.not_before is not None
