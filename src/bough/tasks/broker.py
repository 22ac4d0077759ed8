"""The task broker: submits and watches tasks, and runs pending ones while it is entered.

Source: agentic_patterns (`TaskBroker`: submit, poll, wait, stream, cancel, cancel_all, notify, register_agents).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from bough.agents.spec import AgentSpec
from bough.conversation.log.ledger import USAGE
from bough.conversation.log.state import State
from bough.conversation.run.waiting.decision import CallDecision
from bough.errors import Conflict, Unavailable
from bough.events.model import Event, PauseRequested, TaskChanged, UserMessage
from bough.events.owner import owner as make_owner
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.execution.base import CodeExecutor
from bough.guard.budget import parse_budgets, record_budgets
from bough.settings import Settings
from bough.tasks.agents import PRIVATE, FindCredentials, FindHooks, register
from bough.tasks.answering import Replies, Reply, RunEvents
from bough.tasks.control import Stopped, TaskControl
from bough.tasks.delegation import BrokerDelegation
from bough.tasks.dispatch.dispatcher import Dispatcher, ServedQueues, choose_dispatcher
from bough.tasks.model import Task, TaskEvent, unknown_task
from bough.tasks.notify import Callback, TransitionWatch, Until, has_ended
from bough.tasks.state import STOPPED_STATES, TERMINAL_STATES, TaskState
from bough.tasks.store import DEFAULT_QUEUE, TaskStore
from bough.tasks.stores.backends import TaskStoreSqlite
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import find_row, parse_id
from bough.tasks.stores.submission import Admission, Submission, Submitted, submit
from bough.tasks.submitting import SubmissionRequest, Submitter, check_spelling, request_retry
from bough.tasks.view import SHOWN_KINDS, task_event
from bough.tasks.worker import ActiveRun, Worker, require_relational
from bough.types import Json

if TYPE_CHECKING:
    from pydantic_ai.models import Model


_LOG = logging.getLogger("bough.task")


class TaskBroker:
    """Coordinates the tasks of a store. Until it is entered, it submits, polls, cancels and answers, but runs no task.

    While entered, it runs the pending tasks of `queues`, of the agents registered with it, and those it submitted.
    On exit it cancels the tasks that it runs, and waits for them to end.

    Args:
        store: Memory, Json, SQLite or Postgres; None uses the event store of the settings.
        poll_interval: Ignored. Accepted for compatibility with agentic_patterns; the broker never polls.
        model: Used by agents that name no model; None uses the model of the settings.
        activity: Set whenever a task that this broker watches or runs ends or asks for input.
        dispatcher: None uses Procrastinate for a Postgres store, and dispatches in this process otherwise.
        queues: Queues whose tasks it runs while entered; `()` runs only tasks of its own agents and submissions.
        concurrency: How many tasks it runs at once.
        admit: Checked inside each submission without a parent, and before such a task starts.
        executor: See `Worker`.

    Raises:
        InvalidInput: The store's tasks have no log.
    """

    def __init__(
        self,
        store: TaskStore | None = None,
        poll_interval: float = 0.5,
        model: str | Model | None = None,
        activity: asyncio.Event | None = None,
        dispatcher: Dispatcher | None = None,
        *,
        settings: Settings | None = None,
        queues: Collection[str] = (DEFAULT_QUEUE,),
        concurrency: int = 16,
        admit: Admission | None = None,
        hooks: FindHooks | None = None,
        credentials: FindCredentials | None = None,
        executor: CodeExecutor | None = None,
    ) -> None:
        del poll_interval
        self.settings = settings or Settings.load()
        self.store = require_relational(store or TaskStoreSqlite(self.settings.store))
        self._owns_store = store is None
        self.model = model
        self.activity = activity or asyncio.Event()
        self.dispatcher = dispatcher or choose_dispatcher(self.store)
        self._queues = tuple(queues)
        self._concurrency = concurrency
        self._admit = admit
        if admit is not None:
            self.store.admission = admit
        self._agents: dict[str, AgentSpec] = {}
        self._watch = TransitionWatch(self.store)
        self.worker = Worker(
            self.store,
            model,
            agents=self._agents,
            settings=self.settings,
            enqueue=self.dispatcher.enqueue,
            withdraw=self.dispatcher.withdraw,
            hooks=hooks,
            credentials=credentials,
            executor=executor,
        )
        self._submitter = Submitter(
            self._agents,
            model,
            self.settings,
            hooks=hooks,
            cache=self.worker.blueprints,
            runs_here=self._runs_queue,
        )
        self._control = TaskControl(
            self.store, owner=self.worker.owner, withdraw=self.dispatcher.withdraw, on_stop=self._on_stopped
        )
        self.delegation = BrokerDelegation(self, self._agents)
        self.worker.delegation = self.delegation
        self._replies = Replies(self.store, self._agents, self.submit_run, self.dispatcher.enqueue, self.wake)
        self.worker.on_end.append(self._run_ended)
        self._stopping = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._is_closed = False

    async def __aenter__(self) -> TaskBroker:
        if self._running is not None:
            raise Conflict("the broker is already entered", hint="exit it first, or make another broker")
        await self.store.open()
        self._stopping, self._is_closed = asyncio.Event(), False
        self._running = asyncio.create_task(self._run(), name="task broker")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def is_entered(self) -> bool:
        """Whether the broker claims tasks: it is entered and its dispatcher has not ended."""
        return self._running is not None and not self._running.done()

    async def drain(self, seconds: float) -> None:
        """Stop claiming tasks and hand the running ones back. On return, each is pending again or has ended.

        Args:
            seconds: How long a run may take to reach the end of its step, before its tools are killed.
        """
        self._stopping.set()  # first, or the dispatcher would claim a new task for each one that is handed back
        for active in list(self.worker.active.values()):
            active.hand_back()
        if runs := self._list_runs():
            await asyncio.wait(runs, timeout=seconds)
        self.worker.stop_all("hand_back")
        if runs := self._list_runs():
            await asyncio.wait(runs)
        await self.aclose()

    async def aclose(self) -> None:
        """Stop claiming tasks, cancel the running ones and wait for them to end. Idempotent."""
        self._is_closed = True  # before the first await: a task submitted in between would never run here
        self._stopping.set()
        running, self._running = self._running, None
        while (running is not None and not running.done()) or self.worker.active:
            for task_id in list(self.worker.active):
                await self._control.cancel(UUID(task_id), "the broker was closed", only_running=True)
            waiting = {*self._list_runs(), *([] if running is None or running.done() else [running])}
            if waiting:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            # A finished run leaves `active` in its next step; without this yield the loop would cancel it again.
            await asyncio.sleep(0)
        await self.worker.aclose()  # after the runs, which use its MCP servers
        await self._watch.aclose()
        if self._owns_store:
            await self.store.aclose()

    def _list_runs(self) -> list[asyncio.Task[None]]:
        return [active.work for active in self.worker.active.values() if active.work is not None]

    async def _run(self) -> None:
        await self.dispatcher.run(
            self.worker,
            queues=ServedQueues(self._queues, self._agents),
            concurrency=self._concurrency,
            stopping=self._stopping,
        )

    def delegation_for(self, view: EventStore) -> BrokerDelegation:
        """Return the delegation for conversations that are read through a view of this broker's log."""
        return BrokerDelegation(self, self._agents, view)

    def register_agents(self, specs: Mapping[str, AgentSpec] | Iterable[AgentSpec]) -> None:
        """Register agents and their sub-agents, for submissions to this broker and tasks that it runs.

        Raises:
            InvalidInput: `specs` has something other than an `AgentSpec`.
        """
        register(self._agents, specs)
        self.dispatcher.wake()

    def forget_agents(self, names: Iterable[str]) -> None:
        """Unregister agents. Their unfinished tasks can no longer run in this process."""
        for name in names:
            self._agents.pop(name, None)  # in place: worker, submitter and delegation share this mapping

    # Names of agentic_patterns.

    async def submit(self, input: str, **metadata: Json) -> str:
        """Submit a task and return its id. Conversation, message, row and job are durable together.

        Args:
            input: What to do.
            metadata: `agent_name` (registered, or of `config.yaml`), or `system_prompt` and `config_name`;
                `idempotency_key` (the same key, the same task for ever), `id`, `priority`, `queue`, `not_before`,
                `deadline_seconds`, `max_attempts`, `parent`, `conversation` (run this one), `title`, `tags`,
                `workspace`, `limits`, `budget` (a `Budget`). Every other key is stored with the task unchanged.

        Raises:
            InvalidInput: A key has an invalid value or is misspelled, the input is empty, or the metadata is not JSON.
            Conflict: The key or id belongs to a task with another input, agent or conversation, or the conversation has
                a live task.
            NotFound: There is no such conversation.
        """
        check_spelling(metadata)
        submitted = await self._submit(SubmissionRequest(input=input, metadata=metadata))
        return submitted.row.task_id

    async def poll(self, task_id: str) -> Task:
        """Return the current state of a task, with its latest events.

        Raises:
            NotFound: There is no such task.
        """
        task = await self.store.get(task_id)
        if task is None:
            raise unknown_task(task_id)
        return task

    async def wait(self, task_id: str, timeout: float | None = None) -> Task:
        """Return a task once it has ended, or its current state after `timeout` seconds.

        Cancelling a wait does not affect the task. By then the callbacks for its final state have returned,
        except when a callback itself calls this.

        Raises:
            NotFound: There is no such task.
        """
        return await self.wait_until(task_id, has_ended, timeout)

    async def wait_until(self, task_id: str, until: Until, timeout: float | None = None) -> Task:
        """Return a task once `until` is true of it, or after `timeout` seconds. Raises: see `wait`."""
        id = parse_id(task_id)
        if id is None or not await self._watch.wait(id, until, timeout):
            raise unknown_task(task_id)
        return await self.poll(task_id)

    async def stream(self, task_id: str, after: int = 0) -> AsyncIterator[TaskEvent]:
        """Iterate over the events of a task with `seq > after`, then live ones, until it ends. Each comes once.

        Args:
            after: Seq of the last event that the caller has; 0 for all.

        Raises:
            NotFound: There is no such task.
        """
        async for event in stream_events(self.store, task_id, after):
            yield event

    async def cancel(self, task_id: str) -> Task:
        """Cancel a task and its open children, and return it. A task that has ended is returned unchanged.

        The task is CANCELLED when this returns; the log refuses whatever its worker still writes.

        Raises:
            NotFound: There is no such task.
        """
        id = parse_id(task_id)
        if id is None:
            raise unknown_task(task_id)
        return await self._control.cancel(id, "cancelled")

    async def cancel_all(self, *, owner: str | None = None) -> None:
        """Cancel every task that has not ended, pending ones included.

        Args:
            owner: Only tasks of this owner's conversations; None cancels all.
        """
        await self._control.cancel_all(owner)

    async def notify(self, task_id: str, states: Collection[TaskState], callback: Callback) -> None:
        """Call `callback(task)` once for each of `states`, in the order in which the task reaches them.

        For states already reached the calls are made before `notify` returns, unless a callback is the caller. One
        callback of a task runs at a time. An error that a callback raises is recorded in the task's log; the other
        callbacks are still called.

        Raises:
            NotFound: There is no such task.
        """
        id = parse_id(task_id)
        if id is None or not await self._watch.subscribe(id, states, callback):
            raise unknown_task(task_id)

    # Additions to agentic_patterns.

    async def run(
        self,
        conversation: UUID,
        message: str | UserMessage | None = None,
        *,
        message_id: UUID | None = None,
        activated: Sequence[Event] = (),
        by: str = "user",
        approve: Collection[str] = (),
        start: bool = True,
        join: bool = False,
        expected_head: int | None = None,
        state: State | None = None,
        **metadata: Json,
    ) -> str | None:
        """Run an existing conversation as a new task, and return the task's id.

        Args:
            message: Appended before the run; None continues without one. A message rejects the calls that wait.
            message_id: Id of the message event, if `message` is text.
            activated: Events that the message triggers, appended after it.
            by: Who decides on the waiting calls.
            approve: Ids of waiting calls that may run now.
            start: False records the message and approvals and runs nothing; returns the live task, or None.
            join: Add the message to a pending or running task instead of raising `Conflict`.
            expected_head: Raise `Conflict` unless the log has this many events.
            state: The fold of the log, if the caller has just read it. Not modified.
            metadata: As in `submit`.

        Raises:
            Conflict: A pending or running task runs the conversation, the head differs, or a call does not wait.
            NotFound: There is no such conversation.
        """
        return await self._replies.send(
            conversation,
            Reply(
                message=message, message_id=message_id, activated=tuple(activated), by=by, approve=tuple(approve),
                start=start, join=join, expected_head=expected_head, state=state, metadata=metadata,
            ),
        )  # fmt: skip

    async def provide_input(
        self,
        task_id: str,
        answer: Json | CallDecision,
        *,
        run: bool = True,
        by: str = "user",
        expected_head: int | None = None,
    ) -> Task:
        """Answer a task's question and return the task. Any worker may continue it once no call waits.

        Args:
            answer: For a question any JSON, or one of its choices if it has any. For an approval `True`, `False`, or
                `{"approve": [ids], "reject": [ids], "reason": "", "arguments": {id: {…}}}`. Or a `CallDecision`.
            run: False records the answer and runs nothing.
            by: Who answers.

        Raises:
            NotFound: There is no such task.
            Conflict: The task does not ask for input, or was answered already.
            InvalidInput: The answer is not one of the choices, or names calls that do not wait.
        """
        return await self._replies.answer(task_id, answer, run=run, by=by, expected_head=expected_head)

    async def retry(self, task_id: str, **metadata: Json) -> str:
        """Continue the conversation of a failed or cancelled task in a new task, and return its id.

        Model responses and results that the log has are reused, so no request is paid for twice.

        Raises:
            NotFound: There is no such task.
            Conflict: The task has not ended, or it completed.
        """
        request = request_retry(await self.poll(task_id), metadata)
        return (await self._submit(request)).row.task_id

    async def interrupt(self, conversation: UUID, *, by: str = "user", reason: str = "") -> None:
        """Stop the run of a conversation now, in whichever process. Its task is CANCELLED and can be resumed.

        Raises:
            NotFound: There is no such conversation.
        """
        await self._pause(conversation, PauseRequested(by=by, reason=reason or "interrupted", now=True))

    async def pause(self, conversation: UUID, *, by: str = "user", reason: str = "") -> None:
        """Ask the run of a conversation to stop at its next step. Raises: see `interrupt`."""
        await self._pause(conversation, PauseRequested(by=by, reason=reason or "paused"))

    def _runs_queue(self, queue: str) -> bool:
        """Whether this process runs the tasks of a queue."""
        return self._running is not None and (queue in self._queues or queue.startswith(PRIVATE))

    async def _submit(self, request: SubmissionRequest) -> Submitted:
        self.require_open()
        await self.store.open()
        submission = await self._submitter.prepare(request, worker=self.worker.owner)
        await record_budgets(self.store.log, parse_budgets(request.metadata.get("budget")))
        return await self.write(submission)

    async def submit_run(self, request: SubmissionRequest, events: RunEvents) -> str:
        """Submit a run of a conversation with the events around its message; return the task's id."""
        self.require_open()
        submission = await self._submitter.prepare(request, worker=self.worker.owner)
        return (await self.write(replace(submission, **events._asdict()))).row.task_id

    async def submit_child(self, request: SubmissionRequest, *, claim: bool) -> Submitted:
        """Submit a task that a conversation starts; `claim` claims it for this process. See `Delegation.start`."""
        submission = await self._submitter.prepare(request, worker=self.worker.owner)
        record = None if submission.record is None else replace(submission.record, owner=request.owner)
        return await self.write(replace(submission, record=record, claim_owner=make_owner() if claim else None))

    async def write(self, submission: Submission) -> Submitted:
        """Write a prepared submission; if this broker is entered, it also runs the task."""
        admit = self._admit if submission.parent is None else None

        def change(tables: Tables) -> Submitted:
            # Inside the transaction, so that concurrent submissions of one owner cannot all pass the same limit.
            if admit is not None:
                owner = submission.record.owner if submission.record else tables.get(submission.conversation).owner
                admit.check(tables, owner, submission.metadata)
            return submit(tables, submission, self.dispatcher.enqueue)

        side_tables = (*(() if admit is None else admit.side_tables), *(() if submission.check is None else (USAGE,)))
        submitted = await self.store.change(change, side_tables=side_tables)
        if submitted.is_new:
            _LOG.info(
                "task %s submitted agent=%s queue=%s", submitted.row.task_id, submitted.row.agent, submission.queue
            )
        self.wake(submitted.row.task_id, submitted.row.queue)  # after the commit, or the claim finds no row
        return submitted

    async def _pause(self, conversation: UUID, request: PauseRequested) -> None:
        if await self._control.pause(conversation, request) is not None:
            self._watch.look()

    def require_open(self) -> None:
        """Raise `Unavailable` if the broker is closed."""
        if self._is_closed:
            raise Unavailable("the broker is closed", hint="enter it again, or make another broker")

    def wake(self, task_id: str | None = None, queue: str | None = None) -> None:
        """Check for work and for transitions now. The task `task_id` runs in this process, whatever its queue."""
        if task_id is not None and self._running is not None:
            self.dispatcher.want(task_id, queue)
        else:
            self.dispatcher.wake()
        self._watch.look()

    def _run_ended(self, active: ActiveRun) -> None:
        self.activity.set()
        self._watch.look()
        if active.ending.woken is not None:
            self.wake(active.ending.woken)

    def _on_stopped(self, stopped: Stopped) -> None:
        self.worker.on_stopped(stopped)
        self._watch.look()
        if stopped.woken is not None:
            self.wake(stopped.woken)
        if stopped.task.state in STOPPED_STATES:
            self.activity.set()


async def stream_events(store: RelationalTaskStore, task_id: str, after: int) -> AsyncIterator[TaskEvent]:
    """Iterate over the events of a task with `seq > after`, then live ones, until the task ends.

    Raises:
        NotFound: There is no such task.
    """
    id = parse_id(task_id)
    row = None if id is None else await store.look(lambda tables: find_row(tables, id))
    if row is None:
        raise unknown_task(task_id)
    start = max(after, row.first - 1)
    if row.is_terminal and start >= row.last:
        return
    async for stored in store.log.subscribe(row.conversation_id, start):
        if stored.kind not in SHOWN_KINDS:
            continue
        event = task_event(stored, row.task_id)
        if event is not None and event.task_id == row.task_id:
            yield event
            if isinstance(stored.event, TaskChanged) and TaskState(stored.event.state) in TERMINAL_STATES:
                return
