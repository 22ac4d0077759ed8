"""The worker: claims a task, runs its conversation under the claim, and ends it with the run's last events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from opentelemetry.trace import Span, Status, StatusCode

from bough.agents.build import BlueprintCache
from bough.agents.delegation_protocol import Delegation, SharedBound
from bough.agents.spec import AgentSpec
from bough.cancellation import acquire, finish
from bough.connect.mcp_pool import McpPool
from bough.conversation.agent import AgentInForce
from bough.conversation.check import RunCheck
from bough.conversation.log.listeners import Update
from bough.conversation.log.staged_write import Ending
from bough.conversation.parts import Parts
from bough.conversation.rules import Rules
from bough.conversation.run.run import Runner
from bough.conversation.run.stop import StopReason
from bough.conversation.run.tracing import span_below
from bough.errors import BoughError, Conflict, InvalidInput
from bough.events.model import Event, LimitReached, PauseRequested, StateChanged, TaskChanged
from bough.events.owner import owner as make_owner
from bough.events.record import Lease, StoredEvent
from bough.events.side_tables import Tables
from bough.execution.base import CodeExecutor
from bough.settings import Settings
from bough.tasks.agents import FindCredentials, FindHooks, open_conversation
from bough.tasks.model import Task
from bough.tasks.outcome import RunEnding, measure_before
from bough.tasks.state import TaskState
from bough.tasks.store import DEFAULT_QUEUE, LEASE_SECONDS, Claim
from bough.tasks.stores.endings import Withdraw, end_claim, find_current
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import Enqueue, Move, give_job, read_first
from bough.tasks.stores.summary import TASKS
from bough.tasks.submitting import CHECK, TRACE

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from bough.tasks.control import Stopped
    from bough.tasks.store import TaskStore

LOG = logging.getLogger("bough.task")
"""Logs ids, agents, states, codes and seconds of tasks; never message texts."""


@dataclass(eq=False)
class ActiveRun:
    """A task that runs in this process."""

    claim: Claim
    ending: RunEnding
    runner: Runner | None = None
    work: asyncio.Task[None] | None = None
    stopped: StopReason | None = None
    started: float = field(default_factory=time.monotonic)

    def stop(self, reason: StopReason, why: str = "") -> None:
        """Stop the run now, or as soon as it starts."""
        if self.stopped is None:  # the first reason decides: a fenced run must not be handed back later
            self.stopped = reason
        if reason == "hand_back":
            self.ending.is_handed_back = True
        if why:
            self.ending.why_stopped = why
        if self.runner is not None:
            self.runner.stop(reason)

    def hand_back(self) -> None:
        """Stop the run at the end of its step, or now if it has not started, so that another worker continues it."""
        if self.runner is None:
            self.stop("hand_back")
        else:
            self.runner.hand_back(self._note_handed_back)

    def _note_handed_back(self) -> None:
        self.ending.is_handed_back = True


class Worker:
    """Executes tasks of a store, any number concurrently.

    Args:
        store: Memory, Json, SQLite or Postgres.
        model: Used by agents that name no model; None uses the model of the settings.
        agents: Registered specs by name, in addition to recorded and configured agents.
        delegation: Runs the tasks of sub-agents; None if agents have none.
        enqueue: Delivers a task that becomes pending again; None if no engine delivers tasks.
        withdraw: Cancels the delivery of a task that has ended.
        hooks: Finds the hooks of a task by its workspace; None if tasks have none.
        credentials: Finds the secrets and the model key of a conversation; None if conversations have none.
        pool: Runs the MCP servers of all tasks. The caller closes it; None creates one.
        executor: Runs the scripts of agents that name no executor. The caller closes it; None creates the executor of
            the settings for each run.

    Attributes:
        blueprints: Shared parts of the tasks' agents, built once.
        parent_rules: Parents' rules by the id of the child task that this process started. A log only names hooks and
            secrets, so a child without an entry runs with what can be rebuilt from its record.
        on_begin: Called with each claimed task before its run.
        on_end: Called after each run.
        on_update: Called with the conversation id for each durable event and each streamed piece of text.
        find_reached: Called with owner and conversation id before each model request; a limit that it returns ends
            the run.
    """

    def __init__(
        self,
        store: TaskStore,
        model: str | Model | None = None,
        *,
        agents: Mapping[str, AgentSpec] | None = None,
        settings: Settings | None = None,
        delegation: Delegation | None = None,
        enqueue: Enqueue | None = None,
        withdraw: Withdraw | None = None,
        hooks: FindHooks | None = None,
        credentials: FindCredentials | None = None,
        executor: CodeExecutor | None = None,
        ttl_seconds: float = LEASE_SECONDS,
        pool: McpPool | None = None,
    ) -> None:
        self.store = require_relational(store)
        self.model = model
        self.agents: Mapping[str, AgentSpec] = {} if agents is None else agents
        self.settings = settings or Settings.load()
        self.delegation = delegation
        self.owner = make_owner()
        self.enqueue = enqueue
        self.withdraw = withdraw
        self._hooks = hooks
        self._credentials = credentials
        self._executor = executor
        self.find_reached: Callable[[str | None, UUID], Awaitable[LimitReached | None]] | None = None
        self._ttl = ttl_seconds
        self.pool = pool or McpPool()
        self._owns_pool = pool is None
        self.blueprints = BlueprintCache(self.pool)
        self.active: dict[str, ActiveRun] = {}
        self.parent_rules: dict[str, Rules] = {}
        self.on_begin: list[Callable[[ActiveRun], None]] = []
        self.on_end: list[Callable[[ActiveRun], None]] = []
        self.on_update: list[Callable[[UUID, Update], None]] = []

    async def execute(self, task_id: str) -> None:
        """Claim a task and run it to its end. Only logs a warning if the task is unknown or cannot be claimed.

        Raises:
            StoreError: The store cannot be read or written.
        """
        claim = await self.claim_task(task_id)
        if claim is not None:
            try:
                await self.run(claim)
            finally:
                if not self.active:  # programs that call `execute` directly do not close the worker
                    await finish(self.aclose())
        elif await self.store.get(task_id) is None:
            LOG.warning("task %s not found", task_id)
        else:
            LOG.warning("task %s cannot be claimed: it has ended, asks for input, or runs elsewhere", task_id)

    async def aclose(self) -> None:
        """Close the MCP servers that tasks started. Idempotent; the next task may start them again."""
        if self._owns_pool:
            await self.pool.aclose()

    async def claim_task(self, task_id: str) -> Claim | None:
        """Claim a task; return None if it cannot be claimed.

        Each claim uses a new owner, so that a second claim does not take over a task that already runs here.
        """
        return await self._keep_claim(self.store.claim(make_owner(), id=task_id, ttl_seconds=self._ttl))

    async def claim_next(self, queues: Collection[str] = (DEFAULT_QUEUE,)) -> Claim | None:
        """Claim the next task of some queues; return None if none is waiting."""
        return await self._keep_claim(self.store.claim(make_owner(), queues, ttl_seconds=self._ttl))

    async def _keep_claim(self, claiming: Awaitable[Claim | None]) -> Claim | None:
        # A cancelled caller must not keep the claim: without `acquire` the task would wait for its lease to expire.
        claim = await acquire(claiming, self._give_back)
        if claim is not None:
            how = "claimed" if claim.task.attempts <= 1 else f"claimed, attempt {claim.task.attempts}"
            LOG.info("task %s %s agent=%s", claim.task.id, how, claim.task.agent_name)
        return claim

    async def _give_back(self, claim: Claim | None) -> None:
        """Release a claim whose caller was cancelled, so that another worker may run the task."""
        if claim is not None:
            await self._hand_back(UUID(claim.task.id), claim.lease)

    def start(self, claim: Claim) -> asyncio.Task[None]:
        """Start running a claimed task, and return its asyncio task."""
        return asyncio.create_task(self.run(claim), name=f"task {claim.task.id}")

    async def run(self, claim: Claim) -> None:
        """Run a claimed task until it ends, asks for input, is handed back, or is lost to another worker."""
        log = await self.store.open()
        id = UUID(claim.task.id)
        ending = RunEnding(id=id, lease=claim.lease, enqueue=self.enqueue)
        active = self.active[claim.task.id] = ActiveRun(claim, ending)
        for listener in self.on_begin:
            listener(active)
        # Registered before the conversation is opened, which may take longer than the lease lasts.
        renewal = log.keep_lease(claim.lease, self._ttl, lambda: active.stop("fenced"))
        active.work = asyncio.create_task(self._run(active), name=f"run of task {claim.task.id}")
        try:
            while not active.work.done():
                try:
                    await asyncio.wait({active.work})
                except asyncio.CancelledError:
                    # The run must write its end before the claim is dropped.
                    active.stop("interrupt")
                    active.work.cancel()
                    await finish(asyncio.wait({active.work}))
                    raise
        finally:
            renewal.stop()
            self.active.pop(claim.task.id, None)
            self._report(active)
            for listener in self.on_end:
                listener(active)

    async def _run(self, active: ActiveRun) -> None:
        """Open the conversation and run it. The result, errors included, is in the log and the row."""
        claim = active.claim
        try:
            opened = await self._open(claim)
        except BoughError as error:
            await self._fail(active, error)
            return
        try:
            with self._span(claim.task) as span:
                await self._run_opened(active, opened)
                if span.is_recording():
                    await self._describe_end(claim.task.id, span)
        finally:
            await finish(opened.aclose())

    def _span(self, task: Task) -> AbstractContextManager[Span]:
        """Return the tracing span of a claim, as a child of the span that submitted the task."""
        trace: Any = task.metadata.get(TRACE)
        attributes = {"bough.task": task.id, "gen_ai.agent.name": task.agent_name or "", "bough.queue": task.queue}
        return span_below("bough.task", trace if isinstance(trace, str) else None, attributes)

    async def _describe_end(self, task_id: str, span: Span) -> None:
        """Record the end of a claim in its span: state, code and usage, never texts."""
        task = await self.store.get(task_id)
        if task is None:
            return
        span.set_attributes(
            {
                "bough.state": task.state.value,
                "bough.attempts": task.attempts,
                "bough.requests": task.usage.requests,
                "gen_ai.usage.input_tokens": task.usage.input_tokens,
                "gen_ai.usage.output_tokens": task.usage.output_tokens,
            }
        )
        if task.state is TaskState.FAILED:
            span.set_status(Status(StatusCode.ERROR, task.code))

    async def _open(self, claim: Claim) -> Parts:
        return await open_conversation(
            self.store.log, claim.task, self.agents, model=self.model, settings=self.settings, hooks=self._hooks,
            credentials=self._credentials, cache=self.blueprints, parent_rules=self.parent_rules.get(claim.task.id),
            executor=self._executor,
        )  # fmt: skip

    async def _run_opened(self, active: ActiveRun, opened: Parts) -> None:
        """Run the opened conversation of a claimed task, and end or hand back its claim."""
        journal, task = opened.journal, active.claim.task
        active.ending.spent_before = await measure_before(journal, task)
        journal.listeners.extend(partial(listener, journal.cid) for listener in self.on_update)
        find_reached = self.find_reached and partial(self.find_reached, opened.record.owner, journal.cid)
        check: Any = task.metadata.get(CHECK)
        active.runner = runner = Runner(
            journal,
            AgentInForce(journal.state, opened.agent, opened.environment.settings),
            opened.environment,
            opened.rules,
            root=opened.record.root,
            delegation=self.delegation,
            ancestors=await self._read_bounds(task),
            find_reached=find_reached,
            check=None if check is None else RunCheck.parse(check),
        )
        # From the claim's seq, not from the head: interrupts that arrived while the conversation was opened apply to
        # this run.
        runner.listen(active.claim.seq, partial(self._on_event, active))
        run = asyncio.create_task(
            runner.run(lease=active.claim.lease, ending=Ending((TASKS,), active.ending.change)),
            name=f"run {journal.cid}",
        )
        if active.stopped is not None:  # stopped before `active.runner` was set, so `stop` did not stop the runner
            run.cancel()
        try:
            await run
        except asyncio.CancelledError:
            if not run.done():
                runner.stop("interrupt")
                await finish(asyncio.wait({run}))
                raise
            if active.stopped == "interrupt":  # the run may have been stopped before it could write its end
                await self._end_interrupted(active)
        except BoughError as error:
            await self._fail(active, error)
        # After the run: it may have reached its end before the stop, and then the row is no longer running.
        if active.stopped == "hand_back":
            await self._hand_back(active.ending.id, active.ending.lease)

    async def _read_bounds(self, task: Task) -> tuple[SharedBound, ...]:
        """Return the bounds of a task's ancestors, as they were when it was submitted."""
        if task.parent_id is None:
            return ()
        first = await self.store.look(lambda tables: read_first(tables, UUID(task.id)), small=True)
        return () if first is None else tuple(SharedBound.from_json(bound) for bound in first.bounds)

    def _on_event(self, active: ActiveRun, stored: StoredEvent) -> None:
        """Stop the run on an interrupt, a cancellation or a failure of the task that any process appended."""
        if stored.kind == "PauseRequested" and isinstance(event := stored.event, PauseRequested) and event.now:
            active.stop("interrupt", event.reason or "interrupted")
        elif stored.kind == "TaskChanged" and _ends(stored.event, active.claim.task.id):
            active.stop("fenced")

    async def _fail(self, active: ActiveRun, error: BoughError) -> None:
        """Fail a task whose run could not write its end. Does nothing if the run did, or if the claim was lost."""
        if isinstance(error, Conflict) and error.code == "conflict" and active.stopped == "fenced":
            return
        with suppress(BoughError):  # the lease then expires, and another worker takes the task over
            await self.store.change(lambda tables: active.ending.fail(tables, error))

    async def _end_interrupted(self, active: ActiveRun) -> None:
        """Cancel a task whose run was interrupted before it could write its end. Does nothing if the run did."""
        ending = active.ending

        def end(tables: Tables) -> None:
            row = find_current(tables, ending.id, ending.lease)
            if row is not None:
                details = Move(reason=ending.why_stopped or "interrupted")
                paused = StateChanged(changes={"status": "paused"}, reason=details.reason)
                tables.append(row.conversation_id, [paused], generation=ending.lease.generation)
                end_claim(tables, row, ending.lease, TaskState.CANCELLED, details)

        with suppress(BoughError):
            await self.store.change(end)

    async def _hand_back(self, id: UUID, lease: Lease) -> None:
        """Make a claimed task that does not run pending again, without counting the attempt."""

        def hand_back(tables: Tables) -> None:
            row = find_current(tables, id, lease)
            if row is not None:
                details = Move(reason="handed back")
                give_job(tables, end_claim(tables, row, lease, TaskState.PENDING, details, counts=False), self.enqueue)

        with suppress(BoughError):  # the lease then expires, and another worker takes the task over
            await self.store.change(hand_back)

    def on_stopped(self, stopped: Stopped) -> None:
        """Stop the run of a task that was stopped in the store, if it runs here."""
        if stopped.changed and (active := self.active.get(stopped.task.id)) is not None:
            active.stop("fenced")

    def stop_all(self, reason: StopReason, why: str = "") -> None:
        """Stop every run of this worker."""
        for active in list(self.active.values()):
            active.stop(reason, why)

    def _report(self, active: ActiveRun) -> None:
        """Log that a run has ended, or the unexpected exception that ended it."""
        work, task = active.work, active.claim.task
        if work is None or work.cancelled():
            return
        if (error := work.exception()) is not None:
            LOG.error("task %s: its worker failed: %s: %s", task.id, type(error).__name__, error)
        else:
            LOG.info("task %s: run ended agent=%s", task.id, task.agent_name)


def _ends(event: Event, task_id: str) -> bool:
    """Whether an event is the end of the task by another process."""
    return isinstance(event, TaskChanged) and event.task_id == task_id and event.state in ("cancelled", "failed")


def require_relational(store: TaskStore) -> RelationalTaskStore:
    """Return `store` if its tasks have logs, as running them requires.

    Raises:
        InvalidInput: The store is of another kind.
    """
    if isinstance(store, RelationalTaskStore):
        return store
    raise InvalidInput(
        f"tasks of {type(store).__name__} cannot be run: they have no log",
        hint="use TaskStoreMemory, TaskStoreJson, TaskStoreSqlite or TaskStorePostgres",
    )
