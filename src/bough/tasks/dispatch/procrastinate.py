"""Dispatch by Procrastinate, for tasks on Postgres: a job is written with the row and delivered to a worker.

A job is a pointer: it names a task, and the worker that receives it claims that row. The row's compare-and-set and the
lease decide who runs a task, so repeated, late and forged jobs are harmless. The facts of Procrastinate 3.10 that this
relies on: `docs/decisions/0034-jobs-are-pointers.md`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import procrastinate
from procrastinate import App, JobContext, PsycopgConnector, SyncPsycopgConnector
from procrastinate.exceptions import ConnectorException, ProcrastinateException
from procrastinate.job_context import AbortReason
from psycopg import AsyncConnection, Error, sql
from psycopg_pool import PoolTimeout

from bough.errors import BoughError
from bough.events.integrity import IntegrityFinding
from bough.events.side_tables import Tables
from bough.tasks.dispatch.jobs import JobSweep, renew_job
from bough.tasks.dispatch.local import LocalDispatcher
from bough.tasks.model import Task
from bough.tasks.stores.backends import TaskStorePostgres, read_address
from bough.tasks.stores.endings import find_current
from bough.tasks.stores.jobs_schema import jobs_schema, newest_step, read_jobs_version
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import FORMAT, Enqueue, parse_id

if TYPE_CHECKING:
    from bough.tasks.worker import Worker


LOG = logging.getLogger("bough.task")

JOB = "bough.run"
"""The engine's name for the function that a job runs."""

_POLL_SECONDS = 1.0
"""How often the engine polls, in case a notification was lost."""

_CONNECT_SECONDS = 5.0
_BACK_OFF_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
_FAILURES = (ProcrastinateException, Error, PoolTimeout, OSError)


