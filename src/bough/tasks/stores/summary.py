"""Short summaries of the tasks of conversations, for commands that show conversations without loading models."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from bough.errors import Unavailable
from bough.events.side_tables import SideTables, Tables
from bough.events.store import EventStore
from bough.tasks.state import TaskState

TASKS = SideTables("task", "bough.tasks.sql")
"""The side tables of tasks."""


class TaskSummary(NamedTuple):
    """A summary of a task.

    Attributes:
        conversation: The conversation that it runs; None if that is not one of the requested ones.
        parent: The conversation that started it; None likewise.
    """

    id: str
    conversation: UUID | None
    parent: UUID | None
    state: TaskState
    agent: str | None


async def list_tasks_around(log: EventStore, conversations: Collection[UUID]) -> list[TaskSummary]:
    """Return the tasks that run these conversations or were started by them, oldest first. One statement.

    Returns none for a read-only store without task tables.

    Raises:
        NotFound: A conversation does not exist.
    """

    def look(tables: Tables) -> list[TaskSummary]:
        numbers = {tables.number(conversation): conversation for conversation in conversations}
        rows = tables.run("task.around", cids=json.dumps(list(numbers)))
        return [
            TaskSummary(str(UUID(bytes=id)), numbers.get(cid), numbers.get(parent), TaskState.from_number(state), agent)
            for id, cid, parent, state, agent in rows
        ]

    try:
        return await log.transaction(TASKS, look, read_only=True)
    except Unavailable as error:
        if error.details.get("package") == TASKS.name:
            return []
        raise
