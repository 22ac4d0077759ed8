"""Answers to tasks that ask for input, and messages to conversations that tasks run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, cast
from uuid import UUID

from bough.agents.spec import AgentSpec
from bough.conversation.log.journal import Journal
from bough.conversation.log.state import State
from bough.conversation.message import check_message
from bough.conversation.run.waiting.decision import CallDecision, decide, require_choice
from bough.errors import Conflict, InvalidInput
from bough.events.model import Event, StateChanged, UserMessage
from bough.events.side_tables import Tables
from bough.tasks.agents import name_recorded_queue
from bough.tasks.model import Task, no_input_required, unknown_task
from bough.tasks.outcome import describe_request
from bough.tasks.state import TaskState
from bough.tasks.store import DEFAULT_QUEUE
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import Enqueue, Move, TaskRow, find_live_row, give_job, move, read_task
from bough.tasks.stores.submission import live_conflict, require_row
from bough.tasks.submitting import SubmissionRequest, read_queue
from bough.types import Json, JsonObject


class RunEvents(NamedTuple):
    """The events that submitting a run appends to its conversation; fields of `Submission` of the same names."""

    opening: tuple[Event, ...]
    message: UserMessage | None
    activated: tuple[Event, ...]
    expected_head: int
    queue: str


SubmitRun: TypeAlias = Callable[[SubmissionRequest, RunEvents], Awaitable[str]]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A message or approvals for a conversation: see `TaskBroker.run`."""

    message: str | UserMessage | None = None
    message_id: UUID | None = None
    activated: tuple[Event, ...] = ()
    by: str = "user"
    approve: tuple[str, ...] = ()
    start: bool = True
    join: bool = False
    expected_head: int | None = None
    state: State | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Replies:
    """Takes answers and messages for tasks of one store.

    Args:
        agents: Registered specs by name.
        submit: Submits a run of a conversation with the events to append. Returns the task's id.
        enqueue: Delivers a task that becomes pending again.
        wake: Called with the id of a task that may run now.
    """

    def __init__(
        self,
        store: RelationalTaskStore,
        agents: Mapping[str, AgentSpec],
        submit: SubmitRun,
        enqueue: Enqueue,
        wake: Callable[[str], None],
    ) -> None:
        self._store = store
        self._agents = agents
        self._submit = submit
        self._enqueue = enqueue
        self._wake = wake

    async def answer(
        self, task_id: str, answer: Json | CallDecision, *, run: bool, by: str = "user", expected_head: int | None
    ) -> Task:
        """Answer a task that asks for input, or the child task that it waits for. See `TaskBroker.provide_input`."""
        while True:
            task = await self._store.get(task_id)
            if task is None:
                raise unknown_task(task_id)
            if task.state is not TaskState.INPUT_REQUIRED or task.conversation is None:
                raise no_input_required(task)
            state = await self._read_state(task.conversation, expected_head)
            request = describe_request(state)  # from the fold, not the row: some calls may be answered already
            if request.get("kind") == "task":
                child_task_id = await self._find_asking(state)
                if child_task_id is None:
                    raise no_input_required(task)
                return await self.answer(child_task_id, answer, run=run, by=by, expected_head=None)
            if isinstance(answer, CallDecision):
                decision = answer
            else:
                decision = replace(read_decision(state, request, answer), by=by)
            events, still_waiting = decide(state, decision)
            answering = Answering(
                UUID(task.id),
                events,
                still_waiting,
                state.head,
                run=run,
                approved=bool(decision.approve),
                enqueue=self._enqueue,
            )
            try:
                result = await self._store.change(answering.change)
            except Conflict:
                if expected_head is not None or (await self._read_state(task.conversation)).head == state.head:
                    raise
                continue  # another writer appended, so the call may no longer wait: decide again
            self._wake(task_id)
            return result

    async def _find_asking(self, state: State) -> str | None:
        """Return the id of the first task that the conversation waits for and that asks for input; None if missing."""
        for call in state.waiting.values():
            task = await self._store.get(str(call.get("task", "")))
            if task is not None and task.state is TaskState.INPUT_REQUIRED:
                return task.id
        return None

    async def send(self, conversation: UUID, reply: Reply) -> str | None:
        """Send a message or approvals to a conversation, and run it; see `TaskBroker.run`. Returns the task's id."""
        await self._store.open()
        state = reply.state or await self._read_state(conversation)
        while True:
            _require_head(state, reply.expected_head)
            # Before the `try`: a conflict with a running task is final, and reading the log again cannot solve it.
            needs_task = reply.start and await self._needs_task(conversation, reply)
            try:
                if needs_task:
                    return await self._submit_run(conversation, reply, state)
                task_id = await self._store.change(
                    lambda tables, state=state: self._record(tables, conversation, reply, state)
                )
            except Conflict:
                previous_head, state = state.head, await self._read_state(conversation)
                if state.head == previous_head:
                    raise  # the head is unchanged, so the conflict has another reason and a retry would loop for ever
                continue
            if task_id is not None:
                self._wake(task_id)
            return task_id

    async def _needs_task(self, conversation: UUID, reply: Reply) -> bool:
        """Whether a run of a conversation needs a new task, because no task of it is live.

        Raises:
            Conflict: A task is running, and the reply must not join it.
        """
        live = await self._store.look(lambda tables: find_live_row(tables, tables.number(conversation)), small=True)
        if live is None:
            return True
        if live.current is not TaskState.INPUT_REQUIRED and not reply.join:
            raise live_conflict(live)
        return False

    async def _submit_run(self, conversation: UUID, reply: Reply, state: State) -> str:
        """Submit a run of a conversation without a live task."""
        opening, _ = _decide_reply(reply, state)
        message = _make_message(reply)
        queue = name_recorded_queue(state.agent, self._agents) or read_queue(reply.metadata) or DEFAULT_QUEUE
        request = SubmissionRequest(
            input=None if message is None else message.plain, metadata={**reply.metadata, "conversation": conversation}
        )
        events = RunEvents(tuple(opening), message, reply.activated, state.head, queue)
        return await self._submit(request, events)

    def _record(self, tables: Tables, conversation: UUID, reply: Reply, state: State) -> str | None:
        """Append a reply to a conversation that has a live task or must not run. Returns the live task's id, if any."""
        message = _make_message(reply)
        events, still_waiting = _decide_reply(reply, state)
        events += [] if message is None else [message, *reply.activated]
        row = find_live_row(tables, tables.number(conversation))
        if row is None or row.current is not TaskState.INPUT_REQUIRED or still_waiting:
            if events:
                tables.append(conversation, events, expected_head=state.head)
            return None if row is None else row.task_id
        approved = bool(reply.approve) and reply.message is None
        finish_answer(tables, row, events, state.head, self._enqueue, run=reply.start, approved=approved)
        return row.task_id

    async def _read_state(self, conversation: UUID, expected_head: int | None = None) -> State:
        """Return the state of a conversation, from its whole log. Raises `Conflict` if the head differs."""
        journal = Journal(self._store.log, conversation)
        await journal.catch_up()
        _require_head(journal.state, expected_head)
        return journal.state


