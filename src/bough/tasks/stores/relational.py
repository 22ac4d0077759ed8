"""Task stores on side tables of an event store. Every method is one transaction of that store."""

from __future__ import annotations

import asyncio
import builtins
import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, Unpack
from uuid import UUID

from typing_extensions import override

from bough.agents.delegation_protocol import Spent
from bough.conversation.log.ledger import USAGE, follow_usage
from bough.effects import LostCall, make_effect_key
from bough.errors import Conflict, InvalidInput, Unavailable
from bough.events.model import (
    ConversationStarted,
    ModelResponded,
    TaskChanged,
    TaskNoted,
    ToolCalled,
    ToolInterrupted,
    Usage,
    UserMessage,
)
from bough.events.owner import owner as make_owner
from bough.events.record import ConversationRecord, StoredEvent, microseconds
from bough.events.side_tables import SideTables, Tables
from bough.events.store import EventStore
from bough.events.stores.base import parse_digits
from bough.tasks.model import MAX_EVENTS, EventType, Task, TaskEvent, unknown_task
from bough.tasks.state import TaskState
from bough.tasks.store import (
    DEFAULT_QUEUE,
    LEASE_SECONDS,
    Claim,
    EndFields,
    TaskFilter,
    TaskPage,
    TaskStore,
    TransitionFields,
)
from bough.tasks.stores.claims import claim_by_id, claim_next, find_next_row, take_lease
from bough.tasks.stores.endings import end_claim
from bough.tasks.stores.rows import (
    FORMAT,
    Move,
    TaskRow,
    find_row,
    move,
    parse_id,
    read_task,
)
from bough.tasks.stores.submission import Admission, require_row
from bough.tasks.stores.summary import TASKS
from bough.tasks.view import task_event
from bough.types import JsonObject

T = TypeVar("T")

_FIELDS = frozenset({"data", "code", "usage", "request", "reason"})
_TRIES = 5


