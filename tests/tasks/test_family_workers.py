"""A parent and its child in worker processes that are killed and restarted. A ledger outside the store counts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from uuid import UUID

import pytest
from tests.tasks import family_agents

from bough.settings import Settings
from bough.tasks import TaskBroker, TaskFilter, TaskState, TaskStoreSqlite
from bough.tasks.notify import TaskStanding

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


class Family:
    """Starts processes that run the family's tasks: one after the other, on one store."""

    def __init__(self, folder: Path) -> None:
        self.ledger, self.gate = folder / "ledger", folder / "ledger.gate"
        self.ledger.touch()
        self.url = f"sqlite:///{folder / 'log.db'}"
        self._home = folder / "home"
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *, asks: bool = False) -> subprocess.Popen[bytes]:
        """Start a worker."""
        env = {**os.environ, "LEDGER": str(self.ledger), "BOUGH_HOME": str(self._home), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "bough.cli.main", "worker", "--store", self.url, "--concurrency", "1"]
        command += ["--agents", "tests.tasks.family_agents:parent"]
        worker = subprocess.Popen(
            command, env=env | ({"ASKS": "1"} if asks else {}), cwd=ROOT, stderr=subprocess.DEVNULL
        )
        self._running.append(worker)
        return worker

    async def until(self, condition: Callable[[list[str]], bool]) -> None:
        """Wait until the ledger has what is waited for."""
        async with asyncio.timeout(60):
            while not condition(self.ledger.read_text().splitlines()):
                await asyncio.sleep(0.02)

    def count(self) -> Counter[str]:
        """Return how often each line is in the ledger."""
        return Counter(self.ledger.read_text().splitlines())

    def close(self) -> None:
        """End what still runs."""
        for worker in self._running:
            worker.kill()
            worker.wait()


@pytest.fixture
def family(tmp_path: Path) -> Generator[Family]:
    """Processes on a store of their own."""
    found = Family(tmp_path)
    yield found
    found.close()


async def _submit(family: Family, settings: Settings) -> tuple[TaskBroker, str]:
    broker = TaskBroker(TaskStoreSqlite(family.url), settings=settings)
    broker.register_agents([family_agents.parent])
    return broker, await broker.submit("begin", agent_name="parent")


async def _close(broker: TaskBroker) -> None:
    await broker.aclose()
    await broker.store.aclose()


async def test_a_parent_killed_inside_delegate_gets_the_result_of_its_one_child(
    family: Family, settings: Settings
) -> None:
    """Both run in the process that is killed; the next one resumes both, and asks no model for a second response."""
    broker, task_id = await _submit(family, settings)
    family.gate.touch()
    first = family.start()
    await family.until(lambda lines: "begin work" in lines)
    first.send_signal(signal.SIGKILL)
    first.wait()
    family.gate.unlink()
    family.start()
    done = await broker.wait(task_id, 60)
    children = (await broker.store.list(TaskFilter(parent=UUID(task_id)))).items
    await _close(broker)
    assert (done.state, done.code) == (TaskState.COMPLETED, None)
    assert str(done.result).startswith("child said: The call did not finish")
    assert [(child.state, child.usage.requests) for child in children] == [(TaskState.COMPLETED, 2)]
    assert done.usage.requests == 4
    counts = family.count()
    assert all(count == 1 for count in counts.values()), counts


async def test_a_child_is_answered_on_another_worker_after_both_processes_restarted(
    family: Family, settings: Settings
) -> None:
    """The worker of both is killed while nothing runs; the answer is given elsewhere, a third process ends both."""
    broker, task_id = await _submit(family, settings)
    first = family.start(asks=True)

    def asks(task: TaskStanding) -> bool:
        return task.state is TaskState.INPUT_REQUIRED

    asked = await broker.wait_until(task_id, asks, 60)
    assert (asked.request or {})["request"]["question"] == "Which colour?"
    first.send_signal(signal.SIGKILL)
    first.wait()
    await _close(broker)
    another = TaskBroker(TaskStoreSqlite(family.url), settings=settings)
    await another.provide_input(task_id, "blue")
    family.start(asks=True)
    done = await another.wait(task_id, 60)
    await _close(another)
    assert (done.state, done.result, done.usage.requests) == (TaskState.COMPLETED, "child said: blue", 5)
    assert all(count == 1 for count in family.count().values()), family.count()
