"""`kill -9` of one of three workers, again and again, while tasks run; a ledger outside the store counts."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.tasks import counting_agent
from tests.tasks.worker_processes import Entry, Workers

from bough.settings import Settings
from bough.tasks import EventType, Task, TaskState
from bough.testing.postgres import make_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KILLS = 20
TASKS = 80


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Workers]:
    """Workers on a store of their own."""
    url = f"sqlite:///{tmp_path / 'log.db'}"
    if request.param == "postgres":
        url = make_database(request.getfixturevalue("postgres"))
    found = Workers(tmp_path, url)
    yield found
    found.close()


async def test_tasks_survive_the_death_of_their_workers(workers: Workers, settings: Settings) -> None:
    """Twenty kills under load: every task ends once, no recorded response is asked for again, no tool runs twice."""
    broker, ids = await workers.submit(settings, *(f"t{number}" for number in range(TASKS)), max_attempts=KILLS + 1)
    chance = random.Random(14)
    for _ in range(3):
        workers.start()
    killed = set[int]()
    lines_between = TASKS * (2 * counting_agent.STEPS + counting_agent.STEPS + 1) // (KILLS + 4)
    for number in range(1, KILLS + 1):
        # By progress and not by time: so much is done between two kills, however quick the machine is.
        await workers.until(lambda lines, at=number * lines_between: len(lines) >= at)
        latest = {entry.pid for entry in workers.entries()[-8:]}
        busy = [worker for worker in workers.running if worker.pid in latest]
        victim = chance.choice(busy if number % 2 and busy else workers.running)  # also one that has just been started
        killed.add(victim.pid or 0)
        workers.kill(victim)
        workers.start()
    tasks = await asyncio.gather(*(broker.wait(task_id) for task_id in ids))
    assert [task.result for task in tasks] == [f"done {task.input}" for task in tasks]
    for task in tasks:
        require_ended_once(task)
    require_nothing_twice(workers.entries(), killed)
    assert sum(task.attempts > 1 for task in tasks) >= KILLS // 4  # the kills did hit running tasks
    await broker.aclose()
    await broker.store.aclose()


def require_ended_once(task: Task) -> None:
    """Check the transitions of a task: a take-over is none."""
    states = [event.payload["state"] for event in task.events if event.event_type is EventType.STATE_CHANGE]
    assert (task.state, states) == (TaskState.COMPLETED, ["pending", "running", "completed"])


def require_nothing_twice(entries: list[Entry], killed: set[int]) -> None:
    """Check the ledger.

    A tool begins once. A response is asked for again only where the process that asked first was killed before it did
    anything with the answer, which it may not have received.
    """
    by_task: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_task[entry.text.split()[1]].append(entry)
    for done in by_task.values():
        for place, entry in enumerate(done):
            before = [other for other in done[:place] if other.text == entry.text]
            if before:
                assert entry.text.startswith("model "), f"{entry.text} was done twice"
                last = [other for other in done[:place] if other.pid == before[-1].pid][-1]
                assert before[-1].pid in killed, f"{entry.text} was asked for again, and nobody was killed"
                assert last == before[-1], f"{entry.text} was asked for again after {last.text}"
