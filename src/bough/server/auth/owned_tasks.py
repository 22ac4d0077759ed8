"""The tenant rule for tasks: a task is its conversation's owner's."""

from __future__ import annotations

from dataclasses import replace

from bough.errors import NotFound
from bough.server.auth.owned import OwnedStore
from bough.tasks import Task, TaskBroker, TaskFilter, TaskPage


class OwnedTasks:
    """The tasks of one owner's conversations; all others are not there.

    Args:
        store: The conversations as the owner may see them.
    """

    def __init__(self, broker: TaskBroker, store: OwnedStore) -> None:
        self._broker = broker
        self._store = store

    async def get(self, task_id: str) -> Task:
        """Return a task with its latest events.

        Raises:
            NotFound: There is none, or it is somebody else's: both look the same.
        """
        task = await self._broker.store.get(task_id)
        if task is not None and task.conversation is not None:
            try:
                await self._store.get(task.conversation)
            except NotFound:
                pass
            else:
                return task
        raise NotFound(f"there is no task {task_id}")

    async def list(self, filter: TaskFilter, cursor: str | None, limit: int) -> TaskPage:
        """Return a page of the owner's tasks, the newest first; `filter` has no owner."""
        owner = self._store.owner
        return await self._broker.store.list(replace(filter, owner=owner, unowned=owner is None), cursor, limit)
