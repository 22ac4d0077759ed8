"""Storing, finding, annotating and deleting tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bough.errors import Conflict, InvalidInput, NotFound
from bough.tasks.model import EventType, Task, TaskEvent
from bough.tasks.state import TaskState
from bough.tasks.store import TaskFilter, TaskStore


class RecordsContract:
    """Create, get, list, notes, delete."""

    pytestmark = pytest.mark.anyio

    async def test_a_task_is_stored_as_it_is_given(self, tasks: TaskStore) -> None:
        """All fields that a caller may set are returned. The state is PENDING and the version 0."""
        later = datetime(2100, 1, 1, tzinfo=UTC)
        task = Task(
            input="count the rows", metadata={"system_prompt": "You count.", "n": 1}, priority=3, queue="batch",
            max_attempts=5, idempotency_key="k1", not_before=later, deadline=later + timedelta(days=1),
        )  # fmt: skip
        await tasks.create(task)
        stored = await tasks.get(task.id)
        assert stored is not None
        assert (stored.id, stored.input, stored.metadata) == (task.id, task.input, task.metadata)
        assert (stored.state, stored.version, stored.attempts) == (TaskState.PENDING, 0, 0)
        assert (stored.priority, stored.queue, stored.max_attempts) == (3, "batch", 5)
        assert (stored.idempotency_key, stored.not_before, stored.deadline) == ("k1", later, later + timedelta(days=1))
        assert stored.conversation == UUID(task.id)

    async def test_an_id_is_taken_once(self, tasks: TaskStore) -> None:
        """A second task with the same id raises Conflict, and the first task is unchanged."""
        first = await tasks.create(Task(input="one"))
        with pytest.raises(Conflict):
            await tasks.create(Task(id=first.id, input="two"))
        stored = await tasks.get(first.id)
        assert stored is not None
        assert stored.input == "one"

    @pytest.mark.parametrize(
        "id", ["", "../outside", "1", "/etc/passwd", "{%s}" % ("0" * 36), "x" * 36, "urn:uuid:" + "0" * 32]
    )
    async def test_only_a_uuid_is_an_id(self, tasks: TaskStore, id: str) -> None:
        """`create` rejects other ids and lookups return None, so that they are never part of a path or query."""
        with pytest.raises(InvalidInput):
            await tasks.create(Task(id=id, input="x"))
        assert await tasks.get(id) is None
        assert await tasks.update_state(id, TaskState.CANCELLED) is None

    async def test_an_unknown_task_is_none(self, tasks: TaskStore) -> None:
        """`get` and `update_state` return None for an unknown task, as in agentic_patterns."""
        unknown = Task(input="x").id
        assert await tasks.get(unknown) is None
        assert await tasks.update_state(unknown, TaskState.RUNNING) is None

    async def test_a_returned_task_is_a_copy(self, tasks: TaskStore) -> None:
        """Changing a returned task changes nothing in the store."""
        task = await tasks.create(Task(input="one", metadata={"a": [1]}))
        task.state = TaskState.COMPLETED
        task.metadata["a"].append(2)
        stored = await tasks.get(task.id)
        assert stored is not None
        assert (stored.state, stored.metadata) == (TaskState.PENDING, {"a": [1]})

    async def test_submission_is_one_state_change(self, tasks: TaskStore) -> None:
        """The only event of a new task is the change to PENDING."""
        task = await tasks.create(Task(input="one"))
        stored = await tasks.get(task.id)
        assert stored is not None
        assert [(event.event_type, event.payload["state"]) for event in stored.events] == [
            (EventType.STATE_CHANGE, "pending")
        ]

    async def test_notes_are_kept_in_order(self, tasks: TaskStore) -> None:
        """PROGRESS and LOG events are returned unchanged, between the transitions and after the end."""
        task = await tasks.create(Task(input="one"))
        await tasks.add_event(task.id, TaskEvent(task_id=task.id, event_type=EventType.PROGRESS, payload={"done": 1}))
        await tasks.update_state(task.id, TaskState.CANCELLED)
        await tasks.add_event(
            task.id, TaskEvent(task_id=task.id, event_type=EventType.LOG, payload={"name": "score", "value": 0.5})
        )
        stored = await tasks.get(task.id)
        assert stored is not None
        assert [event.event_type.value for event in stored.events] == [
            "state_change",
            "progress",
            "state_change",
            "log",
        ]
        assert stored.events[1].payload == {"done": 1}
        assert stored.events[3].payload == {"name": "score", "value": 0.5}
        seqs = [event.seq for event in stored.events]
        assert seqs == sorted(set(seqs))
        assert {event.task_id for event in stored.events} == {task.id}

    async def test_add_event_rejects_transitions(self, tasks: TaskStore) -> None:
        """`add_event` rejects a STATE_CHANGE, and an event of an unknown task."""
        task = await tasks.create(Task(input="one"))
        with pytest.raises(InvalidInput):
            await tasks.add_event(task.id, TaskEvent(task_id=task.id, event_type=EventType.STATE_CHANGE))
        unknown = Task(input="x").id
        with pytest.raises(NotFound):
            await tasks.add_event(unknown, TaskEvent(task_id=unknown, event_type=EventType.LOG))

    async def test_get_returns_the_latest_thousand_events(self, tasks: TaskStore) -> None:
        """A returned task has at most 1000 events; the log has all events."""
        task = await tasks.create(Task(input="one"))
        for number in range(1010):
            note = TaskEvent(task_id=task.id, event_type=EventType.PROGRESS, payload={"number": number})
            await tasks.add_event(task.id, note)
        stored = await tasks.get(task.id)
        assert stored is not None
        assert len(stored.events) == 1000
        assert stored.events[-1].payload == {"number": 1009}

    async def test_tasks_are_listed_by_state_the_oldest_first(self, tasks: TaskStore) -> None:
        """Each task is in the list of its state, in the order of submission."""
        tasks_created = [await tasks.create(Task(input=str(number))) for number in range(5)]
        await tasks.update_state(tasks_created[1].id, TaskState.CANCELLED)
        pending = await tasks.list_by_state(TaskState.PENDING)
        assert [task.input for task in pending] == ["0", "2", "3", "4"]
        assert [task.id for task in await tasks.list_by_state(TaskState.CANCELLED)] == [tasks_created[1].id]
        assert await tasks.list_by_state(TaskState.RUNNING) == []

    async def test_pages_are_ordered_newest_first(self, tasks: TaskStore) -> None:
        """Every task is on one page, even if tasks are submitted meanwhile; filters select tasks."""
        tasks_created = [
            await tasks.create(Task(input=str(number), queue="a" if number % 2 else "b")) for number in range(5)
        ]
        first = await tasks.list(limit=2)
        await tasks.create(Task(input="late"))
        second = await tasks.list(cursor=first.next_cursor, limit=2)
        third = await tasks.list(cursor=second.next_cursor, limit=2)
        inputs = [task.input for page in (first, second, third) for task in page.items]
        assert (inputs, third.next_cursor) == (["4", "3", "2", "1", "0"], None)
        queue = await tasks.list(TaskFilter(queue="a"))
        assert [task.input for task in queue.items] == ["3", "1"]
        states = await tasks.list(TaskFilter(states=frozenset({TaskState.RUNNING})))
        assert states.items == []
        one = await tasks.list(TaskFilter(conversation=UUID(tasks_created[0].id)))
        assert [task.id for task in one.items] == [tasks_created[0].id]
        with pytest.raises(InvalidInput):
            await tasks.list(cursor="'; drop table task")

    async def test_only_ended_tasks_are_deleted(self, tasks: TaskStore) -> None:
        """Deleting a task also deletes the conversation that it created; a task that has not ended is kept."""
        task = await tasks.create(Task(input="one"))
        with pytest.raises(Conflict):
            await tasks.delete(task.id)
        await tasks.update_state(task.id, TaskState.CANCELLED)
        await tasks.delete(task.id)
        assert await tasks.get(task.id) is None
        with pytest.raises(NotFound):
            await tasks.log.get(UUID(task.id))
        with pytest.raises(NotFound):
            await tasks.delete(task.id)

    async def test_deleting_a_conversation_deletes_its_tasks(self, tasks: TaskStore) -> None:
        """The row of a task is deleted with its conversation, even if another program deletes it."""
        task = await tasks.create(Task(input="one"))
        await tasks.log.delete(UUID(task.id))
        assert await tasks.get(task.id) is None
        assert await tasks.next_pending() is None
