"""The events of a task as they come, from whichever process."""

from __future__ import annotations

from collections.abc import AsyncIterator

from bough.events.model import TaskChanged
from bough.tasks.faults import unknown_task
from bough.tasks.model import TaskEvent
from bough.tasks.state import TERMINAL_STATES, TaskState
from bough.tasks.stores.relational import RelationalTaskStore
from bough.tasks.stores.rows import find_row, parse_id
from bough.tasks.view import SHOWN_KINDS, task_event


async def stream_events(store: RelationalTaskStore, task_id: str, after: int) -> AsyncIterator[TaskEvent]:
    """Iterate the events of a task with `seq > after`, then live ones; ends behind its end.

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
