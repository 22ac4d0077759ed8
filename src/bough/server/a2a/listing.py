"""The order of an agent's tasks in the pages of a list: the most recently changed first.

Source: the A2A protocol 1.0, section 3.1.4 (list).
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from bough.events.model import TaskChanged
from bough.events.record import StoredEvent
from bough.events.side_tables import Tables
from bough.server.access import Access
from bough.server.auth.keys import SERVER
from bough.tasks.stores.summary import TASKS

AGENT: Final = "a2a_agent"
"""Key of a task's metadata: the agent of the task."""

CONTEXT: Final = "a2a_context"
"""Key of a task's metadata: the A2A context of the task."""

_BATCH_SIZE = 500


class TaskPosition(NamedTuple):
    """The position of a task in the list. Tasks with greater positions come first.

    Attributes:
        changed: When the state of the task last changed, in microseconds since 1970.
        number: The number of its row; newer tasks have greater numbers.
    """

    changed: int
    number: int
    id: UUID


class Selection(NamedTuple):
    """A filter of tasks. None and an empty text match all tasks.

    Attributes:
        state: The number of the state.
        after: The earliest time of the last change, in microseconds since 1970.
        context: The A2A context.
    """

    state: int | None
    after: int | None
    context: str


async def list_positions(access: Access, agent: str, selection: Selection) -> list[TaskPosition]:
    """Return the list positions of the caller's tasks for `agent`, most recently changed first. O(tasks of the agent).

    The query filters by the conversation's agent. A task's own agent and context are in its first event, which is read.
    """
    store, owner = access.services.store, access.caller.owner
    parameters = {"owner": owner, "agent": agent, "state": selection.state, "after": selection.after}

    def read_candidates(tables: Tables) -> list[tuple[TaskPosition, int, int]]:
        rows = tables.run("server.a2a_tasks", **parameters)
        return [
            (TaskPosition(changed, number, UUID(bytes=id)), cid, first_seq)
            for changed, number, id, cid, first_seq in rows
        ]

    candidates = await store.transaction((TASKS, SERVER), read_candidates, read_only=True)
    positions: list[TaskPosition] = []
    for start in range(0, len(candidates), _BATCH_SIZE):
        batch = candidates[start : start + _BATCH_SIZE]

        def select(tables: Tables, batch: list[tuple[TaskPosition, int, int]] = batch) -> list[TaskPosition]:
            return [
                position
                for position, cid, first_seq in batch
                if _is_wanted(tables, cid, first_seq, agent, selection.context)
            ]

        positions += await store.transaction(TASKS, select, read_only=True)
    return positions


def _is_wanted(tables: Tables, cid: int, first_seq: int, agent: str, context: str) -> bool:
    """Whether the first event of a task names the agent and the context. An empty `context` matches any."""
    row = tables.one("task.event", cid=cid, seq=first_seq)
    event = None if row is None else StoredEvent.of_rows([row])[0].event  # pyright: ignore[reportArgumentType]
    metadata = (event.metadata or {}) if isinstance(event, TaskChanged) else {}
    return metadata.get(AGENT) == agent and context in ("", metadata.get(CONTEXT))
