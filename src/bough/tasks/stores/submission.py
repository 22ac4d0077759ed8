"""Submit a task: write conversation, message, transition, row and job in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from bough.errors import Conflict, NotFound
from bough.events.model import Event, TaskChanged, TaskLinked, UserMessage
from bough.events.record import ConversationRecord, Lease
from bough.events.side_tables import SideTables, Tables
from bough.tasks.state import TaskState
from bough.tasks.stores.claims import Claimed, MayStart, claim_by_id
from bough.tasks.stores.rows import (
    FORMAT,
    Enqueue,
    TaskRow,
    find_live_row,
    find_row,
    find_row_by_key,
    give_job,
    read_task,
)
from bough.types import JsonObject


class Admission(NamedTuple):
    """Checks that run inside every submission without a parent, and before such a task starts.

    Attributes:
        side_tables: The side tables that the checks read.
        check: `check(tables, owner, metadata)` raises if the owner of the conversation may not submit the task now.
        may_start: Whether the owner may run one more task; None means always.
    """

    side_tables: tuple[SideTables, ...]
    check: Callable[[Tables, str | None, Mapping[str, Any]], None]
    may_start: MayStart | None = None


@dataclass(frozen=True, kw_only=True)
class ParentLink:
    """The conversation that starts a task, and its tool call.

    Attributes:
        lease: The parent's lease. A parent that has lost it cannot submit.
    """

    conversation: UUID
    call: str | None = None
    background: bool = True
    lease: Lease | None = None


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Everything that a submission writes.

    Attributes:
        id: Of the task, and of the conversation if it creates one.
        record: Of the conversation to create; None runs the existing `conversation`.
        opening: The first events of the conversation, including its `ConversationStarted`.
        message: The prompt; None continues without a message.
        activated: Events that the message triggers: skills, a title.
        deadline_seconds: From submission, by the store's clock, which may differ from the submitter's.
        claim_owner: If set, the task is claimed for this owner in the same transaction.
        check: Called in the transaction before a new task is written; raises if the parent may not start another one.
    """

    id: UUID
    record: ConversationRecord | None = None
    conversation: UUID
    opening: tuple[Event, ...] = ()
    message: UserMessage | None = None
    activated: tuple[Event, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    bounds: tuple[JsonObject, ...] = ()
    agent: str | None = None
    key: str | None = None
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 3
    not_before: int | None = None
    deadline_seconds: float | None = None
    parent: ParentLink | None = None
    worker: str | None = None
    expected_head: int | None = None
    claim_owner: str | None = None
    check: Callable[[Tables], None] | None = None
    ttl_seconds: float = 15.0


class Submitted(NamedTuple):
    """The result of a submission.

    Attributes:
        is_new: Whether the task was written; False if the id or key existed.
        claimed: The claim, if `claim_owner` was set and it succeeded.
    """

    row: TaskRow
    is_new: bool
    claimed: Claimed | None = None


def find_submitted(tables: Tables, id: UUID, key: str | None) -> TaskRow | None:
    """Return the existing task with a key or an id; None if missing."""
    row = None if key is None else find_row_by_key(tables, key)
    return row or find_row(tables, id)


def submit(tables: Tables, submission: Submission, enqueue: Enqueue | None = None) -> Submitted:
    """Write a submission, or return the task that it created before.

    Raises:
        Conflict: The key or id belongs to a task with another input, agent or conversation; the conversation has a live
            task; or the parent's lease is lost.
        NotFound: There is no such conversation.
        LimitExceeded: The submission's check fails.
    """
    # Before the check: a repeated submission must succeed even if its parent has reached a limit since.
    existing = find_submitted(tables, submission.id, submission.key)
    if existing is not None:
        _require_same(tables, existing, submission)
        return Submitted(existing, False, _claim(tables, existing, submission))
    if submission.check is not None:
        submission.check(tables)
    under = None
    if submission.parent is not None:
        under = _link_parent(tables, submission, submission.parent)
    first = _write_events(tables, submission)
    row = _insert(tables, submission, first=first, under=under)
    is_delivered = submission.claim_owner is None  # a task that is claimed here needs no delivery
    if is_delivered:
        row = give_job(tables, row, enqueue)
    return Submitted(row, True, _claim(tables, row, submission))


def _claim(tables: Tables, row: TaskRow, submission: Submission) -> Claimed | None:
    if submission.claim_owner is None:
        return None
    return claim_by_id(tables, UUID(bytes=row.id), submission.claim_owner, submission.ttl_seconds)


def _write_events(tables: Tables, submission: Submission) -> int:
    """Write the events of a submission; return the seq of its transition."""
    start = 0
    if submission.record is None:
        start = (
            _require_no_live_task(tables, submission.conversation)
            if submission.expected_head is None
            else submission.expected_head
        )
    messages = () if submission.message is None else (submission.message,)
    message_seq = start + len(submission.opening)
    changed = TaskChanged(
        task_id=str(submission.id),
        state=TaskState.PENDING.value,
        worker=submission.worker,
        metadata=dict(submission.metadata),
        bounds=submission.bounds,
        agent=submission.agent,
        message=message_seq if messages else None,
    )
    events = (*submission.opening, *messages, changed, *submission.activated)
    if submission.record is not None:
        tables.create(submission.record, events=events)
    else:
        tables.append(submission.conversation, events, expected_head=start)
    return message_seq + len(messages)


def _require_no_live_task(tables: Tables, cid: UUID) -> int:
    """Return the head of a conversation, or raise `Conflict` if it has a live task."""
    record = tables.get(cid)
    live = find_live_row(tables, tables.number(cid))
    if live is not None:
        raise live_conflict(live)
    return record.head


def live_conflict(live: TaskRow) -> Conflict:
    """Return the error for a conversation that has a live task."""
    return Conflict(
        f"the conversation has a task that is {live.current.value}: {live.task_id}",
        hint="wait for that task, or cancel it; join=True adds a message to it",
        details={"task": live.task_id, "state": live.current.value},
    )


def _insert(tables: Tables, submission: Submission, *, first: int, under: int | None) -> TaskRow:
    """Insert the row of a submission, and return it.

    Args:
        first: Seq of the submission's transition.
        under: `k` of the task whose run started this one.
    """
    parent = None if submission.parent is None else tables.number(submission.parent.conversation)
    cid, seconds = tables.number(submission.conversation), submission.deadline_seconds
    fields: dict[str, Any] = {
        "cid": cid,
        "format": FORMAT,
        "state": TaskState.PENDING.number,
        "version": 0,
        "attempts": 0,
        "max_attempts": submission.max_attempts,
        "priority": submission.priority,
        "queue": submission.queue,
        "not_before": submission.not_before,
        "deadline": None if seconds is None else tables.now() + round(seconds * 1_000_000),
        "first": first,
        "last": first,
        "parent": parent,
        "call": None if submission.parent is None else submission.parent.call,
        "under": under,
        "key": submission.key,
        "agent": submission.agent,
        "job": None,
    }
    [(k,)] = tables.run("task.insert", id=submission.id, **fields)
    parent_id = None if submission.parent is None else submission.parent.conversation.bytes
    return TaskRow(
        k=k, id=submission.id.bytes, conversation=submission.conversation.bytes, parent_id=parent_id, **fields
    )


def _link_parent(tables: Tables, submission: Submission, parent: ParentLink) -> int | None:
    """Append the start of the task to the parent's log; return `k` of the task that runs the parent."""
    live = find_live_row(tables, tables.number(parent.conversation))
    linked = TaskLinked(
        task_id=str(submission.id),
        conversation=submission.conversation,
        agent=submission.agent,
        tool_call_id=parent.call,
        background=parent.background,
    )
    generation = None if parent.lease is None else parent.lease.generation
    tables.append(parent.conversation, [linked], generation=generation)
    is_running = live is not None and live.current is TaskState.RUNNING
    return live.k if live is not None and is_running else None


def _require_same(tables: Tables, row: TaskRow, submission: Submission) -> None:
    """Raise `Conflict` unless an existing task matches the submission."""
    task = read_task(tables, row)
    text = "" if submission.message is None else submission.message.plain
    existing = (task.input, task.agent_name)
    requested = (text, submission.agent)
    has_other_conversation = submission.record is None and task.conversation != submission.conversation
    if existing == requested and not has_other_conversation:
        return
    difference = "agent"
    if has_other_conversation:
        difference = "conversation"
    elif task.input != text:
        difference = "input"
    source = f"the idempotency key {submission.key!r}" if submission.key is not None else f"the id {submission.id}"
    raise Conflict(
        f"{source} belongs to task {row.task_id}, which has another {difference}",
        hint="use another key or id: each belongs to one task for ever",
        details={"task": row.task_id, "differs": difference},
    )


def require_row(tables: Tables, id: UUID) -> TaskRow:
    """Return the row of a task.

    Raises:
        NotFound: There is no such task.
    """
    row = find_row(tables, id)
    if row is None:
        raise NotFound(f"there is no task {id}", hint="`bough tasks list` shows the tasks", details={"task": str(id)})
    return row