@dataclass(frozen=True)
class Answering:
    """A transaction that writes an answer, and makes the task pending once no call waits."""

    id: UUID
    events: list[Event]
    still_waiting: Mapping[str, JsonObject]
    head: int
    run: bool = field(kw_only=True)
    approved: bool = field(kw_only=True)
    enqueue: Enqueue = field(kw_only=True)

    def change(self, tables: Tables) -> Task:
        """Write the answer. Raises `Conflict` if the task no longer asks, or the log has moved on."""
        row = require_row(tables, self.id)
        if row.current is not TaskState.INPUT_REQUIRED:
            raise no_input_required(read_task(tables, row))
        if self.still_waiting:
            tables.append(row.conversation_id, self.events, expected_head=self.head)
            return read_task(tables, row)
        moved = finish_answer(tables, row, self.events, self.head, self.enqueue, run=self.run, approved=self.approved)
        return read_task(tables, moved)


def finish_answer(
    tables: Tables,
    row: TaskRow,
    events: list[Event],
    head: int | None,
    enqueue: Enqueue,
    *,
    run: bool,
    approved: bool,
) -> TaskRow:
    """Write the last answer that a task waits for. Makes it pending, or cancels it if nothing is to run."""
    if not run:
        paused = [StateChanged(changes={"status": "paused"})]
        details = Move(reason="paused" if approved else "rejected")
        return move(tables, row, TaskState.CANCELLED, details, events=[*events, *paused], expected_head=head)
    moved = move(tables, row, TaskState.PENDING, Move(reason="answered"), events=events, expected_head=head)
    return give_job(tables, moved, enqueue)


def read_decision(state: State, request: Mapping[str, Any], answer: Json) -> CallDecision:
    """Parse the answer to a task's request into a decision.

    Raises:
        InvalidInput: The answer is not one of the choices, or not a valid approval.
    """
    if request.get("kind") == "question":
        require_choice(request, answer)
        return CallDecision(answers={str(request["call"]): answer})
    calls = tuple(state.waiting)
    if answer is True:
        return CallDecision(approve=calls)
    if answer is False:
        return CallDecision(reject=calls)
    fields = {"approve", "reject", "reason", "arguments"}
    if not isinstance(answer, dict) or not set(cast("dict[str, Any]", answer)) <= fields:
        raise InvalidInput(
            "an approval must be True, False, or an object", hint='{"approve": [ids], "reject": [ids], "reason": "…"}'
        )
    decision = cast("dict[str, Any]", answer)
    return CallDecision(
        approve=tuple(decision.get("approve", ())),
        reject=tuple(decision.get("reject", ())),
        reason=str(decision.get("reason", "")),
        arguments=decision.get("arguments", {}),
    )


def _require_head(state: State, expected: int | None) -> None:
    if expected is not None and state.head != expected:
        raise Conflict(f"the log has {state.head} events, not {expected}", hint="read it again")


def _decide_reply(reply: Reply, state: State) -> tuple[list[Event], Mapping[str, JsonObject]]:
    """Return the events to append before the reply's message, and the calls that still wait."""
    message = _make_message(reply)
    rejected = tuple(id for id in state.waiting if id not in reply.approve) if message is not None else ()
    reason = message.plain if message is not None else ""
    return decide(state, CallDecision(approve=reply.approve, reject=rejected, reason=reason, by=reply.by))


def _make_message(reply: Reply) -> UserMessage | None:
    if reply.message is None:
        return None
    message = check_message(reply.message, sender="user")
    return message if reply.message_id is None else message.model_copy(update={"id": reply.message_id})
