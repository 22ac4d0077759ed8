"""Which tasks are around conversations, in a few words: for commands that show conversations, and load no models."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from bough.errors import Unavailable
from bough.events.beside import Beside, Tables
from bough.events.store import EventStore
from bough.tasks.state import TaskState

TASKS = Beside("task", "bough.tasks.sql")
"""The tables of tasks beside the log."""


class TaskSummary(NamedTuple):
    """A task as a line says it.

    Attributes:
        conversation: The one it runs; None where that is none of those that were asked about.
        parent: The one that started it; likewise.
    """

    id: str
    conversation: UUID | None
    parent: UUID | None
    state: TaskState
    agent: str | None


async def list_tasks_around(log: EventStore, conversations: Collection[UUID]) -> list[TaskSummary]:
    """Return the tasks that run these conversations, or were started by them, the oldest first. One statement.

    A store that cannot be written and has no tables of tasks has none.

    Raises:
        NotFound: There is no such conversation.
    """

    def look(tables: Tables) -> list[TaskSummary]:
        numbers = {tables.number(each): each for each in conversations}
        rows = tables.run("task.around", cids=json.dumps(list(numbers)))
        return [
            TaskSummary(str(UUID(bytes=id)), numbers.get(cid), numbers.get(parent), TaskState.from_number(state), agent)
            for id, cid, parent, state, agent in rows
        ]

    try:
        return await log.together(TASKS, look, read_only=True)
    except Unavailable as error:
        if error.details.get("package") == TASKS.name:
            return []
        raise
