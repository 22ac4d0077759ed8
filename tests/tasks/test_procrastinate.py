"""The engine on Postgres: jobs in the row's transaction, its own schema, and what is done when the two fall apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bough.errors import Conflict, InvalidInput, Unavailable
from bough.events.side_tables import Tables
from bough.events.stores.postgres import PostgresEventStore
from bough.settings import Settings
from bough.tasks import TaskBroker, TaskState, TaskStorePostgres
from bough.tasks.dispatch.jobs import JOB_SWEEP_SECONDS, JobSweep
from bough.tasks.dispatch.procrastinate import JOB, ProcrastinateDispatcher, name_queue
from bough.tasks.stores.jobs_schema import migrate_jobs, read_jobs_version
from bough.testing.dispatcher import GatedAgent
from bough.testing.postgres import make_database

pytestmark = [pytest.mark.anyio, pytest.mark.needs("postgres")]


@pytest.fixture
def database(postgres: str) -> str:
    """The URL of an empty database."""
    return make_database(postgres)


@pytest.fixture
async def tasks(database: str) -> AsyncGenerator[TaskStorePostgres]:
    """A store with the engine's tables beside it."""
    store = TaskStorePostgres(database)
    await store.open()
    yield store
    await store.aclose()


@pytest.fixture
async def broker(tasks: TaskStorePostgres, settings: Settings) -> AsyncGenerator[TaskBroker]:
    """A broker that submits and runs nothing."""
    broker = TaskBroker(tasks, settings=settings)
    yield broker
    await broker.aclose()