class RelationalTaskStore(TaskStore):
    """Stores tasks in the database of an event store.

    Args:
        store: The event store. None or a URL is opened by the first call and closed by `aclose`.

    Attributes:
        admission: Holds back tasks of owners that run as many as allowed; None if owners have no bound.
    """

    admission: Admission | None = None

    def __init__(self, store: EventStore | str | None = None) -> None:
        self._given_log = store
        self._log: EventStore | None = None if store is None or isinstance(store, str) else store
        self._owner = make_owner()
        self._opening = asyncio.Lock()

    @property
    @override
    def log(self) -> EventStore:
        if self._log is None:
            raise Unavailable("the task store is not open yet", hint="await its `open`, or any other call, first")
        return self._log

    @override
    async def open(self) -> EventStore:
        if self._log is None:
            async with self._opening:  # concurrent first calls must not open two logs
                self._log = self._log or await self._open_log()
        follow_usage(self._log)
        return self._log

    async def aclose(self) -> None:
        """Close the log if it was opened here."""
        if self._log is not None and self._log is not self._given_log:
            log, self._log = self._log, None
            await log.aclose()

    @abstractmethod
    async def _open_log(self) -> EventStore:
        """Open the log at the given URL, or at the URL of the settings."""

    async def change(self, change: Callable[[Tables], T], *, side_tables: Collection[SideTables] = ()) -> T:
        """Run a change of rows and events in one transaction. Durable on return.

        A change that loses a race for a unique value, or for a row that was read before it was locked, runs again and
        reads the winner's rows.

        Raises:
            BoughError: Raised by the change; nothing is written.
        """
        log = await self.open()
        for _ in range(_TRIES):
            try:
                return await log.transaction((TASKS, *side_tables), change)
            except Conflict as conflict:
                if not conflict.details.keys() & {"not_unique", "moved_on"}:
                    raise
        return await log.transaction((TASKS, *side_tables), change)

    async def look(self, read: Callable[[Tables], T], *, small: bool = False) -> T:
        """Return the result of `read`, which sees one snapshot of rows and events.

        Args:
            small: Whether it reads only a few rows by their keys; see `EventStore.transaction`.
        """
        log = await self.open()
        return await log.transaction(TASKS, read, read_only=True, small=small)

    # Names of agentic_patterns.

    @override
    async def create(self, task: Task) -> Task:
        id = parse_id(task.id)
        if id is None:
            raise InvalidInput(
                f"{task.id!r} cannot be the id of a task", hint="leave it out, or give a UUID", details={"id": task.id}
            )
        return await self.change(lambda tables: _create(tables, id, task))

    @override
    async def get(self, task_id: str) -> Task | None:
        id = parse_id(task_id)
        return None if id is None else await self.look(lambda tables: _read_with_events(tables, id))

    @override
    async def update_state(
        self,
        task_id: str,
        state: TaskState,
        *,
        result: str | None = None,
        error: str | None = None,
        version: int | None = None,
        claim: Claim | None = None,
        ttl_seconds: float = LEASE_SECONDS,
        **fields: Unpack[TransitionFields],
    ) -> Task | None:
        id = parse_id(task_id)
        if id is None:
            return None
        not_before = fields.pop("not_before", None)
        details = Move(result=result, error=error, **_require_known(fields))
        wait = None if not_before is None else microseconds(not_before)

        def update(tables: Tables) -> Task | None:
            row = find_row(tables, id)
            if row is None:
                return None
            _require_version(row, version)
            moved = self._update(tables, row, TaskState(state), details, claim, ttl_seconds, wait)
            return read_task(tables, moved)

        return await self.change(update)

    def _update(
        self,
        tables: Tables,
        row: TaskRow,
        state: TaskState,
        details: Move,
        claim: Claim | None,
        ttl_seconds: float,
        not_before: int | None,
    ) -> TaskRow:
        generation = None if claim is None else claim.lease.generation
        attempts = row.attempts
        if state is TaskState.RUNNING and row.current is TaskState.PENDING:
            attempts += 1
            if claim is None:
                lease = take_lease(tables, row.conversation_id, self._owner, ttl_seconds)
                if lease is None:
                    raise Conflict(
                        "another process is running the task's conversation", hint="wait until that run has ended"
                    )
                generation, details = lease.generation, details._replace(worker=self._owner)
        return move(tables, row, state, details, generation=generation, attempts=attempts, not_before=not_before)

    @override
    async def list_by_state(self, state: TaskState) -> builtins.list[Task]:
        number, last_k = TaskState(state).number, 0
        tasks_in_state: builtins.list[Task] = []
        while True:
            tasks, last = await self.look(lambda tables, last_k=last_k: _read_state(tables, number, last_k))
            tasks_in_state += tasks
            if last is None:
                return tasks_in_state
            last_k = last

    @override
    async def next_pending(self) -> Task | None:

        def look(tables: Tables) -> Task | None:
            row = find_next_row(tables)
            return None if row is None else read_task(tables, row)

        return await self.look(look)

    @override
    async def add_event(self, task_id: str, event: TaskEvent) -> None:
        note = _make_note(task_id, event)
        id = parse_id(task_id)

        def add(tables: Tables) -> None:
            row = require_row(tables, id or UUID(int=0))
            tables.append(row.conversation_id, [note])

        await self.change(add)

    # Claims.

    @override
    async def claim(
        self,
        owner: str,
        queues: Collection[str] = (DEFAULT_QUEUE,),
        *,
        id: str | None = None,
        ttl_seconds: float = LEASE_SECONDS,
    ) -> Claim | None:
        side_tables = () if self.admission is None else self.admission.side_tables
        may_start = None if self.admission is None else self.admission.may_start
        if id is not None:
            parsed_id = parse_id(id)
            if parsed_id is None:
                return None
            claimed = await self.change(
                lambda tables: claim_by_id(tables, parsed_id, owner, ttl_seconds, may_start), side_tables=side_tables
            )
        else:
            claimed = await self.change(
                lambda tables: claim_next(tables, queues, owner, ttl_seconds, may_start), side_tables=side_tables
            )
        return None if claimed is None else Claim(claimed.task, claimed.lease, claimed.row.last)

    @override
    async def heartbeat(self, claim: Claim, ttl_seconds: float = LEASE_SECONDS) -> None:
        await (await self.open()).renew(claim.lease, ttl_seconds)

    @override
    async def release(self, claim: Claim, state: TaskState = TaskState.PENDING, **fields: Unpack[EndFields]) -> None:
        not_before = fields.pop("not_before", None)
        wait = None if not_before is None else microseconds(not_before)
        result, error = fields.pop("result", None), fields.pop("error", None)
        details = Move(result=result, error=error, **_require_known(fields))
        id = UUID(claim.task.id)

        def release(tables: Tables) -> None:
            row = require_row(tables, id)
            counts = state is not TaskState.PENDING
            end_claim(tables, row, claim.lease, state, details, not_before=wait, counts=counts)

        await self.change(release)

    # Reading and deleting.

    @override
    async def read_spent(self, conversation: UUID) -> Spent:
        log = await self.open()
        return await log.transaction((TASKS, USAGE), lambda tables: sum_spent(tables, conversation), read_only=True)

    @override
    async def list(self, filter: TaskFilter | None = None, cursor: str | None = None, limit: int = 50) -> TaskPage:
        chosen = filter or TaskFilter()
        before_k = _parse_cursor(cursor)
        if not 1 <= limit <= 1000:
            raise InvalidInput(f"a page cannot have {limit} tasks", hint="give a number from 1 to 1,000")
        return await self.look(lambda tables: _read_page(tables, chosen, before_k, limit))

    async def resolve(self, name: str) -> str:
        """Return the id of the task named by an id, its first or last 4 or more digits, or `-` for the latest.

        Raises:
            NotFound: No task matches.
            InvalidInput: The name is invalid, or several tasks match.
        """
        digits = "" if name.strip() == "-" else parse_digits(name)

        def find(tables: Tables) -> builtins.list[UUID]:
            rows = tables.run("task.named", digits=digits) if digits else tables.run("task.latest")
            return [UUID(bytes=row[0]) for row in rows]

        ids = await self.look(find)
        if not ids:
            raise unknown_task(name)
        if len(ids) > 1:
            suffixes = ", ".join(id.hex[-8:] for id in ids)
            raise InvalidInput(f"{name!r} matches several tasks", hint=f"give more digits: {suffixes}")
        return str(ids[0])

    async def count_by_state(self) -> dict[TaskState, int]:
        """Return the number of tasks in each state, omitting states without tasks. O(tasks)."""
        rows = await self.look(lambda tables: tables.run("task.counts"))
        return {TaskState.from_number(state): count for state, count in rows}

    @override
    async def delete(self, task_id: str) -> None:
        id = parse_id(task_id) or UUID(int=0)

        def delete(tables: Tables) -> None:
            row = require_row(tables, id)
            if not row.is_terminal:
                raise Conflict(
                    f"task {task_id} is {row.current.value}", hint="cancel it first", details={"task": task_id}
                )
            if row.conversation == row.id:
                tables.delete(row.conversation_id)
            else:
                tables.run("task.forget", k=row.k)

        await self.change(delete)