class ProcrastinateDispatcher:
    """Delivers tasks to any process that serves their queue, on any machine.

    Args:
        store: Its tasks get jobs. The engine's tables are in a second schema of the same database.
    """

    name = "procrastinate"
    version = f"procrastinate {procrastinate.__version__}, schema {newest_step()}"

    def __init__(self, store: TaskStorePostgres) -> None:
        self._store = store
        # Never opened: jobs are written over the connection of the transaction that makes their task pending, so that
        # neither exists without the other.
        self._app = App(connector=SyncPsycopgConnector())
        self._local = LocalDispatcher(claims_pending=False)
        self._woken = asyncio.Event()

    def enqueue(self, tables: Tables, task: Task) -> int | None:
        """Write the job of a task and return its number."""
        _, schema = read_address(self._store.log)
        job = self._app.configure_task(
            JOB, queue=name_queue(schema, task.queue), priority=task.priority, schedule_at=task.not_before,
            connection=tables.connection,
        )  # fmt: skip
        try:
            return job.defer(task_id=task.id)
        except ConnectorException as error:
            raise _unwrap(error) from error

    def withdraw(self, tables: Tables, job: int) -> None:
        """Delete a waiting job, or ask a running one to stop."""
        manager = self._app.job_manager
        try:
            manager.cancel_job_by_id(job, abort=True, delete_job=True, connection=tables.connection)
        except ConnectorException as error:
            raise _unwrap(error) from error

    def wake(self) -> None:
        """Check for newly served queues. The engine itself finds waiting jobs."""
        self._woken.set()
        self._local.wake()

    def want(self, task_id: str, queue: str | None = None) -> None:
        """Run a task in this process."""
        self._local.want(task_id, queue)

    async def run(self, worker: Worker, *, queues: Collection[str], concurrency: int, stopping: asyncio.Event) -> None:
        """Run the tasks that the engine delivers and those passed to `want`."""
        await worker.store.open()
        sweep = JobSweep(self._store, self.enqueue)
        background = [
            asyncio.create_task(sweep.run(), name="sweep of jobs"),
            asyncio.create_task(_set_when(stopping, self._woken), name="stop of the engine"),
        ]
        local = asyncio.create_task(
            self._local.run(worker, queues=queues, concurrency=concurrency, stopping=stopping), name="wanted tasks"
        )
        delivery = Delivery(self._store, worker, self.enqueue, concurrency, stopping)
        try:
            await self._serve(delivery, queues, stopping)
            await local
            await delivery.finish()  # runs outlive the engine that delivered them, and must end before their claims
        finally:
            for task in (*background, local):
                task.cancel()
            await asyncio.gather(*background, local, return_exceptions=True)

    async def check(self) -> list[IntegrityFinding]:
        """Return problems of the engine's tables."""
        await self._store.open()
        address, schema = read_address(self._store.log)
        version = await asyncio.to_thread(read_jobs_version, address, schema)
        findings: list[IntegrityFinding] = []
        if version.applied != version.installed:
            problem = f"the schema {jobs_schema(schema)!r} has {version.applied}, procrastinate has {version.installed}"
            findings.append(IntegrityFinding(problem))
        return findings

    async def _serve(self, delivery: Delivery, queues: Collection[str], stopping: asyncio.Event) -> None:
        """Keep the engine's worker running for the currently served queues, until `stopping` is set.

        The worker is restarted when the queues change and after the server was unavailable. Running tasks continue.
        """
        failures = 0
        while not stopping.is_set():
            self._woken.clear()
            served = tuple(sorted(set(queues)))
            engine = asyncio.create_task(self._run_engine(delivery, served), name="engine")
            try:
                while served == tuple(sorted(set(queues))) and not engine.done() and not stopping.is_set():
                    await _wait_for_either(engine, self._woken)
                    self._woken.clear()
            finally:
                has_failed = engine.done()
                engine.cancel()
                await asyncio.gather(engine, return_exceptions=True)
            failures = failures + 1 if has_failed else 0
            if has_failed and not stopping.is_set():
                LOG.warning("the engine of tasks has stopped: %s", _describe(engine))
                with suppress(TimeoutError):
                    seconds = _BACK_OFF_SECONDS[min(failures, len(_BACK_OFF_SECONDS)) - 1]
                    await asyncio.wait_for(stopping.wait(), seconds)

    async def _run_engine(self, delivery: Delivery, queues: Collection[str]) -> None:
        """Run the engine's worker on some queues until it is cancelled or loses the server."""
        if not queues:
            await asyncio.Event().wait()
        address, schema = read_address(self._store.log)
        async with _open_app(address, schema) as app:

            @app.task(name=JOB, pass_context=True)
            async def deliver(context: JobContext, task_id: str) -> None:  # pyright: ignore[reportUnusedFunction]
                await delivery.deliver(task_id, context.job.id, lambda: _find_stop_reason(context))

            await app.run_worker_async(
                queues=[name_queue(schema, queue) for queue in queues],
                concurrency=delivery.concurrency,
                install_signal_handlers=False,
                listen_notify=True,
                delete_jobs="always",
                fetch_job_polling_interval=_POLL_SECONDS,
                abort_job_polling_interval=_POLL_SECONDS,
                shutdown_graceful_timeout=0,
            )


def name_queue(schema: str, queue: str) -> str:
    """Return the name that Procrastinate uses for a queue: a digest of schema, row format and queue.

    Postgres channels are shared by the whole database, while jobs are numbered per schema: with equal queue names,
    aborting a job in one schema would stop the job of the same number in another. With the row format in the
    name, workers never receive rows that they cannot read. The name is a digest, because Postgres truncates channel
    names at 63 bytes.
    """
    return hashlib.sha256(f"{schema}.{FORMAT}.{queue}".encode()).hexdigest()[:16]


@asynccontextmanager
async def _open_app(address: str, schema: str) -> AsyncGenerator[App]:
    path = sql.SQL("set search_path to {}, {}").format(sql.Identifier(schema), sql.Identifier(jobs_schema(schema)))

    async def configure(db: AsyncConnection[Any]) -> None:
        await db.execute(path)
        await db.commit()

    connector = PsycopgConnector(
        conninfo=address, kwargs={"application_name": "bough"}, configure=configure, min_size=1, max_size=4,
        timeout=_CONNECT_SECONDS,
    )  # fmt: skip
    app = App(connector=connector)
    async with app.open_async():
        yield app


