"""Answers to tasks that ask, and messages to conversations that tasks run."""

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
from bough.events.beside import Tables
from bough.events.model import Event, StateChanged, UserMessage
from bough.tasks.agents import queue_of_recorded
from bough.tasks.faults import asks_nothing, unknown_task
from bough.tasks.model import Task
from bough.tasks.outcome import describe_request
from bough.tasks.state import TaskState
from bough.tasks.store import DEFAULT_QUEUE
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import Enqueue, Move, TaskRow, find_live_row, give_job, move, read_task
from bough.tasks.stores.submission import live_conflict, require_row
from bough.tasks.submitting import SubmissionRequest, read_queue
from bough.types import Json, JsonObject


class RunEvents(NamedTuple):
    """What the submission of a run appends to its conversation; names of `Submission`'s fields."""

    opening: tuple[Event, ...]
    message: UserMessage | None
    activated: tuple[Event, ...]
    expected_head: int
    queue: str


SubmitRun: TypeAlias = Callable[[SubmissionRequest, RunEvents], Awaitable[str]]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a person says to a conversation: see `TaskBroker.run`."""

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
        submit: Submits a run of a conversation: what to submit, and what is appended. Returns the task's id.
        enqueue: Has a task delivered that becomes pending again.
        wake: Told of a task that may run now.
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
        """Answer what a task asks. See `TaskBroker.provide_input`."""
        while True:
            task = await self._store.get(task_id)
            if task is None:
                raise unknown_task(task_id)
            if task.state is not TaskState.INPUT_REQUIRED or task.conversation is None:
                raise asks_nothing(task)
            state = await self._fold(task.conversation, expected_head)
            request = describe_request(state)  # what waits still: some may be answered already
            if request.get("kind") == "task":
                below = await self._find_asking(state)
                if below is None:
                    raise asks_nothing(task)
                return await self.answer(below, answer, run=run, by=by, expected_head=None)
            if isinstance(answer, CallDecision):
                decision = answer
            else:
                decision = replace(read_decision(state, request, answer), by=by)
            events, left = decide(state, decision)
            answering = Answering(
                UUID(task.id), events, left, state.head, run=run, approved=bool(decision.approve), enqueue=self._enqueue
            )
            try:
                result = await self._store.change(answering.change)
            except Conflict:
                if expected_head is not None or (await self._fold(task.conversation)).head == state.head:
                    raise
                continue  # somebody appended meanwhile: look again at what still waits
            self._wake(task_id)
            return result

    async def _find_asking(self, state: State) -> str | None:
        """Return the task of a sub-agent that a conversation waits for and that asks; None where none does."""
        for call in state.waiting.values():
            task = await self._store.get(str(call.get("task", "")))
            if task is not None and task.state is TaskState.INPUT_REQUIRED:
                return task.id
        return None

    async def say(self, conversation: UUID, said: Reply) -> str | None:
        """Say something to a conversation, and run it. See `TaskBroker.run`."""
        await self._store.open()
        state = said.state or await self._fold(conversation)
        while True:
            _require_head(state, said.expected_head)
            live = await self._store.look(lambda tables: find_live_row(tables, tables.number(conversation)), small=True)
            asks = live is None or live.current is TaskState.INPUT_REQUIRED
            if live is not None and not asks and said.start and not said.join:
                raise live_conflict(live)
            try:
                if live is None and said.start:
                    return await self._submit_run(conversation, said, state)
                found = await self._store.change(
                    lambda tables, state=state: self._record(tables, conversation, said, state)
                )
            except Conflict:
                tried, state = state.head, await self._fold(conversation)
                if state.head == tried:
                    raise  # nobody appended meanwhile: it is refused for another reason
                continue
            if found is not None:
                self._wake(found)
            return found

    async def _submit_run(self, conversation: UUID, said: Reply, state: State) -> str:
        """Submit a run of a conversation that has no live task."""
        opening, _ = _decide(said, state)
        message = _message(said)
        queue = queue_of_recorded(state.agent, self._agents) or read_queue(said.metadata) or DEFAULT_QUEUE
        asked = SubmissionRequest(
            input=None if message is None else message.plain, metadata={**said.metadata, "conversation": conversation}
        )
        events = RunEvents(tuple(opening), message, said.activated, state.head, queue)
        return await self._submit(asked, events)

    def _record(self, tables: Tables, conversation: UUID, said: Reply, state: State) -> str | None:
        """Record what was said to a conversation whose task is live, or that is not to be run."""
        message = _message(said)
        events, left = _decide(said, state)
        events += [] if message is None else [message, *said.activated]
        row = find_live_row(tables, tables.number(conversation))
        if row is None or row.current is not TaskState.INPUT_REQUIRED or left:
            if events:
                tables.append(conversation, events, expected_head=state.head)
            return None if row is None else row.task_id
        approved = bool(said.approve) and said.message is None
        settle_answered(tables, row, events, state.head, self._enqueue, run=said.start, approved=approved)
        return row.task_id

    async def _fold(self, conversation: UUID, expected_head: int | None = None) -> State:
        journal = Journal(self._store.log, conversation)
        await journal.catch_up()
        _require_head(journal.state, expected_head)
        return journal.state


@dataclass(frozen=True)
class Answering:
    """The change that writes an answer, and wakes the task once nothing waits any more."""

    id: UUID
    events: list[Event]
    left: Mapping[str, JsonObject]
    head: int
    run: bool = field(kw_only=True)
    approved: bool = field(kw_only=True)
    enqueue: Enqueue = field(kw_only=True)

    def change(self, tables: Tables) -> Task:
        """Write it. Raises `Conflict` where the task asks nothing any more, or the log has moved on."""
        row = require_row(tables, self.id)
        if row.current is not TaskState.INPUT_REQUIRED:
            raise asks_nothing(read_task(tables, row))
        if self.left:
            tables.append(row.conversation_id, self.events, expected_head=self.head)
            return read_task(tables, row)
        moved = settle_answered(tables, row, self.events, self.head, self.enqueue, run=self.run, approved=self.approved)
        return read_task(tables, moved)


def settle_answered(
    tables: Tables,
    row: TaskRow,
    events: list[Event],
    head: int | None,
    enqueue: Enqueue,
    *,
    run: bool,
    approved: bool,
) -> TaskRow:
    """Write the last answer that a task waits for: it is pending then, or over where nothing is to run."""
    if not run:
        paused = [StateChanged(changes={"status": "paused"})]
        said = Move(reason="paused" if approved else "rejected")
        return move(tables, row, TaskState.CANCELLED, said, events=[*events, *paused], expected_head=head)
    moved = move(tables, row, TaskState.PENDING, Move(reason="answered"), events=events, expected_head=head)
    return give_job(tables, moved, enqueue)


def read_decision(state: State, request: Mapping[str, Any], answer: Json) -> CallDecision:
    """Return what an answer decides.

    Raises:
        InvalidInput: It is none of the choices, or of no form that an approval takes.
    """
    if request.get("kind") == "question":
        require_choice(request, answer)
        return CallDecision(answers={str(request["call"]): answer})
    calls = tuple(state.waiting)
    if answer is True:
        return CallDecision(approve=calls)
    if answer is False:
        return CallDecision(reject=calls)
    known = {"approve", "reject", "reason", "arguments"}
    if not isinstance(answer, dict) or not set(cast("dict[str, Any]", answer)) <= known:
        raise InvalidInput(
            "an approval is True, False, or an object", hint='{"approve": [ids], "reject": [ids], "reason": "…"}'
        )
    given = cast("dict[str, Any]", answer)
    return CallDecision(
        approve=tuple(given.get("approve", ())),
        reject=tuple(given.get("reject", ())),
        reason=str(given.get("reason", "")),
        arguments=given.get("arguments", {}),
    )


def _require_head(state: State, expected: int | None) -> None:
    if expected is not None and state.head != expected:
        raise Conflict(f"the log has {state.head} events, not {expected}", hint="read it again")


def _decide(said: Reply, state: State) -> tuple[list[Event], Mapping[str, JsonObject]]:
    """Return what is appended before the message that was said, and the calls that keep waiting."""
    message = _message(said)
    rejected = tuple(id for id in state.waiting if id not in said.approve) if message is not None else ()
    reason = message.plain if message is not None else ""
    return decide(state, CallDecision(approve=said.approve, reject=rejected, reason=reason, by=said.by))


def _message(said: Reply) -> UserMessage | None:
    if said.message is None:
        return None
    message = check_message(said.message, sender="user")
    return message if said.message_id is None else message.model_copy(update={"id": said.message_id})
