"""Read and change rows of tasks inside a transaction of the event store.

The functions are called by changes that `EventStore.transaction` may run again, so they depend on nothing but their
arguments. A change locks the conversations that it touches before it writes their task rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from bough.conversation.log.state import add_usage
from bough.errors import InvalidTransition, StoreError
from bough.events.model import Event, StateChanged, TaskChanged, TaskEnded, Usage, UserMessage
from bough.events.record import StoredEvent, moment
from bough.events.side_tables import Tables
from bough.tasks.model import Task
from bough.tasks.state import TERMINAL_STATES, TaskState, require_transition
from bough.types import JsonObject

FORMAT = 1
"""Format of the rows that this version writes. Rows of a newer format are run by newer workers only."""

MAX_RESULT_BYTES = 1 << 20
"""Maximum size of a result or an error in a task event. The conversation's log has the full text."""


Enqueue: TypeAlias = Callable[[Tables, Task], int | None]
"""Enqueues a task inside the transaction; returns the engine's job, None without an engine."""

_WAITING = "waiting_for_confirmation"
"""Status of a conversation with a waiting call."""


class TaskRow(NamedTuple):
    """A row of the table `task`, joined with conversation ids. Times are microseconds since 1970.

    Attributes:
        k: Primary key, in order of creation.
        conversation: The 16 bytes of the id of `cid`.
        first: Seq of the first transition, the submission. `last` is the seq of the latest one.
        parent: Number of the conversation that started the task. `parent_id` is its id.
        call: The parent's tool call that started the task.
        under: `k` of the parent's task whose run started this one.
        job: The engine's job that delivers the task.
    """

    k: int
    id: bytes
    cid: int
    conversation: bytes
    format: int
    state: int
    version: int
    attempts: int
    max_attempts: int
    priority: int
    queue: str
    not_before: int | None
    deadline: int | None
    first: int
    last: int
    parent: int | None
    parent_id: bytes | None
    call: str | None
    under: int | None
    key: str | None
    agent: str | None
    job: int | None

    @property
    def task_id(self) -> str:
        """The task's id as text."""
        return str(UUID(bytes=self.id))

    @property
    def conversation_id(self) -> UUID:
        """The id of the conversation that the task runs."""
        return UUID(bytes=self.conversation)

    @property
    def current(self) -> TaskState:
        """The state of the task."""
        return TaskState.from_number(self.state)

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended."""
        return self.current in TERMINAL_STATES


class Move(NamedTuple):
    """Details of a transition besides its state, each a field of `TaskChanged`."""

    worker: str | None = None
    result: str | None = None
    data: Any = None
    error: str | None = None
    code: str | None = None
    usage: Usage | None = None
    request: Mapping[str, Any] | None = None
    reason: str | None = None


NOTHING = Move()


def parse_id(task_id: str) -> UUID | None:
    """Return the id of a task; None unless it is a UUID in a usual form, safe in paths and queries."""
    try:
        id = UUID(task_id)
    except (ValueError, AttributeError, TypeError):
        return None
    return id if str(id) == task_id.lower() or id.hex == task_id.lower() else None


def find_row(tables: Tables, id: UUID) -> TaskRow | None:
    """Return the row of a task; None if missing."""
    row = tables.one("task.row", id=id)
    return None if row is None else TaskRow(*row)


def find_row_by_key(tables: Tables, key: str) -> TaskRow | None:
    """Return the row of the task with an idempotency key; None if missing."""
    row = tables.one("task.row_of_key", key=key)
    return None if row is None else TaskRow(*row)


def find_live_row(tables: Tables, cid: int) -> TaskRow | None:
    """Return the row of the unfinished task of a conversation; None if missing."""
    row = tables.one("task.row_live", cid=cid)
    return None if row is None else TaskRow(*row)


def find_latest_row(tables: Tables, cid: int) -> TaskRow | None:
    """Return the row of the latest task of a conversation, ended or not; None if missing."""
    row = tables.one("task.row_latest", cid=cid)
    return None if row is None else TaskRow(*row)


def read_task(tables: Tables, row: TaskRow) -> Task:
    """Return the task of a row, without its events. Reads three events: first and latest transition, and message.

    Raises:
        StoreError: The log lacks an event that the row refers to.
    """
    changes = _read_events(tables, row.cid, {row.first, row.last})
    first, last = changes.get(row.first), changes.get(row.last)
    if first is None or last is None:
        raise _make_missing_error(row)
    return build_task(row, first, last, read_message(tables, row, first))


def read_first(tables: Tables, id: UUID) -> TaskChanged | None:
    """Return the transition that submitted a task; None if the task does not exist."""
    row = find_row(tables, id)
    event = None if row is None else _read_events(tables, row.cid, {row.first})[row.first].event
    return event if isinstance(event, TaskChanged) else None


def build_task(row: TaskRow, first: StoredEvent, last: StoredEvent, message: UserMessage | None) -> Task:
    """Build the task of a row from its first and latest transition and its message."""
    submitted, latest = first.event, last.event
    if not isinstance(submitted, TaskChanged) or not isinstance(latest, TaskChanged):
        raise _make_missing_error(row)
    return Task(
        id=row.task_id,
        state=row.current,
        input="" if message is None else message.plain,
        result=latest.result,
        error=latest.error,
        metadata=dict(submitted.metadata or {}),
        created_at=first.ts,
        updated_at=last.ts,
        data=latest.data,
        code=latest.code,
        usage=latest.usage or Usage(requests=0),
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        priority=row.priority,
        queue=row.queue,
        parent_id=None if row.parent_id is None else str(UUID(bytes=row.parent_id)),
        agent_name=row.agent,
        idempotency_key=row.key,
        conversation=row.conversation_id,
        not_before=None if row.not_before is None else moment(row.not_before),
        deadline=None if row.deadline is None else moment(row.deadline),
        request=latest.request,
        version=row.version,
    )


def move(
    tables: Tables,
    row: TaskRow,
    to: TaskState,
    details: Move = NOTHING,
    *,
    events: Sequence[Event] = (),
    generation: int | None = None,
    expected_head: int | None = None,
    attempts: int | None = None,
    not_before: int | None = None,
    job: int | None = None,
    enqueue: Enqueue | None = None,
) -> TaskRow:
    """Make a transition: append its STATE_CHANGE and update the row by compare-and-set. Returns the new row.

    A transition that ends the task records its usage, summed from the log unless `details` has it. If a conversation
    started the task, its end is also appended to that conversation's log, in the same transaction, and the call that
    waits for the task continues.

    Args:
        events: Appended to the task's conversation before the transition.
        generation: Of the claim under which the transition is made.
        job: The engine's job, for a task that becomes pending again.
        enqueue: Delivers a parent that waited for this task; None without an engine.

    Raises:
        InvalidTransition: `TRANSITIONS` does not allow it, or the row has changed meanwhile.
        Conflict: The lease was lost, or the head differs.
    """
    require_transition(row.task_id, row.current, to)
    attempt = row.attempts if attempts is None else attempts
    if to in TERMINAL_STATES and details.usage is None:
        details = details._replace(usage=sum_usage(tables, row))
    result, result_bytes = cut_text(details.result)
    error, _ = cut_text(details.error)
    fields: dict[str, Any] = details._asdict() | {"result": result, "error": error}
    changed = TaskChanged(
        task_id=row.task_id,
        state=to.value,
        attempt=attempt,
        result_bytes=result_bytes,
        **{name: value for name, value in fields.items() if value is not None},
    )
    if to in TERMINAL_STATES and row.parent_id is not None:
        _notify_parent(tables, row, changed, enqueue)
    # Before the row: every change locks a conversation before its task row, or two changes could deadlock.
    head = tables.append(row.conversation_id, [*events, changed], generation=generation, expected_head=expected_head)
    moved = tables.run(
        "task.move", k=row.k, was=row.state, version=row.version, state=to.number, attempts=attempt,
        not_before=not_before, last=head - 1, job=job,
    )  # fmt: skip
    if not moved:  # raising rolls the append back, so that the log never has a transition that the row lacks
        raise InvalidTransition(
            f"task {row.task_id} was changed by another process",
            hint="read it again",
            details={"task": row.task_id, "from": row.current.value, "to": to.value, "moved_on": True},
        )
    return row._replace(
        state=to.number, version=row.version + 1, attempts=attempt, not_before=not_before, last=head - 1, job=job
    )


def sum_usage(tables: Tables, row: TaskRow) -> Usage:
    """Return the usage of a task since its submission, including unfinished children. O(requests)."""
    usage = Usage(requests=0)
    for stored in StoredEvent.of_rows(tables.run("task.spending", cid=row.cid, first=row.first)):  # pyright: ignore[reportArgumentType]
        event: Any = stored.event
        usage = add_usage(usage, event.usage or Usage(requests=0))
    for child in tables.run("task.rows_under", k=row.k):
        usage = add_usage(usage, sum_usage(tables, TaskRow(*child)))
    return usage


def give_job(tables: Tables, row: TaskRow, enqueue: Enqueue | None) -> TaskRow:
    """Enqueue a pending task if an engine delivers tasks; return the updated row."""
    job = None if enqueue is None else enqueue(tables, read_task(tables, row))
    if job is None:
        return row
    tables.run("task.set_job", k=row.k, job=job)
    return row._replace(job=job)


def cut_text(text: str | None) -> tuple[str | None, int | None]:
    """Return the text, and its size in bytes if it had to be cut: to its start and end, 1 MiB together."""
    if text is None or len(text) * 4 <= MAX_RESULT_BYTES:
        return text, None
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_RESULT_BYTES:
        return text, None
    half = MAX_RESULT_BYTES // 2 - 64
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[… {len(data) - 2 * half} bytes left out …]\n{tail}", len(data)


def _notify_parent(tables: Tables, row: TaskRow, changed: TaskChanged, enqueue: Enqueue | None) -> None:
    """Append the end of a task to the parent's log, and release the call that waits for it.

    The call runs again and finds the task that it started. Does nothing if the parent was deleted.
    """
    if row.parent is None or row.parent_id is None or not tables.run("task.is_living", cid=row.parent):
        return
    ended = TaskEnded(
        task_id=row.task_id,
        state=changed.state,
        result=changed.result,
        result_bytes=changed.result_bytes,
        data=changed.data,
        error=changed.error,
        code=changed.code,
        usage=changed.usage,
    )
    parent = UUID(bytes=row.parent_id)
    waiting = read_waiting(tables, parent, row.parent)
    # The conversation may also wait for other tasks or approvals; only the call that waits for this task is released.
    still_waiting = {id: call for id, call in waiting.items() if call.get("task") != row.task_id}
    if len(still_waiting) == len(waiting):
        tables.append(parent, [ended])
        return
    changes: JsonObject = {"status": _WAITING if still_waiting else "idle", "waiting": still_waiting}
    events = [ended, StateChanged(changes=changes, reason="its task ended")]
    live = find_live_row(tables, row.parent)
    if still_waiting or live is None or live.current is not TaskState.INPUT_REQUIRED:
        tables.append(parent, events)
        return
    woken = move(tables, live, TaskState.PENDING, Move(reason="its task ended"), events=events)
    give_job(tables, woken, enqueue)


def read_waiting(tables: Tables, conversation: UUID, cid: int) -> dict[str, JsonObject]:
    """Return the waiting calls of a conversation by id, from its latest `StateChanged` that has them.

    Reads only the conversation's row if no call waits; else also its latest `StateChanged` events, at most 8.
    """
    if tables.get(conversation).status != _WAITING:
        return {}
    rows = tables.run("task.state_changes", cid=cid)
    for stored in StoredEvent.of_rows(rows):  # pyright: ignore[reportArgumentType]
        event = stored.event
        if isinstance(event, StateChanged) and not event.changes.keys().isdisjoint(("waiting", "status")):
            return dict(event.changes.get("waiting", {}))
    return {}


def read_message(tables: Tables, row: TaskRow, first: StoredEvent) -> UserMessage | None:
    """Return the message that a task was submitted with; None if it has none."""
    event = first.event
    seq = event.message if isinstance(event, TaskChanged) else None
    if seq is None:
        return None
    stored = _read_events(tables, row.cid, {seq}).get(seq)
    return stored.event if stored is not None and isinstance(stored.event, UserMessage) else None


def _read_events(tables: Tables, cid: int, seqs: set[int]) -> dict[int, StoredEvent]:
    rows = [row for seq in sorted(seqs) for row in tables.run("task.event", cid=cid, seq=seq)]
    return {stored.seq: stored for stored in StoredEvent.of_rows(rows)}  # pyright: ignore[reportArgumentType]


def _make_missing_error(row: TaskRow) -> StoreError:
    return StoreError(
        f"task {row.task_id} has a row, but the log lacks the events that the row refers to",
        hint="`bough doctor` checks the whole store",
        details={"task": row.task_id, "first": row.first, "last": row.last},
    )