def _create(tables: Tables, id: UUID, task: Task) -> Task:
    if find_row(tables, id) is not None:
        raise Conflict(f"a task has the id {id} already", hint="use another id", details={"task": str(id)})
    started = ConversationStarted(title=None)
    message = [UserMessage.text(task.input)] if task.input else []
    changed = TaskChanged(
        task_id=str(id),
        state=task.state.value,
        attempt=task.attempts,
        metadata=task.metadata,
        agent=task.agent_name,
        message=1 if message else None,
        **_list_set_fields(task),
    )
    notes = [_make_note(task.id, event) for event in task.events if event.event_type is not EventType.STATE_CHANGE]
    created = task.created_at
    record = ConversationRecord(
        id=id, root=id, config={"agent": task.agent_name} if task.agent_name else {}, created=created, updated=created
    )
    tables.create(record, events=[started, *message, changed, *notes])
    first = 1 + len(message)
    parent = None if task.parent_id is None else parse_id(task.parent_id)
    tables.run(
        "task.insert", id=id, cid=tables.number(id), format=FORMAT, state=task.state.number, version=task.version,
        attempts=task.attempts, max_attempts=task.max_attempts, priority=task.priority, queue=task.queue,
        not_before=None if task.not_before is None else microseconds(task.not_before),
        deadline=None if task.deadline is None else microseconds(task.deadline), first=first, last=first,
        parent=None if parent is None else tables.number(parent), call=None, under=None, key=task.idempotency_key,
        agent=task.agent_name, job=None,
    )  # fmt: skip
    return read_task(tables, require_row(tables, id))


def _list_set_fields(task: Task) -> dict[str, Any]:
    fields = ("result", "error", "data", "code", "request")
    values = {name: getattr(task, name) for name in fields if getattr(task, name) is not None}
    return values | ({"usage": task.usage} if task.usage.requests else {})


def _read_with_events(tables: Tables, id: UUID) -> Task | None:
    """Return a task with its latest events. Events after its end are included only if they are notes about it."""
    row = find_row(tables, id)
    if row is None:
        return None
    task = read_task(tables, row)
    rows = tables.run("task.events", cid=row.cid, first=row.first, limit=MAX_EVENTS)
    log = [*StoredEvent.of_rows(rows)][::-1]  # pyright: ignore[reportArgumentType]
    events = [task_event(stored, row.task_id) for stored in log]
    task.events = [event for event in events if event is not None and belongs(event, row)]
    task.interrupted_calls = find_interrupted_calls(log, row)
    return task


