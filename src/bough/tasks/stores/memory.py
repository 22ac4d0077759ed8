"""Tasks that end with the process."""

from __future__ import annotations

from bough.tasks.stores.sqlite import TaskStoreSqlite


class TaskStoreMemory(TaskStoreSqlite):
    """Tasks in a log of their own, which is removed when the store is closed.

    Source: agentic_patterns.
    """

    def __init__(self) -> None:
        super().__init__("memory:")
