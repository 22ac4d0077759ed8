"""Runs tasks: claims one, runs its conversation under the claim, and ends it with the run's last events."""

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
from bough.conversation.log.listeners import Update
from bough.conversation.log.staged_write import Ending
from bough.conversation.parts import Parts
from bough.conversation.rules import Rules
from bough.conversation.run.run import Runner
from bough.conversation.run.stop import StopReason
from bough.conversation.run.tracing import span_below
from bough.errors import BoughError, Conflict
from bough.events.beside import Tables
from bough.events.model import Event, LimitReached, PauseRequested, StateChanged, TaskChanged
from bough.events.owner import owner as make_owner
from bough.events.record import Lease, StoredEvent
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
from bough.tasks.submitting import TRACE

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from bough.tasks.control import Stopped
    from bough.tasks.store import TaskStore

LOG = logging.getLogger("bough.task")
"""What happens to tasks: ids, agents, states, codes, seconds; never texts."""


@dataclass(eq=False)
class ActiveRun:
    """A task that runs in this process."""

    claim: Claim
    ending: RunEnding
    runner: Runner | None = None
    work: asyncio.Task[None] | None = None
    stopped: StopReason | None = None
    begun: float = field(default_factory=time.monotonic)

    def stop(self, reason: StopReason, why: str = "") -> None:
        """End the run now; before it has begun, as soon as it does."""
        self.stopped = self.stopped or reason
        self.ending.is_handed_back = self.ending.is_handed_back or reason == "hand_back"
        self.ending.why_stopped = why or self.ending.why_stopped
        if self.runner is not None:
            self.runner.stop(reason)

    def hand_back(self) -> None:
        """End the run at the end of its step, so that another worker continues; before it has begun, at once."""
        if self.runner is None:
            self.stop("hand_back")
        else:
            self.runner.hand_back(self._note_handed_back)

    def _note_handed_back(self) -> None:
        self.ending.is_handed_back = True