def find_interrupted_calls(log: Sequence[StoredEvent], row: TaskRow) -> list[LostCall]:
    """Return the calls that had started and whose result was lost, from the events of the task's conversation."""
    calls: dict[str, LostCall] = {}
    interrupted: list[LostCall] = []
    response: int | None = None
    for stored in log:
        if row.is_terminal and stored.seq > row.last:
            break
        match event := stored.event:
            case ModelResponded():
                response = stored.seq
            case ToolCalled() if response is not None:
                key = make_effect_key(row.conversation_id, response, event.tool_call_id)
                calls[event.tool_call_id] = LostCall(
                    id=event.tool_call_id, tool=event.tool, arguments=event.arguments, effect_key=key
                )
            case ToolInterrupted() if event.tool_call_id in calls:
                interrupted.append(calls.pop(event.tool_call_id))
            case _:
                pass
    return interrupted


def belongs(event: TaskEvent, row: TaskRow) -> bool:
    """Whether an event belongs to the task: an event up to its end, or a later note about it."""
    if event.task_id != row.task_id:
        return False
    return not row.is_terminal or event.seq <= row.last or event.event_type is not EventType.STATE_CHANGE


def _read_state(tables: Tables, state: int, after_k: int, limit: int = 500) -> tuple[list[Task], int | None]:
    rows = [TaskRow(*row) for row in tables.run("task.rows_in_state", state=state, after=after_k, limit=limit)]
    return [read_task(tables, row) for row in rows], rows[-1].k if len(rows) == limit else None


def _read_page(tables: Tables, filter: TaskFilter, before_k: int | None, limit: int) -> TaskPage:
    states = json.dumps(sorted(state.number for state in filter.states)) if filter.states else None
    rows = tables.run(
        "task.page", before=before_k, states=states, agent=filter.agent, queue=filter.queue, parent=filter.parent,
        conversation=filter.conversation, root=filter.root, owner=filter.owner, unowned=filter.unowned,
        limit=limit + 1,
    )  # fmt: skip
    task_rows = [TaskRow(*row) for row in rows]
    cursor = str(task_rows[limit - 1].k) if len(task_rows) > limit else None
    return TaskPage(items=[read_task(tables, row) for row in task_rows[:limit]], next_cursor=cursor)


def sum_spent(tables: Tables, conversation: UUID) -> Spent:
    """Return the usage of a conversation and its descendants. Needs the tables `TASKS` and `USAGE`."""
    row = tables.one("task.spent", cid=tables.number(conversation))
    if row is None:
        return Spent(Usage(requests=0), 0)
    tasks, requests, input_tokens, output_tokens, cache_read, cache_write, cost, unpriced = row
    has_price = not unpriced or bool(cost)
    # The cost is None, not 0, if no price is known for any of the tokens.
    usage = Usage(
        requests=requests or 0,
        input_tokens=input_tokens or 0,
        output_tokens=output_tokens or 0,
        cache_read_tokens=cache_read or 0,
        cache_write_tokens=cache_write or 0,
        cost_usd=(cost or 0.0) if has_price and (cost or input_tokens) else None,
    )
    return Spent(usage, tasks)


def _parse_cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not cursor.isdecimal() or len(cursor) > 18:
        raise InvalidInput(
            f"{cursor!r} is not a cursor of a page of tasks", hint="give the next_cursor of the previous page"
        )
    return int(cursor)


def _make_note(task_id: str, event: TaskEvent) -> TaskNoted:
    if event.event_type is EventType.STATE_CHANGE:
        raise InvalidInput("a STATE_CHANGE cannot be added", hint="each transition writes its own: use update_state")
    payload: JsonObject = dict(event.payload)
    name = payload.pop("name", "")
    if not isinstance(name, str):
        payload["name"], name = name, ""
    return TaskNoted(task_id=task_id, event_type=event.event_type.value, name=name, data=payload, ts=event.timestamp)


def _require_known(fields: TransitionFields) -> dict[str, Any]:
    """Return the fields of a transition. Raises `InvalidInput` if one is unknown."""
    unknown = sorted(set(fields) - _FIELDS)
    if unknown:
        raise InvalidInput(
            f"a transition cannot change {', '.join(unknown)}",
            hint=f"it takes result, error, {', '.join(sorted(_FIELDS))} and not_before",
        )
    return dict(fields)


def _require_version(row: TaskRow, version: int | None) -> None:
    if version is not None and version != row.version:
        raise Conflict(
            f"task {row.task_id} has version {row.version}, not {version}",
            hint="read it again",
            details={"task": row.task_id, "version": row.version},
        )
