"""Submitting a task: conversation, message, transition, row and job, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from bough.errors import Conflict, NotFound
from bough.events.beside import Beside, Tables
from bough.events.model import Event, TaskChanged, TaskLinked, UserMessage
from bough.events.record import ConversationRecord, Lease
from bough.tasks.state import TaskState
from bough.tasks.stores.claims import Claimed, MayStart, claim_by_id
from bough.tasks.stores.rows import (
    FORMAT,
    Enqueue,
    TaskRow,
    find_live_row,
    find_row,
    find_row_of_key,
    give_job,
    read_task,
)
from bough.types import JsonObject


class Admission(NamedTuple):
    """Questions that are asked inside every submission without a parent, and before such a task starts.

    Attributes:
        beside: Whose tables they read.
        check: `check(tables, owner, metadata)` raises where the owner of the conversation may not submit that now.
        may_start: Whether the owner may have one more task running; None: always.
    """

    beside: tuple[Beside, ...]
    check: Callable[[Tables, str | None, Mapping[str, Any]], None]
    may_start: MayStart | None = None


@dataclass(frozen=True, kw_only=True)
class ParentLink:
    """Which conversation starts a task, and by which of its tool calls.

    Attributes:
        lease: Under which the parent runs: a parent that lost it starts nothing.
    """

    conversation: UUID
    call: str | None = None
    background: bool = True
    lease: Lease | None = None


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Everything that a submission writes.

    Attributes:
        id: Of the task, and of the conversation where it makes one.
        record: Of the conversation to make; None runs `conversation`, which is there.
        opening: The first events of the conversation, its `ConversationStarted` among them.
        message: What is asked; None continues without a message.
        activated: What the message brings in: skills, a title.
        deadline_seconds: From the moment it is written, by the store's clock: whoever submits may have another time.
        claim_owner: Claims it in the same transaction, for whoever this is.
        check: Called in the transaction before a new task is written; raises if its parent may not start another one.
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
    """What a submission came to.

    Attributes:
        is_new: Whether it was written; False where id or key had made the task before.
        claimed: With `claim_owner`, where it was claimed.
    """

    row: TaskRow
    is_new: bool
    claimed: Claimed | None = None


def find_submitted(tables: Tables, id: UUID, key: str | None) -> TaskRow | None:
    """Return the task that a key or an id made already."""
    found = None if key is None else find_row_of_key(tables, key)
    return found or find_row(tables, id)


def submit(tables: Tables, wanted: Submission, enqueue: Enqueue | None = None) -> Submitted:
    """Write a submission, or find what wrote it before.

    Raises:
        Conflict: The key or the id means another input, agent or conversation; the conversation has a live task; the
            parent's lease is lost.
        NotFound: There is no such conversation.
        LimitExceeded: The check of the submission refuses it.
    """
    known = find_submitted(tables, wanted.id, wanted.key)
    if known is not None:
        _require_same(tables, known, wanted)
        return Submitted(known, False, _claim(tables, known, wanted))
    if wanted.check is not None:
        wanted.check(tables)
    under = None
    if wanted.parent is not None:
        under = _link_parent(tables, wanted, wanted.parent)
    first = _write_events(tables, wanted)
    row = _insert(tables, wanted, first=first, under=under)
    is_delivered = wanted.claim_owner is None  # who claims it here needs nobody to bring it
    if is_delivered:
        row = give_job(tables, row, enqueue)
    return Submitted(row, True, _claim(tables, row, wanted))


def _claim(tables: Tables, row: TaskRow, wanted: Submission) -> Claimed | None:
    if wanted.claim_owner is None:
        return None
    return claim_by_id(tables, UUID(bytes=row.id), wanted.claim_owner, wanted.ttl_seconds)


def _write_events(tables: Tables, wanted: Submission) -> int:
    """Write the events of a submission, and return the seq of its transition."""
    start = 0
    if wanted.record is None:
        start = (
            _require_no_live_task(tables, wanted.conversation) if wanted.expected_head is None else wanted.expected_head
        )
    said = () if wanted.message is None else (wanted.message,)
    place = start + len(wanted.opening)
    changed = TaskChanged(
        task_id=str(wanted.id),
        state=TaskState.PENDING.value,
        worker=wanted.worker,
        metadata=dict(wanted.metadata),
        bounds=wanted.bounds,
        agent=wanted.agent,
        message=place if said else None,
    )
    events = (*wanted.opening, *said, changed, *wanted.activated)
    if wanted.record is not None:
        tables.create(wanted.record, events=events)
    else:
        tables.append(wanted.conversation, events, expected_head=start)
    return place + len(said)


def _require_no_live_task(tables: Tables, cid: UUID) -> int:
    """Return the head of a conversation that no task runs."""
    record = tables.get(cid)
    live = find_live_row(tables, tables.number(cid))
    if live is not None:
        raise live_conflict(live)
    return record.head


def live_conflict(live: TaskRow) -> Conflict:
    """Return the error of a conversation that has a task already."""
    return Conflict(
        f"the conversation has a task that is {live.current.value}: {live.task_id}",
        hint="wait for it, or cancel it; with join=True a message is added to it",
        details={"task": live.task_id, "state": live.current.value},
    )


def _insert(tables: Tables, wanted: Submission, *, first: int, under: int | None) -> TaskRow:
    parent = None if wanted.parent is None else tables.number(wanted.parent.conversation)
    cid, seconds = tables.number(wanted.conversation), wanted.deadline_seconds
    fields: dict[str, Any] = {
        "cid": cid,
        "format": FORMAT,
        "state": TaskState.PENDING.number,
        "version": 0,
        "attempts": 0,
        "max_attempts": wanted.max_attempts,
        "priority": wanted.priority,
        "queue": wanted.queue,
        "not_before": wanted.not_before,
        "deadline": None if seconds is None else tables.now() + round(seconds * 1_000_000),
        "first": first,
        "last": first,
        "parent": parent,
        "call": None if wanted.parent is None else wanted.parent.call,
        "under": under,
        "key": wanted.key,
        "agent": wanted.agent,
        "job": None,
    }
    [(k,)] = tables.run("task.insert", id=wanted.id, **fields)
    parent_id = None if wanted.parent is None else wanted.parent.conversation.bytes
    return TaskRow(k=k, id=wanted.id.bytes, conversation=wanted.conversation.bytes, parent_id=parent_id, **fields)


def _link_parent(tables: Tables, wanted: Submission, parent: ParentLink) -> int | None:
    """Append to the parent's log that it starts the task; return the number of the task that the parent runs as."""
    live = find_live_row(tables, tables.number(parent.conversation))
    linked = TaskLinked(
        task_id=str(wanted.id),
        conversation=wanted.conversation,
        agent=wanted.agent,
        tool_call_id=parent.call,
        background=parent.background,
    )
    generation = None if parent.lease is None else parent.lease.generation
    tables.append(parent.conversation, [linked], generation=generation)
    is_running = live is not None and live.current is TaskState.RUNNING
    return live.k if live is not None and is_running else None


def _require_same(tables: Tables, row: TaskRow, wanted: Submission) -> None:
    """Check that what a key or an id made is what is wanted again."""
    task = read_task(tables, row)
    text = "" if wanted.message is None else wanted.message.plain
    made = (task.input, task.agent_name)
    asked = (text, wanted.agent)
    other = wanted.record is None and task.conversation != wanted.conversation
    if made == asked and not other:
        return
    what = "agent"
    if other:
        what = "conversation"
    elif task.input != text:
        what = "input"
    named = f"the idempotency key {wanted.key!r}" if wanted.key is not None else f"the id {wanted.id}"
    raise Conflict(
        f"{named} has made task {row.task_id} with another {what}",
        hint="a key means one task for ever: use another one",
        details={"task": row.task_id, "differs": what},
    )


def require_row(tables: Tables, id: UUID) -> TaskRow:
    """Return the row of a task.

    Raises:
        NotFound: There is no such task.
    """
    row = find_row(tables, id)
    if row is None:
        raise NotFound(
            f"there is no task {id}", hint="`bough tasks list` shows what there is", details={"task": str(id)}
        )
    return row
