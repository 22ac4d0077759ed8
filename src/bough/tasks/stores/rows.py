"""Rows of tasks, and what they stand for: read, inserted and moved inside one transaction of the log's store.

Every function is part of a change that `EventStore.together` runs, and so may run again: it depends on nothing but its
arguments. A change locks the conversations it touches before it writes their rows of tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from bough.conversation.log.state import add_usage
from bough.errors import InvalidTransition, StoreError
from bough.events.beside import Tables
from bough.events.model import Event, StateChanged, TaskChanged, TaskEnded, Usage, UserMessage
from bough.events.record import StoredEvent, moment
from bough.tasks.model import Task
from bough.tasks.state import TERMINAL_STATES, TaskState, require_transition
from bough.types import JsonObject

FORMAT = 1
"""Of the rows written here. Rows of a newer format are left to newer workers."""

MAX_RESULT_BYTES = 1 << 20
"""How much of a result or an error the events of a task carry; the whole is in the log of its conversation."""


Enqueue: TypeAlias = Callable[[Tables, Task], int | None]
"""Hands a task to an engine inside the transaction; returns the engine's job, None where there is no engine."""

_WAITING = "waiting_for_confirmation"
"""Status of a conversation of which a call waits."""


class TaskRow(NamedTuple):
    """A row of the table `task`, with the ids behind its numbers. Times are microseconds since 1970.

    Attributes:
        k: Order of age.
        conversation: The 16 bytes of the id of `cid`.
        first: Seq of its first transition, the submission; `last` of its latest.
        parent: Number of the conversation that started it; `parent_id` its id.
        call: The parent's tool call that started it.
        under: `k` of the parent's task whose run started it.
        job: Of the engine that delivers it.
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
        """The id of the conversation it runs."""
        return UUID(bytes=self.conversation)

    @property
    def current(self) -> TaskState:
        """Where it stands."""
        return TaskState.from_number(self.state)

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        return self.current in TERMINAL_STATES


class Move(NamedTuple):
    """What a transition says besides its state; each is a field of `TaskChanged`."""

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
    """Return the id of a task; None for what is not a UUID in its usual form: nothing else reaches a path or query."""
    try:
        found = UUID(task_id)
    except (ValueError, AttributeError, TypeError):
        return None
    return found if str(found) == task_id.lower() or found.hex == task_id.lower() else None


def find_row(tables: Tables, id: UUID) -> TaskRow | None:
    """Return the row of a task."""
    row = tables.one("task.row", id=id)
    return None if row is None else TaskRow(*row)


def find_row_of_key(tables: Tables, key: str) -> TaskRow | None:
    """Return the row of the task that an idempotency key made."""
    row = tables.one("task.row_of_key", key=key)
    return None if row is None else TaskRow(*row)


def find_live_row(tables: Tables, cid: int) -> TaskRow | None:
    """Return the row of the task of a conversation that has not ended."""
    row = tables.one("task.row_live", cid=cid)
    return None if row is None else TaskRow(*row)


def find_latest_row(tables: Tables, cid: int) -> TaskRow | None:
    """Return the row of the latest task of a conversation, whether it has ended or not."""
    row = tables.one("task.row_latest", cid=cid)
    return None if row is None else TaskRow(*row)


def read_task(tables: Tables, row: TaskRow) -> Task:
    """Return the task of a row, without its events: its first and latest transition, and its message. Three rows.

    Raises:
        StoreError: The log does not have what the row names.
    """
    changes = _read_events(tables, row.cid, {row.first, row.last})
    first, last = changes.get(row.first), changes.get(row.last)
    if first is None or last is None:
        raise _missing(row)
    return build_task(row, first, last, read_message(tables, row, first))


def read_first(tables: Tables, id: UUID) -> TaskChanged | None:
    """Return the transition by which a task was submitted; None for no such task."""
    row = find_row(tables, id)
    event = None if row is None else _read_events(tables, row.cid, {row.first})[row.first].event
    return event if isinstance(event, TaskChanged) else None


def build_task(row: TaskRow, first: StoredEvent, last: StoredEvent, message: UserMessage | None) -> Task:
    """Return the task of a row and the events that it names."""
    begun, now = first.event, last.event
    if not isinstance(begun, TaskChanged) or not isinstance(now, TaskChanged):
        raise _missing(row)
    return Task(
        id=row.task_id,
        state=row.current,
        input="" if message is None else message.plain,
        result=now.result,
        error=now.error,
        metadata=dict(begun.metadata or {}),
        created_at=first.ts,
        updated_at=last.ts,
        data=now.data,
        code=now.code,
        usage=now.usage or Usage(requests=0),
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
        request=now.request,
        version=row.version,
    )


def move(
    tables: Tables,
    row: TaskRow,
    to: TaskState,
    said: Move = NOTHING,
    *,
    events: Sequence[Event] = (),
    generation: int | None = None,
    expected_head: int | None = None,
    attempts: int | None = None,
    not_before: int | None = None,
    job: int | None = None,
    enqueue: Enqueue | None = None,
) -> TaskRow:
    """Make a transition: its one STATE_CHANGE, and the row by compare-and-set; return the row as it is then.

    A transition that ends the task says what it used, read from the log unless `said` has it. Where a task that a
    conversation started ends, that conversation's log is told in the same transaction, and the
    call that waits for the task continues.

    Args:
        events: Appended to the task's conversation before the transition.
        generation: Of the claim under which it is made.
        job: Of the engine, for a task that becomes pending again.
        enqueue: Delivers a parent that waited for this task; None where no engine delivers.

    Raises:
        InvalidTransition: The table of states does not have it, or the row has moved on meanwhile.
        Conflict: The lease was lost, or the head is another one.
    """
    require_transition(row.task_id, row.current, to)
    attempt = row.attempts if attempts is None else attempts
    if to in TERMINAL_STATES and said.usage is None:
        said = said._replace(usage=sum_usage(tables, row))
    result, result_bytes = cut_text(said.result)
    error, _ = cut_text(said.error)
    fields: dict[str, Any] = said._asdict() | {"result": result, "error": error}
    changed = TaskChanged(
        task_id=row.task_id,
        state=to.value,
        attempt=attempt,
        result_bytes=result_bytes,
        **{name: value for name, value in fields.items() if value is not None},
    )
    if to in TERMINAL_STATES and row.parent_id is not None:
        _tell_parent(tables, row, changed, enqueue)
    head = tables.append(row.conversation_id, [*events, changed], generation=generation, expected_head=expected_head)
    moved = tables.run(
        "task.move", k=row.k, was=row.state, version=row.version, state=to.number, attempts=attempt,
        not_before=not_before, last=head - 1, job=job,
    )  # fmt: skip
    if not moved:
        raise InvalidTransition(
            f"task {row.task_id} has moved on meanwhile",
            hint="read it again",
            details={"task": row.task_id, "from": row.current.value, "to": to.value, "moved_on": True},
        )
    return row._replace(
        state=to.number, version=row.version + 1, attempts=attempt, not_before=not_before, last=head - 1, job=job
    )


def sum_usage(tables: Tables, row: TaskRow) -> Usage:
    """Return what a task has used since it was submitted, with its children that have not ended. O(requests)."""
    usage = Usage(requests=0)
    for stored in StoredEvent.of_rows(tables.run("task.spending", cid=row.cid, first=row.first)):  # pyright: ignore[reportArgumentType]
        event: Any = stored.event
        usage = add_usage(usage, event.usage or Usage(requests=0))
    for child in tables.run("task.rows_under", k=row.k):
        usage = add_usage(usage, sum_usage(tables, TaskRow(*child)))
    return usage


def give_job(tables: Tables, row: TaskRow, enqueue: Enqueue | None) -> TaskRow:
    """Have a task that is pending delivered, where an engine does that, and return its row as it is then."""
    job = None if enqueue is None else enqueue(tables, read_task(tables, row))
    if job is None:
        return row
    tables.run("task.set_job", k=row.k, job=job)
    return row._replace(job=job)


def cut_text(text: str | None) -> tuple[str | None, int | None]:
    """Return a text with at most 1 MiB of it, head and tail, and its size in bytes where that was more."""
    if text is None or len(text) * 4 <= MAX_RESULT_BYTES:
        return text, None
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_RESULT_BYTES:
        return text, None
    half = MAX_RESULT_BYTES // 2 - 64
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[… {len(data) - 2 * half} bytes left out …]\n{tail}", len(data)


def _tell_parent(tables: Tables, row: TaskRow, changed: TaskChanged, enqueue: Enqueue | None) -> None:
    """Append to the parent's log how the task ended, and let the call continue that waits for it.

    The call runs again and finds the task that it had started. A deleted parent hears nothing.
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
    left = {id: call for id, call in waiting.items() if call.get("task") != row.task_id}
    if len(left) == len(waiting):
        tables.append(parent, [ended])
        return
    changes: JsonObject = {"status": _WAITING if left else "idle", "waiting": left}
    events = [ended, StateChanged(changes=changes, reason="its task ended")]
    live = find_live_row(tables, row.parent)
    if left or live is None or live.current is not TaskState.INPUT_REQUIRED:
        tables.append(parent, events)
        return
    woken = move(tables, live, TaskState.PENDING, Move(reason="its task ended"), events=events)
    give_job(tables, woken, enqueue)


def read_waiting(tables: Tables, conversation: UUID, cid: int) -> dict[str, JsonObject]:
    """Return the calls of a conversation that wait for somebody, by id, as its latest `StateChanged` has them.

    One row of a conversation of which nothing waits; else the few events behind the one that says what does.
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
    """Return the message that a task was submitted with, as its first transition names it; None for none."""
    event = first.event
    seq = event.message if isinstance(event, TaskChanged) else None
    if seq is None:
        return None
    found = _read_events(tables, row.cid, {seq}).get(seq)
    return found.event if found is not None and isinstance(found.event, UserMessage) else None


def _read_events(tables: Tables, cid: int, seqs: set[int]) -> dict[int, StoredEvent]:
    rows = [row for seq in sorted(seqs) for row in tables.run("task.event", cid=cid, seq=seq)]
    return {stored.seq: stored for stored in StoredEvent.of_rows(rows)}  # pyright: ignore[reportArgumentType]


def _missing(row: TaskRow) -> StoreError:
    return StoreError(
        f"task {row.task_id} has a row, but not the events that it names",
        hint="`bough doctor` checks the whole store",
        details={"task": row.task_id, "first": row.first, "last": row.last},
    )