async def ask(tasks: TaskStorePostgres, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Return the rows of a statement on the store's database."""

    def run(tables: Tables) -> list[tuple[Any, ...]]:
        cursor = tables.connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []

    return await tasks.change(run)


JOBS = (
    "select id, queue_name, task_name, priority, scheduled_at, args, status::text from procrastinate_jobs order by id"
)


async def test_the_job_is_written_with_the_row(tasks: TaskStorePostgres, broker: TaskBroker) -> None:
    """Both or neither: a submission that is refused leaves no job; a key that is known makes no second one."""
    later = datetime.now(UTC) + timedelta(hours=1)
    task_id = await broker.submit("one", queue="q", priority=7, not_before=later, idempotency_key="k")
    await broker.submit("one", queue="q", priority=7, not_before=later, idempotency_key="k")
    with pytest.raises(Conflict):
        await broker.submit("other", idempotency_key="k")
    with pytest.raises(InvalidInput):
        await broker.submit("one", queue="a b")
    [(id, queue, name, priority, scheduled, args, status)] = await ask(tasks, JOBS)
    assert (queue, name, priority, status) == (name_queue("bough", "q"), JOB, 7, "todo")
    assert (scheduled, args) == (later, {"task_id": task_id})
    assert await ask(tasks, "select job from task") == [(id,)]


async def test_a_transaction_that_fails_leaves_no_job(tasks: TaskStorePostgres, broker: TaskBroker) -> None:
    """What comes behind the job in the same transaction fails: the job is gone with it."""
    task = await broker.poll(await broker.submit("one"))
    dispatcher = broker.dispatcher

    def fail(tables: Tables) -> None:
        dispatcher.enqueue(tables, task)
        raise InvalidInput("no")

    with pytest.raises(InvalidInput):
        await tasks.change(fail)
    assert len(await ask(tasks, JOBS)) == 1


async def test_cancelling_takes_the_job_back(tasks: TaskStorePostgres, broker: TaskBroker) -> None:
    """In the transaction that cancels the task."""
    task_id = await broker.submit("one")
    await broker.cancel(task_id)
    assert await ask(tasks, JOBS) == []


async def test_an_abort_in_another_schema_stops_nothing_here(
    database: str, tasks: TaskStorePostgres, broker: TaskBroker, settings: Settings, gate: GatedAgent
) -> None:
    """Two stores of one database: their jobs have the same numbers, and their channels are those of the database."""
    log = await PostgresEventStore.open(database, schema="other")
    other = TaskBroker(TaskStorePostgres(log), settings=settings)
    async with TaskBroker(tasks, settings=settings, queues=("q",)) as running:
        running.register_agents([gate.spec])
        mine = await broker.submit("one", agent_name="gated", queue="q")
        await gate.wait_until(lambda: gate.begun == ["one"])
        theirs = await other.submit("one", queue="q")
        assert await ask(tasks, "select max(id) from other_jobs.procrastinate_jobs") == await ask(
            tasks, "select max(id) from bough_jobs.procrastinate_jobs"
        )
        await other.cancel(theirs)
        gate.open()
        assert (await running.wait(mine)).state is TaskState.COMPLETED
    await other.aclose()
    await log.aclose()


async def test_a_job_that_was_aborted_without_a_cancellation_runs_on(
    tasks: TaskStorePostgres, broker: TaskBroker, settings: Settings, gate: GatedAgent
) -> None:
    """The row decides: whoever holds the claim continues."""
    dispatcher = broker.dispatcher
    async with TaskBroker(tasks, settings=settings, queues=("q",)) as running:
        running.register_agents([gate.spec])
        task_id = await broker.submit("one", agent_name="gated", queue="q")
        await gate.wait_until(lambda: gate.begun == ["one"])
        [(job, *_)] = await ask(tasks, JOBS)
        await tasks.change(lambda tables: dispatcher.withdraw(tables, job))
        gate.open()
        assert (await running.wait(task_id)).state is TaskState.COMPLETED


async def test_the_sweep_brings_rows_and_jobs_together(tasks: TaskStorePostgres, broker: TaskBroker) -> None:
    """A row without a job gets one; a job that no row names goes, a forged one too; what is right stays."""
    lost, right = await broker.submit("lost"), await broker.submit("right")
    await ask(tasks, "delete from procrastinate_jobs where args ->> 'task_id' = %s", lost)
    task = await broker.poll(right)
    dispatcher = broker.dispatcher
    for id in (right, "nonsense", "01990000-0000-7000-8000-000000000001"):
        forged = task.model_copy(update={"id": id})
        await tasks.change(lambda tables, forged=forged: dispatcher.enqueue(tables, forged))
    await JobSweep(tasks, dispatcher.enqueue).once()
    named = await ask(tasks, "select id::text, job from task order by k")
    assert [id for id, _ in named] == [lost, right]
    assert [(args["task_id"], id) for id, *_, args, _ in sorted(await ask(tasks, JOBS))] == sorted(
        named, key=lambda row: row[1]
    )


async def test_the_sweep_waits_for_a_worker_that_has_taken_a_job(tasks: TaskStorePostgres, broker: TaskBroker) -> None:
    """It is about to claim the row. One that died in between is given up after some seconds."""
    now = [0.0]
    await broker.submit("one")
    [(job, *_)] = await ask(tasks, JOBS)
    await ask(tasks, "insert into procrastinate_workers default values")
    await ask(tasks, "update procrastinate_jobs set status = 'doing', worker_id = 1")
    sweep = JobSweep(tasks, broker.dispatcher.enqueue, lambda: now[0])
    for now[0] in (0.0, JOB_SWEEP_SECONDS - 0.1):
        await sweep.once()
        assert await ask(tasks, "select job from task") == [(job,)]
    now[0] = JOB_SWEEP_SECONDS
    await sweep.once()
    [(renewed,)] = await ask(tasks, "select job from task")
    assert renewed > job
    await sweep.once()  # the worker of the old job lives: it ends that job itself
    assert [row[0] for row in await ask(tasks, JOBS)] == [job, renewed]
    await ask(tasks, "update procrastinate_workers set last_heartbeat = now() - interval '31 s'")
    await sweep.once()
    assert [row[0] for row in await ask(tasks, JOBS)] == [renewed]


async def test_a_put_off_task_gets_a_job_for_then(
    tasks: TaskStorePostgres, broker: TaskBroker, settings: Settings, gate: GatedAgent
) -> None:
    """Somebody runs its conversation without a task when the job comes: it is delivered again, and runs then."""
    task_id = await broker.submit("one", agent_name="gated", queue="q")
    task = await broker.poll(task_id)
    assert task.conversation is not None
    lease = await tasks.log.acquire(task.conversation, "2/somebody/else", 60)
    gate.open()
    async with TaskBroker(tasks, settings=settings, queues=("q",)) as running:
        running.register_agents([gate.spec])
        [(first, *_)] = await ask(tasks, JOBS)
        while await ask(tasks, "select job from task") == [(first,)]:
            await asyncio.sleep(0.01)
        [(scheduled,)] = await ask(tasks, "select scheduled_at from task join procrastinate_jobs j on j.id = task.job")
        assert scheduled is not None
        await tasks.log.release(lease)
        assert (await running.wait(task_id)).state is TaskState.COMPLETED


async def test_the_schema_is_made_once(database: str) -> None:
    """Four at once, and once more; opening a store does it, and `check` finds nothing."""
    await asyncio.gather(*(asyncio.to_thread(migrate_jobs, database, "bough") for _ in range(4)))
    version = read_jobs_version(database, "bough")
    assert version.applied == version.installed
    store = TaskStorePostgres(database)
    await store.open()
    assert await ProcrastinateDispatcher(store).check() == []
    await store.aclose()


async def test_the_schema_of_an_older_release_is_brought_up_to_date(database: str, settings: Settings) -> None:
    """By the files that it lacks; jobs can be written then. A newer one than the package knows is refused."""
    import procrastinate.schema
    from psycopg import Connection

    steps = sorted(Path(procrastinate.schema.SchemaManager.get_migrations_path()).glob("*.sql"))
    with Connection.connect(database, autocommit=True) as db:
        db.execute("create schema bough_jobs; set search_path to bough_jobs")
        for step in steps[:-4]:
            db.execute(step.read_bytes())
        db.execute("create table applied (version text primary key, at timestamptz not null default now())")
        db.execute("insert into applied (version) values (%s)", (steps[-5].stem,))
        store = TaskStorePostgres(database)
        broker = TaskBroker(store, settings=settings)
        task_id = await broker.submit("one")
        assert db.execute("select version from applied order by version").fetchall() == [
            (step.stem,) for step in steps[-5:]
        ]
        assert db.execute("select args ->> 'task_id' from procrastinate_jobs").fetchall() == [(task_id,)]
        await broker.aclose()
        await store.aclose()
        db.execute("insert into applied (version) values ('99.00.00_01_pre_of_a_newer_release')")
    with pytest.raises(Unavailable) as newer:
        await TaskStorePostgres(database).open()
    assert newer.value.hint == "upgrade procrastinate"


@pytest.fixture
def gate() -> GatedAgent:
    """An agent whose tasks wait at a gate."""
    return GatedAgent()
