"""The tasks of an agent, the most recently changed first: pages are cut from this list.

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
CONTEXT: Final = "a2a_context"
"""Keys of a task's metadata: the agent that was asked, the context it was asked in."""

_AT_ONCE = 500


class TaskPlace(NamedTuple):
    """The position of a task in the list; a greater one comes earlier.

    Attributes:
        changed: When its state last changed, in microseconds since 1970.
        number: The number of its row; later tasks have greater ones.
    """

    changed: int
    number: int
    id: UUID


class Selection(NamedTuple):
    """The tasks to list; None and empty for all.

    Attributes:
        state: The number of their state.
        after: The earliest time of their last change, in microseconds since 1970.
        context: The context in which they were asked.
    """

    state: int | None
    after: int | None
    context: str


async def find_places(access: Access, agent: str, selection: Selection) -> list[TaskPlace]:
    """Return the places of the caller's tasks with an agent, the most recently changed first. O(tasks of the agent).

    The agent and the context of a task are in its first event, so the first event of each is read.
    """
    store, owner = access.services.store, access.caller.owner
    parameters = {"owner": owner, "agent": agent, "state": selection.state, "after": selection.after}

    def look(tables: Tables) -> list[tuple[TaskPlace, int, int]]:
        rows = tables.run("server.a2a_tasks", **parameters)
        return [(TaskPlace(changed, k, UUID(bytes=id)), cid, first) for changed, k, id, cid, first in rows]

    candidates = await store.transaction((TASKS, SERVER), look, read_only=True)
    places: list[TaskPlace] = []
    for begin in range(0, len(candidates), _AT_ONCE):
        part = candidates[begin : begin + _AT_ONCE]

        def sift(tables: Tables, part: list[tuple[TaskPlace, int, int]] = part) -> list[TaskPlace]:
            return [place for place, cid, first in part if _is_wanted(tables, cid, first, agent, selection.context)]

        places += await store.transaction(TASKS, sift, read_only=True)
    return places


def _is_wanted(tables: Tables, cid: int, first: int, agent: str, context: str) -> bool:
    row = tables.one("task.event", cid=cid, seq=first)
    event = None if row is None else StoredEvent.of_rows([row])[0].event  # pyright: ignore[reportArgumentType]
    metadata = (event.metadata or {}) if isinstance(event, TaskChanged) else {}
    return metadata.get(AGENT) == agent and context in ("", metadata.get(CONTEXT))
