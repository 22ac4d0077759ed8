"""Postgres restarted under workers, and workers whose clocks are a minute apart: nothing is lost, nothing taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.tasks.worker_processes import Workers

from bough import Settings
from bough.events.owner import owner
from bough.tasks import EventType, Task, TaskBroker, TaskState
from bough.tasks.stores.backends import TaskStorePostgres
from bough.testing.postgres import make_database, postgres_server, restart_server
from bough.types import SystemClock

pytestmark = pytest.mark.anyio

TASKS = 8


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Workers on a server of their own, which may be restarted."""
    with postgres_server() as url:
        found = Workers(tmp_path, url)
        yield found
        found.close()


@pytest.mark.slow
@pytest.mark.needs("postgres")
async def test_a_restart_of_postgres_loses_no_task(workers: Workers, settings: Settings) -> None:
    """Both workers live on, and end every task once; what ran while the server was away is not run again."""
    broker, ids = await workers.submit(settings, *(f"t{number}" for number in range(TASKS)), max_attempts=9)
    for _ in range(2):
        workers.start()
    await workers.until(lambda lines: len(lines) >= 3 * TASKS)
    await asyncio.to_thread(restart_server, workers.url)
    await broker.store.aclose()
    tasks = await _wait(workers.url, settings, ids)
    assert [(task.state, task.code, task.error) for task in tasks] == [(TaskState.COMPLETED, None, None)] * TASKS, (
        workers.stderr()
    )
    for task in tasks:
        states = [event.payload["state"] for event in task.events if event.event_type is EventType.STATE_CHANGE]
        assert states.count("completed") == 1
    begun = [line for line in workers.lines() if line.startswith("begin ")]
    assert len(begun) == len(set(begun))
    assert all(worker.is_alive() for worker in workers.running), workers.stderr()


async def _wait(url: str, settings: Settings, ids: list[str]) -> list[Task]:
    """Return the tasks once they have ended, as a program sees them that was started after the restart."""
    store = TaskStorePostgres(url)
    broker = TaskBroker(store, settings=settings)
    tasks = await asyncio.gather(*map(broker.wait, ids))
    await broker.aclose()
    await store.aclose()
    return list(tasks)


@pytest.mark.needs("postgres")
async def test_clocks_of_workers_do_not_matter(
    postgres: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases, deadlines and times to start are those of the server: a minute more or less takes nothing over."""
    store = TaskStorePostgres(make_database(postgres))
    broker = TaskBroker(store, settings=settings)
    soon = datetime.now(UTC) + timedelta(seconds=30)

    def set_clock(minutes: int) -> None:
        def now(_: SystemClock) -> datetime:
            return datetime.now(UTC) + timedelta(minutes=minutes)

        monkeypatch.setattr(SystemClock, "now", now)

    set_clock(-1)
    held = await broker.submit("one", deadline_seconds=30)
    later = await broker.submit("later", not_before=soon, queue="later")
    claim = await store.claim(owner(), id=held)
    assert claim is not None
    set_clock(1)
    assert await store.claim(owner(), id=held) is None
    assert await store.claim(owner(), ("later",)) is None
    assert await store.claim(owner(), id=later) is None
    await store.heartbeat(claim)
    due = await store.look(lambda tables: tables.run("task.due", now=tables.now()))
    assert due == []
    await store.release(claim, TaskState.COMPLETED)
    await broker.aclose()
    await store.aclose()