class Worker:
    """Executes tasks of a store, one claim at a time each, any number at once.

    Args:
        store: Memory, Json, SQLite or Postgres.
        model: For agents without a model of their own; None takes the settings' one.
        agents: Specs by name, besides those that the log and `config.yaml` know.
        delegation: Runs the tasks of sub-agents; None where there are none.
        enqueue: Has a task delivered that becomes pending again; None where no engine delivers them.
        withdraw: Takes the delivery of a task back that has ended.
        hooks: Finds the hooks of a task by its workspace; None: there are none.
        credentials: Finds secrets and the model's key of a conversation that its log only names; None: there are none.
        pool: Runs the MCP servers of all its tasks, and stays the caller's to close; None makes one.
        executor: Runs scripts of agents without one of their own, and stays the caller's to close; None takes the
            settings' one for each run.

    Attributes:
        blueprints: What the agents of its tasks have in common is made once.
        given: Rules of the parents of tasks that this process started, by id: a log only names hooks and secrets.
        on_begin: Called with a claimed task before its run.
        on_end: Called when a task's run here is over.
        on_update: Called with the conversation for its durable events and the pieces of text of its responses.
        find_reached: Asked, with the owner and the id of the conversation, before each request of a run; what it
            returns ends it.
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
        self.given: dict[str, Rules] = {}
        self.on_begin: list[Callable[[ActiveRun], None]] = []
        self.on_end: list[Callable[[ActiveRun], None]] = []
        self.on_update: list[Callable[[UUID, Update], None]] = []

    async def execute(self, task_id: str) -> None:
        """Claim a task and run it to its end. One that is not there, or not claimable, is a warning and nothing else.

        Raises:
            StoreError: The store cannot be read or written.
        """
        claim = await self.claim_task(task_id)
        if claim is not None:
            try:
                await self.run(claim)
            finally:
                if not self.active:  # a program that executes a task by hand closes nothing
                    await finish(self.aclose())
        elif await self.store.get(task_id) is None:
            LOG.warning("task %s not found", task_id)
        else:
            LOG.warning("task %s cannot be claimed: it has ended, asks, or runs elsewhere", task_id)

    async def aclose(self) -> None:
        """Close the servers that tasks here have started. Twice is nothing, and the next task may start them again."""
        if self._owns_pool:
            await self.pool.aclose()

    async def claim_task(self, task_id: str) -> Claim | None:
        """Claim one task; None where it cannot be.

        Each claim is an owner of its own: a task that runs here already is not taken over by a second look at it.
        """
        return await self._take(self.store.claim(make_owner(), id=task_id, ttl_seconds=self._ttl))

    async def claim_next(self, queues: Collection[str] = (DEFAULT_QUEUE,)) -> Claim | None:
        """Claim the next task of some queues; None where nothing waits."""
        return await self._take(self.store.claim(make_owner(), queues, ttl_seconds=self._ttl))

    async def _take(self, claiming: Awaitable[Claim | None]) -> Claim | None:
        claim = await acquire(claiming, self._give_back)
        if claim is not None:
            how = "claimed" if claim.task.attempts <= 1 else f"claimed, attempt {claim.task.attempts}"
            LOG.info("task %s %s agent=%s", claim.task.id, how, claim.task.agent_name)
        return claim

    async def _give_back(self, claim: Claim | None) -> None:
        """Release a claim whose waiter was cancelled, so that others may run the task."""
        if claim is not None:
            await self._hand_back(UUID(claim.task.id), claim.lease)

    def start(self, claim: Claim) -> asyncio.Task[None]:
        """Run a claimed task beside whatever else runs, and return its asyncio task."""
        return asyncio.create_task(self.run(claim), name=f"task {claim.task.id}")

    async def run(self, claim: Claim) -> None:
        """Run a claimed task until the claim ends: done, asking, handed back, or lost to another worker."""
        log = await self.store.open()
        id = UUID(claim.task.id)
        ending = RunEnding(id=id, lease=claim.lease, enqueue=self.enqueue)
        active = self.active[claim.task.id] = ActiveRun(claim, ending)
        for listener in self.on_begin:
            listener(active)
        keeping = log.keep(claim.lease, self._ttl, lambda: active.stop("fenced"))
        active.work = asyncio.create_task(self._run(active), name=f"run of task {claim.task.id}")
        try:
            while not active.work.done():
                try:
                    await asyncio.wait({active.work})
                except asyncio.CancelledError:
                    active.stop("interrupt")
                    active.work.cancel()
                    await finish(asyncio.wait({active.work}))
                    raise
        finally:
            keeping.stop()
            self.active.pop(claim.task.id, None)
            self._report(active)
            for listener in self.on_end:
                listener(active)

    async def _run(self, active: ActiveRun) -> None:
        """Open the conversation and run it. How it ended is in the log and the row, whatever it was."""
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
        """Return the span of a claim, below the call or the program that submitted the task."""
        trace: Any = task.metadata.get(TRACE)
        about = {"bough.task": task.id, "gen_ai.agent.name": task.agent_name or "", "bough.queue": task.queue}
        return span_below("bough.task", trace if isinstance(trace, str) else None, about)

    async def _describe_end(self, task_id: str, span: Span) -> None:
        """Write down how a claim ended: state, code and usage, never texts."""
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
            credentials=self._credentials, cache=self.blueprints, given=self.given.get(claim.task.id),
            executor=self._executor,
        )  # fmt: skip

    async def _run_opened(self, active: ActiveRun, opened: Parts) -> None:
        journal, task = opened.journal, active.claim.task
        active.ending.spent_before = await measure_before(journal, task)
        journal.listeners.extend(partial(listener, journal.cid) for listener in self.on_update)
        find_reached = self.find_reached and partial(self.find_reached, opened.record.owner, journal.cid)
        active.runner = runner = Runner(
            journal,
            AgentInForce(journal.state, opened.agent, opened.environment.settings),
            opened.environment,
            opened.rules,
            root=opened.record.root,
            delegation=self.delegation,
            ancestors=await self._read_bounds(task),
            find_reached=find_reached,
        )
        # From the claim on, not from the head: what was said while the conversation was opened is for this run, too.
        runner.listen(active.claim.seq, partial(self._obey, active))
        run = asyncio.create_task(
            runner.run(lease=active.claim.lease, ending=Ending((TASKS,), active.ending.change)),
            name=f"run {journal.cid}",
        )
        if active.stopped is not None:  # said before there was a run to stop
            run.cancel()
        try:
            await run
        except asyncio.CancelledError:
            if not run.done():
                runner.stop("interrupt")
                await finish(asyncio.wait({run}))
                raise
            if active.stopped == "interrupt":  # before the run held its lease, so nobody has written its end
                await self._end_interrupted(active)
        except BoughError as error:
            await self._fail(active, error)
        if active.stopped == "hand_back":
            await self._hand_back(active.ending.id, active.ending.lease)

    async def _read_bounds(self, task: Task) -> tuple[SharedBound, ...]:
        """Return the bounds of the conversations above a task, as it was started under them."""
        if task.parent_id is None:
            return ()
        first = await self.store.look(lambda tables: read_first(tables, UUID(task.id)), small=True)
        return () if first is None else tuple(SharedBound.from_json(each) for each in first.bounds)

    def _obey(self, active: ActiveRun, stored: StoredEvent) -> None:
        """Obey what others say to the task, by whichever process: an interrupt, a cancellation, a take-over."""
        if stored.kind == "PauseRequested" and isinstance(event := stored.event, PauseRequested) and event.now:
            active.stop("interrupt", event.reason or "interrupted")
        elif stored.kind == "TaskChanged" and _ends(stored.event, active.claim.task.id):
            active.stop("fenced")

    async def _fail(self, active: ActiveRun, error: BoughError) -> None:
        """End a claim whose run could not write its own ending; one that did, or lost the claim, is left as it is."""
        if isinstance(error, Conflict) and error.code == "conflict" and active.stopped == "fenced":
            return
        with suppress(BoughError):  # the lease runs out, and another worker finds the task
            await self.store.change(lambda tables: active.ending.fail(tables, error))

    async def _end_interrupted(self, active: ActiveRun) -> None:
        """Cancel a task whose run was interrupted before it could say so itself; one that did is left as it is."""
        ending = active.ending

        def end(tables: Tables) -> None:
            row = find_current(tables, ending.id, ending.lease)
            if row is not None:
                said = Move(reason=ending.why_stopped or "interrupted")
                paused = StateChanged(changes={"status": "paused"}, reason=said.reason)
                tables.append(row.conversation_id, [paused], generation=ending.lease.generation)
                end_claim(tables, row, ending.lease, TaskState.CANCELLED, said)

        with suppress(BoughError):
            await self.store.change(end)

    async def _hand_back(self, id: UUID, lease: Lease) -> None:
        """Make a task that is still claimed here, but does not run, pending again; this counts as no attempt."""

        def hand_back(tables: Tables) -> None:
            row = find_current(tables, id, lease)
            if row is not None:
                said = Move(reason="handed back")
                give_job(tables, end_claim(tables, row, lease, TaskState.PENDING, said, counts=False), self.enqueue)

        with suppress(BoughError):  # the lease runs out, and another worker finds the task
            await self.store.change(hand_back)

    def note_stopped(self, stopped: Stopped) -> None:
        """End the run of a task that was stopped in the store, if it runs here."""
        if stopped.changed and (active := self.active.get(stopped.task.id)) is not None:
            active.stop("fenced")

    def stop_all(self, reason: StopReason, why: str = "") -> None:
        """Stop every run of this worker."""
        for active in list(self.active.values()):
            active.stop(reason, why)

    def _report(self, active: ActiveRun) -> None:
        work, task = active.work, active.claim.task
        if work is None or work.cancelled():
            return
        if (error := work.exception()) is not None:
            LOG.error("task %s: its worker failed: %s: %s", task.id, type(error).__name__, error)
        else:
            LOG.info("task %s: run over agent=%s", task.id, task.agent_name)


def _ends(event: Event, task_id: str) -> bool:
    """Whether somebody else has ended the task."""
    return isinstance(event, TaskChanged) and event.task_id == task_id and event.state in ("cancelled", "failed")


def require_relational(store: TaskStore) -> RelationalTaskStore:
    """Return the store as one whose tasks have logs.

    Raises:
        InvalidInput: It is a store of another kind: nothing could be run in it.
    """
    from bough.errors import InvalidInput

    if isinstance(store, RelationalTaskStore):
        return store
    raise InvalidInput(
        f"tasks of {type(store).__name__} cannot be run: they have no log",
        hint="use TaskStoreMemory, TaskStoreJson, TaskStoreSqlite or TaskStorePostgres",
    )
