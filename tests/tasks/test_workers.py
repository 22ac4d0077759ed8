"""Workers as processes: killed, drained, several of them on one store. A ledger outside the store counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.held_writer import cancel_while_writer_is_held
from tests.tasks import counting_agent
from tests.tasks.worker_processes import Workers

from bough.settings import Settings
from bough.tasks import Task, TaskState, TaskStoreSqlite, Worker

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


@pytest.fixture
def workers(tmp_path: Path) -> Generator[Workers]:
    """Workers on a store of their own."""
    found = Workers(tmp_path, f"sqlite:///{tmp_path / 'log.db'}")
    yield found
    found.close()


def require_counted_once(workers: Workers, tasks: list[Task], interrupted: int = 0) -> None:
    """Check the outside ledger: no response was asked for twice, no finished tool ran twice."""
    counts = Counter(workers.lines())
    assert [line for line, count in counts.items() if count > 1] == []
    for task in tasks:
        finished = sum(line.startswith(f"end {task.input} ") for line in counts)
        assert finished >= counting_agent.STEPS - interrupted
        assert sum(line.startswith(f"model {task.input} ") for line in counts) == counting_agent.STEPS + 1
        changes = [event.payload["state"] for event in task.events if "state" in event.payload]
        assert changes == ["pending", "running", "completed"]


async def test_a_killed_worker_is_followed_by_another(workers: Workers, settings: Settings) -> None:
    """Killed inside a tool: the next worker continues from the log; that call is closed, nothing else runs twice."""
    broker, [task_id] = await workers.submit(settings, "a")
    Path(f"{workers.ledger}.gate").write_text("2")
    first = workers.start()
    await workers.until(lambda lines: "begin a 2" in lines)
    workers.kill(first)
    Path(f"{workers.ledger}.gate").unlink()
    workers.start()
    task = await broker.wait(task_id)
    assert (task.state, task.result, task.attempts) == (TaskState.COMPLETED, "done a", 2)
    require_counted_once(workers, [task], interrupted=1)
    assert "end a 2" not in workers.lines()
    keys = dict(line.rsplit(" ", 1) for line in Path(f"{workers.ledger}.keys").read_text().splitlines())
    [lost] = task.interrupted_calls
    assert (lost.tool, lost.arguments) == ("step", {"task": "a", "number": 2})
    assert lost.effect_key == keys["a 2"], "the key that the tool gave to the outside world"
    await broker.aclose()
    await broker.store.aclose()


async def test_sigterm_drains_a_worker(workers: Workers, settings: Settings) -> None:
    """What runs ends, what waits is left, the exit code is 0."""
    broker, ids = await workers.submit(settings, "a", "b")
    Path(f"{workers.ledger}.gate").write_text("0")
    worker = workers.start("--concurrency", "1")
    await workers.until(lambda lines: "begin a 0" in lines)
    workers.terminate(worker)
    Path(f"{workers.ledger}.gate").unlink()
    assert await workers.exit_code(worker) == 0
    tasks = [await broker.poll(task_id) for task_id in ids]
    assert [task.state for task in tasks] == [TaskState.COMPLETED, TaskState.PENDING]
    require_counted_once(workers, tasks[:1])
    await broker.aclose()
    await broker.store.aclose()


async def test_three_workers_run_each_task_once(workers: Workers, settings: Settings) -> None:
    """B08: twelve tasks on one file: every response and every tool once."""
    broker, ids = await workers.submit(settings, *(f"t{number}" for number in range(12)))
    for _ in range(3):
        workers.start()
    tasks = [await broker.wait(task_id) for task_id in ids]
    assert {task.state for task in tasks} == {TaskState.COMPLETED}
    require_counted_once(workers, tasks)
    await broker.aclose()
    await broker.store.aclose()


async def test_a_worker_that_runs_once_ends(workers: Workers, settings: Settings) -> None:
    """`--once` ends when nothing waits any more."""
    broker, ids = await workers.submit(settings, "a", "b")
    worker = workers.start("--once")
    assert await workers.exit_code(worker) == 0
    assert [(await broker.poll(task_id)).state for task_id in ids] == [TaskState.COMPLETED] * 2
    await broker.aclose()
    await broker.store.aclose()


async def test_a_claim_that_is_granted_to_a_cancelled_waiter_is_released(tmp_path: Path, settings: Settings) -> None:
    store = TaskStoreSqlite(f"sqlite:///{tmp_path / 'log.db'}")
    worker = Worker(store, settings=settings)
    task = await store.create(Task(input="anything"))
    await cancel_while_writer_is_held(store.log, worker.claim_task(task.id))
    claim = await worker.claim_task(task.id)
    assert claim is not None
    assert claim.task.attempts == 1, "a claim that never ran does not count as an attempt"
    await store.aclose()