async def _wait_for_either(engine: asyncio.Task[None], woken: asyncio.Event) -> None:
    """Wait until the engine ends or `woken` is set."""
    waiting = asyncio.create_task(woken.wait())
    try:
        await asyncio.wait({engine, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def _set_when(event: asyncio.Event, other: asyncio.Event) -> None:
    await event.wait()
    other.set()


def _find_stop_reason(context: JobContext) -> WhyStopped | None:
    match context.abort_reason():
        case AbortReason.SHUTDOWN:
            return "engine ends"
        case AbortReason.USER_REQUEST:
            return "job aborted"
        case None:
            return None


def _describe(engine: asyncio.Task[None]) -> str:
    error = None if engine.cancelled() else engine.exception()
    if error is None:
        return "the connection was lost"
    if not isinstance(error, _FAILURES):
        raise error
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {cause}"


def _unwrap(error: ConnectorException) -> BaseException:
    """Return the driver's error behind the engine's, which the store can translate."""
    return error.__cause__ if isinstance(error.__cause__, Error) else error


WhyStopped: TypeAlias = Literal["engine ends", "job aborted"]
"""Why the engine cancels a job."""


class Delivery:
    """Runs the tasks that jobs name, at most `concurrency` at once over all restarts of the engine.

    A task continues when the engine that delivered it ends, so that a restarted server or an added queue does not
    interrupt it.
    """

    def __init__(
        self, store: RelationalTaskStore, worker: Worker, enqueue: Enqueue, concurrency: int, stopping: asyncio.Event
    ) -> None:
        self.concurrency = concurrency
        self._store = store
        self._worker = worker
        self._enqueue = enqueue
        self._slots = asyncio.Semaphore(concurrency)
        self._stopping = stopping
        self._runs: set[asyncio.Task[None]] = set()

    async def deliver(self, task_id: str, job: int | None, why: Callable[[], WhyStopped | None]) -> None:
        """Run the task of a job. Returns when the run or the engine ends.

        Args:
            why: Returns why the engine cancelled the job; None if something else cancelled it.
        """
        run = asyncio.create_task(self._run(task_id, job), name=f"delivered task {task_id}")
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        while not run.done():
            try:
                await asyncio.wait({run})
            except asyncio.CancelledError:
                reason = why()
                if reason is None:
                    raise
                # The engine cancels the job, not the run. Without `uncancel`, the next await would be cancelled too.
                if (current := asyncio.current_task()) is not None:
                    current.uncancel()
                if reason == "engine ends":
                    return
                await self._stop_lost(task_id)

    async def finish(self) -> None:
        """Wait for the running tasks."""
        while self._runs:
            await asyncio.wait(self._runs)

    async def _run(self, task_id: str, job: int | None) -> None:
        async with self._slots:
            try:
                claim = None if self._stopping.is_set() else await self._worker.claim_task(task_id)
                if claim is None:
                    await self._renew(task_id, job)
                    return
            except BoughError as error:  # the job sweep finds the row and gives it another job
                LOG.warning("task %s could not be claimed: %s", task_id, error.message)
                return
            await self._worker.run(claim)

    async def _renew(self, task_id: str, job: int | None) -> None:
        """Give a task that cannot run here now a new job, since the engine considers this one done."""
        id = parse_id(task_id)
        if id is not None and job is not None:
            await self._store.change(lambda tables: renew_job(tables, id, job, self._enqueue))

    async def _stop_lost(self, task_id: str) -> None:
        """Stop a run if another process has ended its claim. An aborted job alone does not stop its run.

        The run also learns of a cancellation from its log; this is the second way.
        """
        active = self._worker.active.get(task_id)
        if active is None:
            return
        id, lease = active.ending.id, active.claim.lease
        with suppress(BoughError):
            if await self._store.look(lambda tables: find_current(tables, id, lease)) is None:
                active.stop("fenced")
