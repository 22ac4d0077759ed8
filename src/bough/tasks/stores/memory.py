"""A task store in memory."""

from __future__ import annotations

from bough.tasks.stores.sqlite import TaskStoreSqlite


class TaskStoreMemory(TaskStoreSqlite):
    """Stores tasks in a temporary log, which is removed when the store is closed.

    Source: agentic_patterns.
    """

    def __init__(self) -> None:
        super().__init__("memory:")
